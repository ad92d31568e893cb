"""The process runtime's records of a run on disk, so that the executor may die at any instant.

The order of writing ensures that a run is neither lost nor started twice:

1. the folder, and `run.json` without a pid — the intent;
2. `pid`, locked (flock) by the executor; the shim that it spawns inherits this lock;
3. the shim writes its pid into `pid` before it starts the command, and `exit` after the command ended;
4. the executor, or the guard, writes `stop` before it asks the run to stop, and adds the remaining processes that get
   SIGTERM once the command has ended (see remaining.py).

So, for a folder found after a restart: `pid` locked → it runs, adopt it. Unlocked and empty → the command was never
started, forget the folder. Unlocked with a pid → it ran; its status is in `exit`, or it was killed with its shim. What
remains of it is followed if it was asked to stop, else killed.
A second start would have to take the lock, which it cannot while the first one lives.

Telemetry reads `run.json`, too: `job_id`, `epoch`, `rank`, `pid` (the shim, leader of the run's session
and process group) and `cgroups` (controller → folder; empty where there are none).

A job can write to this folder. So a record counts only in the folder of its own run, a status only from 0 to 255, and
a pid only if that process holds the lock; anything else counts as not written. No pipe is waited for, no link followed.
"""

import fcntl
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from weft.domain.spec import StopSignal
from weftd.executor.files.regular import NEW, read_small, replace_file, write_whole
from weftd.executor.runs import RunKey
from weftd.executor.runtime.limits.cgroup import PID_MAX, PID_MIN
from weftd.executor.runtime.process.pipes import Inodes

BLANK = b" " * 15  # longer than a number and its line's end
RECORD_BYTES_MAX = 64 * 1024
PID_ROOM = b" " * 15  # after the intent, for the pid of the shim
STATUS_MAX = 255
STOPPED = b"stopped".ljust(len(BLANK) - 1) + b"\n"
TOLD_BYTES_MAX = 1 << 20
_OVER = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
GRACE_SECONDS_MAX = 86400.0
MEMORY_BYTES_MAX = 1 << 62


class RunRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    job_id: str
    epoch: int
    rank: int
    grace: Annotated[float, Meta(ge=0, le=GRACE_SECONDS_MAX)]
    memory: Annotated[int, Meta(ge=0, le=MEMORY_BYTES_MAX)]
    pid: Annotated[int, Meta(ge=0, le=PID_MAX)] = 0
    cgroups: dict[str, str] = {}
    stop_signal: StopSignal = StopSignal.TERM
    pipes: Inodes

    @property
    def key(self) -> RunKey:
        return RunKey(self.job_id, self.epoch, self.rank)


class Status(Struct, frozen=True):
    """The exit status that the shim wrote when the command ended."""

    exit_code: int
    ended_at: float


def begin(folder: str, record: RunRecord) -> int:
    """Write the intent, in place of that of an earlier try. Returns the open file, for `add_pid`. Not synced to disk:
    a run does not outlive the kernel either. Raises OSError."""
    path = f"{folder}/run.json"
    try:
        fd = os.open(path, NEW, 0o600)
    except FileExistsError:
        os.unlink(path)
        fd = os.open(path, NEW, 0o600)
    try:
        write_whole(fd, msgspec.json.encode(record) + PID_ROOM)
    except BaseException:
        os.close(fd)
        raise
    return fd


def add_pid(fd: int, record: RunRecord) -> None:
    """Complete the intent in the room kept for it, so that a full disk does not matter. Half of it is no JSON, and
    counts as no record; a reader of the intent sees by the length that it changed. Raises OSError."""
    end = len(msgspec.json.encode(replace(record, pid=0))) - 1
    text = b',"pid":%d}' % record.pid
    os.pwrite(fd, text, end)
    os.ftruncate(fd, end + len(text))


def write(folder: str, record: RunRecord) -> None:
    """Replace `run.json` as a whole. Raises OSError."""
    replace_file(f"{folder}/run.json", msgspec.json.encode(record))


def reserve(folder: str, lock_fd: int) -> None:
    """Reserve space for the shim's files, so that its writes do not fail on a full disk. Raises OSError."""
    os.pwrite(lock_fd, BLANK, 0)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    for name in ("exit", "stop"):
        fd = os.open(f"{folder}/{name}", flags, 0o600)
        try:
            write_whole(fd, BLANK)
        finally:
            os.close(fd)


