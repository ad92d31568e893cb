"""What the process runtime keeps of a run on disk, so that the executor may die at any instant.

The order of writing is the argument that a run is neither lost nor started twice:

1. the folder, and `run.json` (with pid 0) — the intent;
2. `pid`, locked (flock) by the executor, and that very lock is inherited by the shim that it spawns;
3. the shim writes its pid into `pid` before it starts the command, and `exit` after the command ended.

So, for a folder found after a restart: `pid` locked → it runs, adopt it. Unlocked and empty → the command was never
started, forget the folder. Unlocked with a pid → it ran; its status is in `exit`, or it was killed with its shim.
A second start would have to take the lock, which it cannot while the first one lives.

`run.json` is for others too: telemetry reads `job_id`, `epoch`, `rank`, `pid` (the shim, leader of the run's session
and process group) and `cgroups` (controller → folder; empty where there are none).
"""

import fcntl
import os
import shutil
from contextlib import suppress

import msgspec
from msgspec import Struct

from services.executor.runtime import RunKey

BLANK = b" " * 15  # longer than a number and its line's end


class Record(Struct, frozen=True, kw_only=True, omit_defaults=True):
    job_id: str
    epoch: int
    rank: int
    grace: float
    memory: int
    pid: int = 0
    cgroups: dict[str, str] = {}

    @property
    def key(self) -> RunKey:
        return RunKey(self.job_id, self.epoch, self.rank)


class Status(Struct, frozen=True):
    """What the shim wrote when the command ended."""

    exit_code: int
    ended_at: float


def write(folder: str, record: Record) -> None:
    """Replace `run.json` as a whole. Not synced to disk: a run does not outlive the kernel either."""
    with open(f"{folder}/run.json.new", "wb", opener=_private) as file:
        file.write(msgspec.json.encode(record))
    os.rename(f"{folder}/run.json.new", f"{folder}/run.json")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def reserve(folder: str, lock_fd: int) -> None:
    """Room for what the shim will write, which must not fail on a disk that is full by then. Raises OSError."""
    os.pwrite(lock_fd, BLANK, 0)
    with open(f"{folder}/exit", "wb", opener=_private) as file:
        file.write(BLANK)


def read(folder: str) -> Record | None:
    try:
        with open(f"{folder}/run.json", "rb") as file:
            return msgspec.json.decode(file.read(), type=Record)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None


def lock(folder: str) -> int | None:
    """The run's lock as an open file, or None while somebody holds it. Whoever inherits it holds it."""
    fd = os.open(f"{folder}/pid", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def locked(folder: str) -> bool:
    fd = lock(folder)
    if fd is None:
        return True
    os.close(fd)
    return False


def holds(pid: int, path: str) -> bool:
    """Does this process have this very file open, whose lock it holds? Then the number is still its own. Linux only."""
    with suppress(OSError):
        sought = os.stat(path)
        for fd in os.listdir(f"/proc/{pid}/fd"):  # A shell moves what it holds from one number to another.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), sought):
                    return True
    return False


def shim_pid(folder: str) -> int | None:
    """The pid that the shim wrote, and when it did; None if it never got so far."""
    try:
        with open(f"{folder}/pid", "rb") as file:
            text = file.read()
    except FileNotFoundError:
        return None
    return _number(text)


def started_at(folder: str) -> float | None:
    try:
        return os.stat(f"{folder}/pid").st_mtime
    except FileNotFoundError:
        return None


def exit_status(folder: str) -> Status | None:
    """Read it only when the shim is gone: then it is whole, or it was never written."""
    try:
        with open(f"{folder}/exit", "rb") as file:
            text = file.read()
            ended_at = os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return None
    exit_code = _number(text)
    return None if exit_code is None else Status(exit_code, ended_at)


def _number(text: bytes) -> int | None:
    """What the shim wrote over BLANK; None for half a line, and for what the job itself may have put there."""
    line, end, _ = text.partition(b"\n")
    return int(line) if end and line.isdigit() and len(line) < len(BLANK) else None


def forget(folder: str) -> None:
    """Remove the folder; `run.json` first, so that half a folder is never taken for a run."""
    with suppress(FileNotFoundError):
        os.unlink(f"{folder}/run.json")
    # What the job made in there may be anything; what cannot be removed is tried again when the executor starts.
    shutil.rmtree(folder, ignore_errors=True)
