"""The busiest thread of each run, and the part of its threads that waits for a disk.

Each thread costs one file to read, so runs are read in turns every few seconds, and only RUN_THREADS_MAX threads of a
run. Most kernels count CPU time in ticks of 10 ms.
"""

import math
from collections.abc import Callable, Sequence

from msgspec import Struct

from weft.cgroups.files import read_text
from weftd.telemetry.counters import rounded
from weftd.telemetry.files import names_in
from weftd.telemetry.processes import TICKS_PER_SECOND
from weftd.telemetry.thinking.readings import ThreadUse

LOOK_SECONDS = 3.0
RUN_THREADS_MAX = 256  # of one run: the first ones, and the busiest one of the last reading
THREADS_MAX = 512  # in one reading; the other runs come first in the next one, a second later


class Thread(Struct, frozen=True):
    """A thread with its own CPU time; `started` tells it from a later thread with the same number."""

    started: int
    ticks: int
    blocked: bool


class _Look(Struct):
    at: float
    threads: dict[int, Thread]
    use: ThreadUse
    busiest: int = 0


def parse_thread(stat: str) -> Thread | None:
    """Parse /proc/<pid>/task/<tid>/stat."""
    fields = stat.rpartition(")")[2].split()
    try:
        return Thread(started=int(fields[19]), ticks=int(fields[11]) + int(fields[12]), blocked=fields[0] == "D")
    except (ValueError, IndexError):
        return None


def thread_use(
    before: dict[int, Thread], after: dict[int, Thread], seconds: float, ticks_per_second: int = TICKS_PER_SECOND
) -> tuple[ThreadUse, int]:
    """The threads' use between two readings, and the number of the busiest thread."""
    if not after:
        return ThreadUse(), 0
    grown = {
        number: thread.ticks - old.ticks
        for number, thread in after.items()
        if (old := before.get(number)) is not None and old.started == thread.started
    }
    busiest = max(grown, key=lambda number: grown[number], default=0)
    cores = rounded(max(0, grown[busiest]) / ticks_per_second / seconds) if grown and seconds > 0 else None
    blocked = sum(thread.blocked for thread in after.values()) / len(after)
    return ThreadUse(cores, rounded(blocked)), busiest


class ThreadWatch:
    """Keeps the last reading of each run's threads."""

    def __init__(self, proc: str) -> None:
        self._proc = proc
        self._looks: dict[object, _Look] = {}
        self._left = 0

    def begin(self, keys: set[object]) -> None:
        """Start a new reading of these runs, and forget the others."""
        self._looks = {key: look for key, look in self._looks.items() if key in keys}
        self._left = THREADS_MAX

    def looked_at(self, key: object) -> float:
        """When a run's threads were last read; the run with the oldest reading comes first."""
        last = self._looks.get(key)
        return -math.inf if last is None else last.at

    def use(self, key: object, threads: Callable[[], Sequence[int]], *, at: float) -> ThreadUse:
        """One run's use by its last reading, which is a new one if it is the run's turn."""
        last = self._looks.get(key)
        if self._left <= 0 or (last is not None and at - last.at < LOOK_SECONDS):
            return last.use if last is not None else ThreadUse()
        numbers = sorted(threads())[:RUN_THREADS_MAX]
        if last is not None and last.busiest and last.busiest not in numbers:
            numbers.append(last.busiest)
        self._left -= max(1, len(numbers))
        found = {number: thread for number in numbers if (thread := self._read(number)) is not None}
        use, busiest = thread_use(last.threads if last else {}, found, at - last.at if last else 0.0)
        self._looks[key] = _Look(at, found, use, busiest)
        return use

    def _read(self, number: int) -> Thread | None:
        """Read one thread by its own number: /proc has its folder there, too, and not only below its process."""
        stat = read_text(f"{self._proc}/{number}/task/{number}/stat")
        return parse_thread(stat) if stat else None


def threads_of(pids: Sequence[int], proc: str) -> list[int]:
    return [int(name) for pid in pids for name in names_in(f"{proc}/{pid}/task") if name.isdecimal()]
