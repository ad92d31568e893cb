"""The executor's memory on its node: its number of starts, its last good sync, the runs that it asked to stop.

The clock of `Memory` counts from boot and never jumps, so times from another boot are invalid: then the last good sync
is unknown, and no run of that time can be alive either. The list of runs that were asked to stop stays valid.
"""

import fcntl
import logging
import os
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec.structs import replace

from weftd.executor.files.home import Home
from weftd.executor.files.regular import replace_file
from weftd.executor.guard.files import FENCED_BYTES, SYNCED_BYTES, Fenced, SavedMemory, Slot, Synced, read_slot
from weftd.executor.leave import Leave, LeaveFile
from weftd.executor.runs import RunKey
from weftd.executor.thinking.core import Memory, Stop

logger = logging.getLogger(__name__)

STOPS_BYTES = 1 << 16


class HomeTakenError(Exception):
    """Another executor runs from this home."""


class StateFile(Protocol):
    boot_id: str
    incarnation: int
    memory: Memory

    def save(self, memory: Memory) -> None: ...

    def fenced(self) -> frozenset[RunKey]:
        """The runs that the node's guard has ended."""


class DiskStateFile:
    """Keeps memory in the home, and locks the home against a second executor while it is open."""

    def __init__(self, home: Home, *, boot_id: str, now: float, fence_seconds: float | None = None) -> None:
        """`now` in seconds since the epoch: incarnations grow even where the home was lost. `fence_seconds`: None if
        nothing is fenced. Raises HomeTakenError."""
        self._path = home.state
        self._fenced = home.root / "fenced"
        self._lock = os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise HomeTakenError(f"another executor runs from {home.root}") from error
        kept = self._read()
        self.boot_id = boot_id
        self.incarnation = max(kept.incarnation + 1, int(now))
        self._synced = Slot(home.root / "synced", SYNCED_BYTES)
        self._leave = None if fence_seconds is None else LeaveFile(home.root / "leave", fence_seconds)
        self._spare = _slot(home.root / "stops", STOPS_BYTES)
        self._spared: tuple[Stop, ...] = ()  # the stops in the reserve file
        self.memory = self._newest(kept)
        self._tell_guard()
        self._written: Memory | None = None  # the memory in the file
        self._keep(sync=True)

    def save(self, memory: Memory) -> None:
        """Store the memory. If that fails, go on: an older memory is safe, because it fences sooner."""
        synced = memory.synced_at != self.memory.synced_at
        self.memory = memory
        if synced:
            self._tell_guard()
        if memory != self._written:
            self._keep(sync=False)

    def fenced(self) -> frozenset[RunKey]:
        boot_id, runs = self._noted_by_guard()
        return runs if boot_id == self.boot_id else frozenset()

    def leave(self) -> Leave | None:
        """A permission to start a run now; None where nothing is fenced, and before the first good sync."""
        return None if self._leave is None else self._leave.now()

    def close(self) -> None:
        self._synced.close()
        if self._leave is not None:
            self._leave.close()
        if self._spare is not None:
            self._spare.close()
        os.close(self._lock)

    def _newest(self, kept: SavedMemory) -> Memory:
        """The newest of the last good sync and the stops: both are stored twice, once safe from a full disk."""
        memory = self._of_this_boot(kept)
        spare = self._spare.read(SavedMemory) if self._spare is not None else None
        if spare is not None:
            self._spared = spare.memory.stops
            stops = {stop.key: stop for stop in (*self._of_this_boot(spare).stops, *memory.stops)}
            memory = replace(memory, stops=tuple(stops[key] for key in sorted(stops)))
        noted = self._synced.read(Synced)
        if noted is None or noted.boot_id != self.boot_id or noted.synced_at is None:
            return memory
        return replace(memory, synced_at=max(noted.synced_at, memory.synced_at or 0.0))

    def _of_this_boot(self, kept: SavedMemory) -> Memory:
        if kept.boot_id == self.boot_id:
            return kept.memory
        boot_id, fenced = self._noted_by_guard()
        return kept.memory.after_boot(fenced if boot_id == kept.boot_id else ())

    def _noted_by_guard(self) -> tuple[str, frozenset[RunKey]]:
        """The boot of which the guard's note is, and the runs that it ended then."""
        noted = read_slot(self._fenced, FENCED_BYTES, Fenced)
        return ("", frozenset()) if noted is None else (noted.boot_id, frozenset(noted.runs))

    def _tell_guard(self) -> None:
        try:
            self._synced.write(Synced(boot_id=self.boot_id, synced_at=self.memory.synced_at))
            if self._leave is not None and self.memory.synced_at is not None:
                self._leave.renew(self.memory.synced_at)
        except OSError as error:
            logger.warning("cannot report the last good sync to the guard and the shims of runs: %s", error)

    def _keep(self, *, sync: bool) -> None:
        """Write the memory. A full disk must not prevent an executor from starting and ending runs."""
        try:
            self._write(SavedMemory(boot_id=self.boot_id, incarnation=self.incarnation, memory=self.memory), sync=sync)
        except OSError as error:
            if self._written is not None or sync:
                logger.warning("cannot keep %s: %s", self._path, error)
            self._written = None
            self._save_stops(self.memory.stops)
        else:
            self._written = self.memory
            self._save_stops(())

    def _save_stops(self, stops: tuple[Stop, ...]) -> None:
        """Store the stops in reserved space, so that after a restart a run that was asked to stop is still stopped."""
        if self._spare is None or stops == self._spared:
            return
        spared = SavedMemory(boot_id=self.boot_id, incarnation=self.incarnation, memory=Memory(stops=stops))
        try:
            self._spare.write(spared)
        except OSError as error:
            logger.warning("cannot record which runs were asked to stop: %s", error)
        else:
            self._spared = stops

    def _read(self) -> SavedMemory:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=SavedMemory)
        except (FileNotFoundError, msgspec.DecodeError):
            return SavedMemory(boot_id="", incarnation=0, memory=Memory())

    def _write(self, kept: SavedMemory, *, sync: bool) -> None:
        """Replace the file as a whole. The incarnation must survive a crash of the host; the times are of one boot."""
        replace_file(str(self._path), msgspec.json.encode(kept), sync=sync)


def _slot(path: Path, size: int) -> Slot | None:
    """Reserve a slot; None if the disk is full."""
    try:
        return Slot(path, size)
    except OSError as error:
        logger.warning("no place for %s: %s", path, error)
        return None
