"""The files in the home between the executor and its guard.

guard.json   the executor's orders: the timings, and how to find the runs
synced       the executor: when the last good sync was sent
guard        the guard: its pid and its beat; it holds the lock of this file as long as it lives
fenced       the guard: the runs that it has ended
guard.log    the guard's output

`synced`, `guard` and `fenced` are overwritten in place and have their full size from the start, so that a full disk
silences neither side.
"""

import os
import zlib
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from weftd.executor.files.regular import replace_file
from weftd.executor.guard.thinking import FenceTimings
from weftd.executor.runs import RunKey
from weftd.executor.thinking.core import Memory

SYNCED_BYTES = BEAT_BYTES = 512
FENCED_BYTES = 1 << 16
READ_TRIES = 5

S = TypeVar("S", bound=Struct)


class GuardOrders(Struct, frozen=True, kw_only=True):
    """Without `fencing` the guard ends nothing. `engine` is the address of a Docker engine, if there is one."""

    fencing: bool
    boot_id: str
    timings: FenceTimings
    runtime: str
    node_id: str
    cluster: str = ""
    engine: str = ""


class Synced(Struct, frozen=True, kw_only=True):
    boot_id: str
    synced_at: float | None


class SavedMemory(Struct, frozen=True, kw_only=True):
    """The state file of the home: the executor's stored memory. The guard reads the runs to end from it."""

    boot_id: str
    incarnation: int
    memory: Memory


class Beat(Struct, frozen=True, kw_only=True):
    """`stays`: its executor is gone and runs are left. `standing`: not started by the executor, for good."""

    pid: int
    at: float
    stays: bool = False
    standing: bool = False


class Fenced(Struct, frozen=True, kw_only=True):
    boot_id: str
    runs: tuple[RunKey, ...] = ()


class Slot:
    """One small record that is overwritten in place. Raises OSError."""

    def __init__(self, path: str | Path, size: int) -> None:
        self.path = str(path)
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = size
        try:
            if os.fstat(self.fd).st_size < size:
                os.pwrite(self.fd, b"\0" * size, 0)
        except OSError:
            os.close(self.fd)
            raise

    def write(self, record: Struct) -> None:
        text = msgspec.json.encode(record)
        whole = b"%08x %08x\n%b" % (len(text), zlib.crc32(text), text)
        if len(whole) > self._size:
            raise OSError(f"{self.path} has no room for {len(whole)} bytes")
        os.pwrite(self.fd, whole, 0)

    def read(self, kind: type[S]) -> S | None:
        """The record; None if none was written, or a write is in progress."""
        for _ in range(READ_TRIES):
            whole = os.pread(self.fd, self._size, 0)
            text = whole[18 : 18 + _hexadecimal(whole[:8])]
            if text and zlib.crc32(text) == _hexadecimal(whole[9:17]):
                try:
                    return msgspec.json.decode(text, type=kind)
                except msgspec.DecodeError:
                    return None
        return None

    def close(self) -> None:
        os.close(self.fd)


def read_slot(path: str | Path, size: int, kind: type[S]) -> S | None:
    """As `Slot.read`; None where there is no file."""
    if not os.path.exists(path):
        return None
    slot = Slot(path, size)
    try:
        return slot.read(kind)
    finally:
        slot.close()


def write_orders(path: Path, orders: GuardOrders) -> None:
    """Replace the orders as a whole, unless they are the same already. Raises OSError."""
    text = msgspec.json.encode(orders)
    if path.exists() and path.read_bytes() == text:
        return
    replace_file(str(path), text)


def read_orders(path: Path) -> GuardOrders | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=GuardOrders)
    except (OSError, msgspec.DecodeError):
        return None


def _hexadecimal(text: bytes) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0