def read(folder: str) -> RunRecord | None:
    """The record of this folder's run; None for any other."""
    found = read_small(f"{folder}/run.json", bytes_max=RECORD_BYTES_MAX)
    try:
        record = None if found is None else msgspec.json.decode(found.data, type=RunRecord)
    except msgspec.DecodeError:
        return None
    return record if record is not None and str(record.key) == os.path.basename(folder) else None


def lock(folder: str) -> int | None:
    """The run's lock as an open file, or None while it is held. A process that inherits it holds it. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(f"{folder}/pid", flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def locked(folder: str) -> bool:
    """True if the lock is held; False also if the file cannot be opened: then no holder is known."""
    try:
        fd = lock(folder)
    except OSError:
        return False
    if fd is None:
        return True
    os.close(fd)
    return False


def holds(pid: int, path: str) -> bool:
    """True if this process has this very file, and so its lock, open: then the pid was not reused. Linux only."""
    with suppress(OSError):
        sought = os.stat(path)
        for fd in os.listdir(f"/proc/{pid}/fd"):  # A shell moves its files from one descriptor to another.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), sought):
                    return True
    return False


def leader(folder: str) -> int | None:
    """The pid of the run's shim while it lives."""
    pid = shim_pid(folder)
    if pid is None:
        return None
    if not os.path.isdir("/proc/self/fd"):  # Not on Linux.
        return pid if locked(folder) else None
    return pid if holds(pid, f"{folder}/pid") else None


def shim_pid(folder: str) -> int | None:
    """The pid that the shim wrote; None if it has not written one."""
    found = read_small(f"{folder}/pid", bytes_max=len(BLANK))
    return None if found is None else _number(found.data, PID_MIN, PID_MAX)


def started_at(folder: str) -> float | None:
    """When the shim wrote its pid, at most the current time."""
    try:
        return min(os.lstat(f"{folder}/pid").st_mtime, time.time())
    except OSError:
        return None


def exit_status(folder: str) -> Status | None:
    """The status. Read it only when the shim is gone: then it is complete, or was never written."""
    found = read_small(f"{folder}/exit", bytes_max=len(BLANK))
    exit_code = None if found is None else _number(found.data, 0, STATUS_MAX)
    return None if found is None or exit_code is None else Status(exit_code, min(found.written_at, time.time()))


def mark_stopped(folder: str) -> None:
    """Note that the run is asked to stop. Raises OSError."""
    if stopped(folder):
        return
    fd = os.open(f"{folder}/stop", _OVER, 0o600)
    try:
        os.pwrite(fd, STOPPED, 0)
    finally:
        os.close(fd)


def stopped(folder: str) -> bool:
    """True if the run was asked to stop."""
    found = read_small(f"{folder}/stop", bytes_max=TOLD_BYTES_MAX)
    return found is not None and found.data.startswith(STOPPED)


def add_told(folder: str, processes: Sequence[tuple[int, int]]) -> None:
    """Note processes, by pid and start, that get SIGTERM now. On a full disk the next executor sends it again."""
    if not processes:
        return
    with suppress(OSError):
        fd = os.open(f"{folder}/stop", _OVER | os.O_APPEND, 0o600)
        try:
            write_whole(fd, b"".join(b"%d %d\n" % one for one in processes))
        finally:
            os.close(fd)


def told(folder: str) -> set[tuple[int, int]]:
    """The processes that have had SIGTERM since the run was asked to stop, by pid and start."""
    found = read_small(f"{folder}/stop", bytes_max=TOLD_BYTES_MAX)
    lines = [] if found is None else found.data[len(BLANK) :].splitlines()
    numbers = [line.split() for line in lines]
    return {(int(one[0]), int(one[1])) for one in numbers if len(one) == 2 and all(word.isdigit() for word in one)}


def _number(text: bytes, least: int, most: int) -> int | None:
    """The number that the shim wrote over BLANK; None for half a line, and for text that only the job can write."""
    line, end, _ = text.partition(b"\n")
    number = int(line) if end and line.isdigit() else -1
    return number if least <= number <= most else None
