"""Which of a run's threads works most, and which part of them waits for a disk.

Each thread costs a file, so each run is looked at every few seconds only, in turns, and not at all of a great many
threads. CPU time is counted in ticks of 10 ms by most kernels.
"""

import math
from collections.abc import Callable, Sequence

from msgspec import Struct

from libs.cgroups.files import read_text
from services.telemetry.counters import rounded
from services.telemetry.files import names_in
from services.telemetry.processes import TICKS_PER_SECOND

LOOK_SECONDS = 3.0
RUN_THREADS_MAX = 256  # of one run: the first ones, and the one that was busiest
THREADS_MAX = 512  # at one time; the other runs' turn comes a second later, and before that of those that had theirs


class Thread(Struct, frozen=True):
    """Its own CPU time; `started` tells it from another one of the same number."""

    started: int
    ticks: int
    blocked: bool


class ThreadUse(Struct, frozen=True):
    """`busiest`: cores used by the thread that used most; `blocked`: the part of the threads in state D, 0–1."""

    busiest: float | None = None
    blocked: float | None = None


class _Look(Struct):
    at: float
    threads: dict[int, Thread]
    use: ThreadUse
    busiest: int = 0


def parse_thread(stat: str) -> Thread | None:
    """From /proc/<pid>/task/<tid>/stat."""
    fields = stat.rpartition(")")[2].split()
    try:
        return Thread(started=int(fields[19]), ticks=int(fields[11]) + int(fields[12]), blocked=fields[0] == "D")
    except (ValueError, IndexError):
        return None


def thread_use(
    before: dict[int, Thread], after: dict[int, Thread], seconds: float, ticks_per_second: int = TICKS_PER_SECOND
) -> tuple[ThreadUse, int]:
    """What they did between two looks, and the number of the busiest."""
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
    """Remembers the last look at each run."""

    def __init__(self, proc: str) -> None:
        self._proc = proc
        self._looks: dict[object, _Look] = {}
        self._left = 0

    def begin(self, keys: set[object]) -> None:
        """A new reading, of these runs; the others are forgotten."""
        self._looks = {key: look for key, look in self._looks.items() if key in keys}
        self._left = THREADS_MAX

    def looked_at(self, key: object) -> float:
        """When the last look at a run was; whose is the longest ago, its turn is first."""
        last = self._looks.get(key)
        return -math.inf if last is None else last.at

    def use(self, key: object, threads: Callable[[], Sequence[int]], *, at: float) -> ThreadUse:
        """Of one run: what the last look said, after a new one where its turn has come."""
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
        """A thread's own folder is below its process's, and below its own number, too."""
        stat = read_text(f"{self._proc}/{number}/task/{number}/stat")
        return parse_thread(stat) if stat else None


def threads_of(pids: Sequence[int], proc: str) -> list[int]:
    return [int(name) for pid in pids for name in names_in(f"{proc}/{pid}/task") if name.isdecimal()]
