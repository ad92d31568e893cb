"""The processes of a run that remain when its main process has ended after a stop, and the order of their SIGTERMs.

The main process got the stop signal alone. The others follow by the same rule, one below the other, until none is left
or the run is killed at the end of its grace:

- a process whose parent is one of them waits until the parent has ended: a DataLoader's workers follow their trainer;
- a process that reads from a pipe waits until no other writes to it, and a second more to read the rest: else output
  is lost. In `train.py | tee log` the trainer gets SIGTERM, and `tee` only if it outlives the end of its input;
- processes that wait for each other in a ring get it together;
- the processes of sessions (`weft shell`) are killed at once, as they are when a run ends by itself.

Example: `bash -c 'python train.py | tee log; echo'`. bash gets SIGTERM and ends. The trainer gets it and saves; its
workers and `tee` go on. The trainer ends, so `tee` reads the end of its input and ends by itself.
"""

import os
import signal
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from msgspec import Struct

from weftd.executor.runs import RunKey
from weftd.executor.runtime.limits import cgroup
from weftd.executor.runtime.process import records
from weftd.executor.runtime.process.stragglers import SESSION_MARK, stragglers

LOOK_SECONDS = 0.1
READING_LOOKS = 10
ENVIRONMENT_BYTES_MAX = 4 << 20


class ProcessesOfRun(Struct, frozen=True, kw_only=True):
    """Where a run's processes are found. `group`: its process group, where that number cannot be reused; else 0.
    `shim`: the pid of its shim, which is none of them, while that waits for its release; else 0."""

    cgroups: Mapping[str, str]
    group: int = 0
    shim: int = 0


class LiveProcess(Struct, frozen=True, kw_only=True):
    """A process. `began`, in ticks since the boot, tells it from a later one with the same pid."""

    pid: int
    began: int
    parent: int = 0
    reads: str = ""  # the pipe that is its standard input
    writes: frozenset[str] = frozenset()  # the pipes that are its standard output and error output
    session: bool = False

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.began


class StopOrder:
    """Decides which processes get SIGTERM, look by look."""

    def __init__(self) -> None:
        self._reading: dict[tuple[int, int], int] = {}  # readers without a writer, and for how many looks

    def due(
        self, found: Collection[LiveProcess], told: Collection[tuple[int, int]], *, hurried: bool = False
    ) -> list[LiveProcess]:
        """The processes that get SIGTERM now, of those that are `found`. `told` have had it. `hurried`: one that has
        not ended holds back its children no longer."""
        pids = {process.pid for process in found if not (hurried and process.identity in told)}
        untold = [process for process in found if process.identity not in told]
        free = [process for process in untold if process.parent not in pids and not _fed(process, found)]
        before, self._reading = self._reading, {}
        ready = []
        for process in free:
            looks = before.get(process.identity, 0)
            if process.reads and looks < READING_LOOKS:
                self._reading[process.identity] = looks + 1
            else:
                ready.append(process)
        return ready if free or len(untold) < len(found) else untold


def _fed(process: LiveProcess, found: Iterable[LiveProcess]) -> bool:
    return bool(process.reads) and any(
        process.reads in other.writes for other in found if other.pid != process.pid and not other.session
    )


def look(runs_folder: str, wanted: Mapping[RunKey, ProcessesOfRun]) -> dict[RunKey, list[LiveProcess]]:
    """The live processes of each of these runs, without its shim and the shim's children: its main process has ended,
    or is known to the caller, and others are the shim's own. Reads all of /proc: not for the loop."""
    pids: dict[RunKey, set[int]] = {key: cgroup.members(left.cgroups) for key, left in wanted.items()}
    if any(not left.cgroups for left in wanted.values()):
        for pid, key in stragglers(runs_folder):
            if key in wanted and not wanted[key].cgroups:
                pids[key].add(pid)
    groups = {left.group: key for key, left in wanted.items() if left.group}
    if groups:
        for name in os.listdir("/proc"):
            if name.isdecimal() and (status := _status(int(name))) is not None and status[2] in groups:
                pids[groups[status[2]]].add(int(name))
    return {
        key: [process for pid in sorted(found - {shim}) if (process := _process(pid)) and process.parent != shim]
        for key, found in pids.items()
        for shim in (wanted[key].shim or None,)
    }


def follow(
    runs_folder: str, wanted: Mapping[RunKey, tuple[str, ProcessesOfRun]], orders: dict[RunKey, StopOrder]
) -> set[RunKey]:
    """Send SIGTERM to the processes that are due, of runs whose main process has ended after a stop.

    `wanted`: the run's folder, and where its processes are. `orders` is the caller's, the same at each look, which it
    makes every LOOK_SECONDS. Returns the runs that still have processes.
    """
    for key in orders.keys() - wanted.keys():
        del orders[key]
    remaining = look(runs_folder, {key: left for key, (_, left) in wanted.items()})
    for key, found in remaining.items():
        folder = wanted[key][0]
        told = records.told(folder)
        for process in found:
            if process.session:
                send(process, signal.SIGKILL)
        order = orders.setdefault(key, StopOrder())
        new = order.due([process for process in found if not process.session], told)
        records.add_told(folder, [process.identity for process in new])
        for process in new:
            send(process, signal.SIGTERM)
    return {key for key, found in remaining.items() if found}


def hurry(runs_folder: str, key: RunKey, folder: str, where: ProcessesOfRun, *, main: int | None) -> None:
    """Send SIGTERM to the children of the main process, and of others that were asked and have not ended."""
    found = [one for one in look(runs_folder, {key: where})[key] if not one.session]
    told = records.told(folder) | {one.identity for one in found if one.pid == main}
    new = StopOrder().due(found, told, hurried=True)
    records.add_told(folder, [process.identity for process in new])
    for process in new:
        send(process, signal.SIGTERM)


def send(process: LiveProcess, number: signal.Signals) -> None:
    """Signal this process, and never a later one with its pid."""
    with suppress(OSError):
        pidfd = os.pidfd_open(process.pid)
        try:
            status = _status(process.pid)
            if status is not None and status[3] == process.began:
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)


def _process(pid: int) -> LiveProcess | None:
    """The process; None if it has ended, also if nobody has reaped it yet."""
    status = _status(pid)
    if status is None or status[0] in "ZX":
        return None
    pipes = [_pipe(pid, fd) for fd in range(3)]
    environment = b""
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        environment = file.read(ENVIRONMENT_BYTES_MAX)
    return LiveProcess(
        pid=pid,
        began=status[3],
        parent=status[1],
        reads=pipes[0],
        writes=frozenset(filter(None, pipes[1:])),
        session=environment.startswith(SESSION_MARK) or b"\0" + SESSION_MARK in environment,
    )


def _status(pid: int) -> tuple[str, int, int, int] | None:
    """The state, the parent, the process group and the start of a process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
        return words[0].decode(), int(words[1]), int(words[2]), int(words[19])
    except (OSError, ValueError, IndexError):
        return None


def _pipe(pid: int, fd: int) -> str:
    try:
        target = os.readlink(f"/proc/{pid}/fd/{fd}")
    except OSError:
        return ""
    return target if target.startswith("pipe:") else ""
