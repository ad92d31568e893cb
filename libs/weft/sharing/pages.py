"""The two pages of a slot: `limits`, which the arbiter writes, and `use`, which the job's processes write.

Both are 4096 bytes, little endian, and mapped by the hook (`native/protocol.h`). Python never maps them: a job may
shorten its files at any time, and reading a mapping beyond the end of its file kills the process.
"""

import os
import stat
import struct
from enum import IntFlag
from typing import NamedTuple

PAGE_BYTES = 4096
LIMITS_MAGIC = int.from_bytes(b"WEFTLIM1", "little")
USE_MAGIC = int.from_bytes(b"WEFTUSE1", "little")
VERSION = 1

ENTRIES = 63
ENTRY_BYTES = 64
ENTRIES_AT = 64

_LIMITS = struct.Struct("<QIIIIQQIIQ")
_CHANGES = struct.Struct("<I")
_CHANGES_AT = 12
_BEAT = struct.Struct("<Q")
_BEAT_AT = 48
_USE = struct.Struct("<7Q")
_ENTRY = struct.Struct("<IIQQQQ24x")

COUNT_MAX = 1 << 62
"""The largest count that is believed of a page."""


class Flag(IntFlag):
    HOLD = 1  # launch nothing
    GATED = 2  # launch with the turn only
    CAPPED = 4  # memory is bounded
    CLOSED = 8  # without an arbiter: launch nothing


class SlotLimits(NamedTuple):
    """What the hook holds its process to. Bytes; `in_flight_us` in µs of device time; `beat_ns` of CLOCK_MONOTONIC."""

    flags: Flag = Flag(0)
    memory_limit: int = 0
    device_memory: int = 0
    in_flight_us: int = 0
    context_mib: int = 0
    beat_ns: int = 0
    changes: int = 0


class Entry(NamedTuple):
    """One process of the job, as it sees itself. `memory` in bytes; a free entry has the pid 0."""

    place: int
    pid: int
    generation: int
    memory: int
    launches: int
    busy_us: int
    beat_ns: int


class SlotUse(NamedTuple):
    """What the processes of a job say they did, in total, and each process that has an entry now."""

    launches: int = 0
    blocked_ns: int = 0
    busy_us: int = 0
    denied: int = 0
    waits_given_up: int = 0
    longest_kernel_us: int = 0
    entries: tuple[Entry, ...] = ()

    @property
    def memory(self) -> int:
        """Bytes that the processes hold, at most COUNT_MAX."""
        return min(sum(entry.memory for entry in self.entries), COUNT_MAX)


def limits_bytes(limits: SlotLimits) -> bytes:
    fields = _LIMITS.pack(
        LIMITS_MAGIC,
        VERSION,
        limits.changes & 0xFFFF_FFFF,
        limits.flags,
        0,
        limits.memory_limit,
        limits.device_memory,
        limits.in_flight_us,
        limits.context_mib,
        limits.beat_ns,
    )
    return fields.ljust(PAGE_BYTES, b"\0")


def read_limits(data: bytes) -> SlotLimits | None:
    """None unless it is a limits page of this version."""
    if len(data) < _LIMITS.size:
        return None
    magic, version, changes, flags, _, memory, device_memory, in_flight, context, beat = _LIMITS.unpack_from(data)
    if magic != LIMITS_MAGIC or version != VERSION:
        return None
    return SlotLimits(Flag(flags & 15), memory, device_memory, in_flight, context, beat, changes)


def empty_use_bytes() -> bytes:
    return _USE.pack(USE_MAGIC, 0, 0, 0, 0, 0, 0).ljust(PAGE_BYTES, b"\0")


def read_use(data: bytes) -> SlotUse | None:
    """What a use page says, whatever bytes it has: every number from 0 to COUNT_MAX. None without its magic or size."""
    if len(data) != PAGE_BYTES:
        return None
    magic, *totals = _USE.unpack_from(data)
    if magic != USE_MAGIC:
        return None
    entries = tuple(entry for index in range(ENTRIES) if (entry := _entry(data, index)).pid)
    launches, blocked, busy, denied, given_up, longest = (min(total, COUNT_MAX) for total in totals)
    return SlotUse(launches, blocked, busy, denied, given_up, longest, entries)


def _entry(data: bytes, index: int) -> Entry:
    pid, generation, *counts = _ENTRY.unpack_from(data, ENTRIES_AT + index * ENTRY_BYTES)
    return Entry(index, pid, generation, *(min(count, COUNT_MAX) for count in counts))


def regular(fd: int) -> bool:
    """Whether it is an ordinary file of one page that has one name: no device, fifo, or link to a file elsewhere."""
    status = os.fstat(fd)
    return stat.S_ISREG(status.st_mode) and status.st_size == PAGE_BYTES and status.st_nlink == 1


class LimitsPage:
    """The limits page behind a descriptor of the caller's. Raises OSError."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._last = read_limits(os.pread(fd, PAGE_BYTES, 0)) or SlotLimits()

    def write(self, limits: SlotLimits) -> None:
        """Write everything, and then that it changed. Without a difference only the beat is written."""
        if limits._replace(beat_ns=0, changes=0) == self._last._replace(beat_ns=0, changes=0):
            self.beat(limits.beat_ns)
            return
        changes = (self._last.changes + 1) & 0xFFFF_FFFF
        page = limits_bytes(limits._replace(changes=self._last.changes))
        os.pwrite(self._fd, page, 0)
        os.pwrite(self._fd, _CHANGES.pack(changes), _CHANGES_AT)
        self._last = limits._replace(changes=changes)

    def beat(self, now_ns: int) -> None:
        os.pwrite(self._fd, _BEAT.pack(now_ns), _BEAT_AT)


class UsePage:
    """The use page behind a descriptor of the caller's. Raises OSError."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self) -> SlotUse:
        """What it says now; nothing if the job made something else of it."""
        return read_use(os.pread(self._fd, PAGE_BYTES + 1, 0)[:PAGE_BYTES]) or SlotUse()

    def entry(self, index: int) -> Entry | None:
        """One entry; None if no process has it."""
        if not 0 <= index < ENTRIES:
            return None
        data = os.pread(self._fd, ENTRY_BYTES, ENTRIES_AT + index * ENTRY_BYTES)
        entry = _entry(bytes(ENTRIES_AT) + data, 0) if len(data) == ENTRY_BYTES else None
        return entry._replace(place=index) if entry is not None and entry.pid else None

    def clear(self, index: int) -> None:
        """Free an entry of a process that is gone; its pid last, as processes claim by the pid."""
        at = ENTRIES_AT + index * ENTRY_BYTES
        os.pwrite(self._fd, bytes(ENTRY_BYTES - 8), at + 8)
        os.pwrite(self._fd, bytes(4), at)
