"""What the executor remembers on its node: how often it started, its last good sync, whom it has asked to stop.

The clock of `Memory` counts from boot and never jumps, so what was kept under another boot says nothing: then the last
good sync is unknown, and no run of that time can be alive either.
"""

import fcntl
import logging
import os
import time
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from services.executor.core import Memory
from services.executor.home import Home

logger = logging.getLogger(__name__)

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class HomeTakenError(Exception):
    """Another executor runs from this home."""


class Keeper(Protocol):
    boot_id: str
    incarnation: int
    memory: Memory

    def save(self, memory: Memory) -> None: ...


class Kept(Struct, frozen=True, kw_only=True):
    boot_id: str
    incarnation: int
    memory: Memory


class MemoryKeeper:
    """Forgets with the process: for tests and simulations, which may hand it to a second executor."""

    def __init__(self, boot_id: str = "boot-1") -> None:
        self.boot_id = boot_id
        self.incarnation = 1
        self.memory = Memory()

    def save(self, memory: Memory) -> None:
        self.memory = memory

    def restarted(self) -> "MemoryKeeper":
        self.incarnation += 1
        return self


class FileKeeper:
    """Keeps it in the home, which it also holds against a second executor while it is open."""

    def __init__(self, home: Home, *, boot_id: str, now: float) -> None:
        """`now` in seconds since the epoch: incarnations grow even where the home was lost. Raises HomeTakenError."""
        self._path = home.state
        self._lock = os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise HomeTakenError(f"another executor runs from {home.root}") from error
        kept = self._read()
        self.boot_id = boot_id
        self.incarnation = max(kept.incarnation + 1, int(now))
        self.memory = kept.memory if kept.boot_id == boot_id else Memory()
        self._write(Kept(boot_id=boot_id, incarnation=self.incarnation, memory=self.memory), sync=True)

    def save(self, memory: Memory) -> None:
        """A memory that cannot be written is older than the truth, which fences sooner: safe, so go on."""
        if memory == self.memory:
            return
        try:
            self._write(Kept(boot_id=self.boot_id, incarnation=self.incarnation, memory=memory), sync=False)
        except OSError as error:
            logger.warning("cannot keep %s: %s", self._path, error)
        else:
            self.memory = memory

    def close(self) -> None:
        os.close(self._lock)

    def _read(self) -> Kept:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Kept)
        except (FileNotFoundError, msgspec.DecodeError):
            return Kept(boot_id="", incarnation=0, memory=Memory())

    def _write(self, kept: Kept, *, sync: bool) -> None:
        """As a whole. Only the incarnation must outlive a crash of the host; memory is of one boot."""
        new = f"{self._path}.new"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, msgspec.json.encode(kept))
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(new, self._path)


def boot_id() -> str:
    """This boot of the kernel. Elsewhere than on Linux: of this process, so that nothing kept is believed."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return f"process-{os.getpid()}-{time.time_ns()}"


def boot_clock() -> float:
    """Seconds on a clock that goes on in suspend and never jumps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
