"""What a run uses, from its cgroup. What none of its hierarchies tells is None, never 0.

Known limits of version 1: it counts only writes that bypass the page cache, and keeps no pressure. Where version 2 is
mounted beside it and the run has a group there too, pressure is from there.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import inf
from typing import TypeAlias

from msgspec import Struct

from weft.cgroups.counters import Traffic, keyed, number, stalled_seconds
from weft.cgroups.files import read_text
from weft.cgroups.places import UNIFIED, Folders

_NO_LIMIT = 1 << 60  # version 1 writes "no limit" as the largest number of whole pages


Text: TypeAlias = Callable[[str, str], str | None]
"""The text of a file, by controller and name; None where there is none."""


class CgroupUse(Struct, frozen=True, kw_only=True):
    """Counters of one cgroup. `periods`: those in which it was held back, and all. Stalled times in seconds."""

    sources: frozenset[str] = frozenset()
    cpu_seconds: float | None = None
    cpus_limit: float | None = None  # in cores, of its own quota; None: none, or not known
    periods: tuple[int, int] | None = None
    memory_used: int | None = None
    memory_limit: int | None = None
    memory_failures: int | None = None  # how often an allocation met the limit
    oom_kills: int | None = None
    major_faults: int | None = None
    disk: Traffic = Traffic()
    cpu_stalled: float | None = None
    memory_stalled: float | None = None
    disk_stalled: float | None = None


def cgroup_use(where: Folders, read: Callable[[str], str | None] = read_text) -> CgroupUse:
    """Read each value from the cgroup hierarchy that provides it; None if no hierarchy does."""

    def text(controller: str, name: str) -> str | None:
        return read(f"{where[controller]}/{name}") if controller in where else None

    seconds, cpu_source = _cpu(text)
    memory, memory_source = memory_use(text)
    return CgroupUse(
        sources=frozenset(source for source in (cpu_source, memory_source) if source),
        cpu_seconds=seconds,
        cpus_limit=_quota(text),
        periods=_periods(text("cpu", "cpu.stat")) or _periods(text(UNIFIED, "cpu.stat")),
        memory_used=memory.used,
        memory_limit=memory.limit,
        memory_failures=memory.failures,
        oom_kills=memory.oom_kills,
        major_faults=memory.major_faults,
        disk=_disk(text),
        cpu_stalled=stalled_seconds(text(UNIFIED, "cpu.pressure")),
        memory_stalled=stalled_seconds(text(UNIFIED, "memory.pressure")),
        disk_stalled=stalled_seconds(text(UNIFIED, "io.pressure")),
    )


def _cpu(text: Text) -> tuple[float | None, str]:
    # Most hosts mount cpu and cpuacct together, and then either folder has the file.
    nanoseconds = number(text("cpuacct", "cpuacct.usage") or text("cpu", "cpuacct.usage"))
    if nanoseconds is not None:
        return nanoseconds / 1e9, "cgroup1"
    microseconds = keyed(text(UNIFIED, "cpu.stat")).get("usage_usec")
    return (None, "") if microseconds is None else (microseconds / 1e6, "cgroup2")


def cpus_limit(text: Text) -> float | None:
    """Cores of its own quota alone: what the groups above it have is theirs to share. Infinite: no limit."""
    quota, period = text("cpu", "cpu.cfs_quota_us"), text("cpu", "cpu.cfs_period_us")
    if number(period) is None:
        quota, _, period = (text(UNIFIED, "cpu.max") or "").partition(" ")
    if (quota or "").strip() in ("max", "-1"):
        return inf
    amount, span = number(quota), number(period)
    return amount / span if amount is not None and span else None


def _quota(text: Text) -> float | None:
    return limit if (limit := cpus_limit(text)) and limit < inf else None


class MemoryUse(Struct, frozen=True, kw_only=True):
    """`used` is the working set, which a limit cannot get back: all but the idle part of the page cache."""

    used: int | None = None
    limit: int | None = None
    failures: int | None = None
    oom_kills: int | None = None
    major_faults: int | None = None


def memory_use(text: Text) -> tuple[MemoryUse, str]:
    used = number(text("memory", "memory.usage_in_bytes"))
    if used is not None:
        stat = keyed(text("memory", "memory.stat"))
        return MemoryUse(
            used=max(0, used - stat.get("total_inactive_file", 0)),
            limit=_limit(stat.get("hierarchical_memory_limit")),
            failures=_most(number(text("memory", name)) for name in ("memory.failcnt", "memory.memsw.failcnt")),
            oom_kills=keyed(text("memory", "memory.oom_control")).get("oom_kill"),
            major_faults=_read_again(stat, "total_"),
        ), "cgroup1"
    used = number(text(UNIFIED, "memory.current"))
    if used is None:
        return MemoryUse(), ""
    stat = keyed(text(UNIFIED, "memory.stat"))
    events = keyed(text(UNIFIED, "memory.events"))
    met = [events[name] for name in ("max", "high") if name in events]
    return MemoryUse(
        used=max(0, used - stat.get("inactive_file", 0)),
        limit=_limit(number(text(UNIFIED, "memory.max"))),
        failures=sum(met) if met else None,
        oom_kills=events.get("oom_kill"),
        major_faults=_read_again(stat, ""),
    ), "cgroup2"


def _most(counters: Iterable[int | None]) -> int | None:
    """Where memory and swap share a limit the kernel counts with the second; newer ones with neither."""
    return max((counter for counter in counters if counter is not None), default=None)


def _read_again(stat: Mapping[str, int], prefix: str) -> int | None:
    """Pages that were dropped and missed, where they are told apart from those that were read for the first time."""
    refaults = [stat.get(f"{prefix}workingset_refault_{kind}") for kind in ("file", "anon")]
    told = [count for count in refaults if count is not None]
    return sum(told) if told else stat.get(f"{prefix}pgmajfault")


def _limit(limit: int | None) -> int | None:
    return limit if limit is not None and limit < _NO_LIMIT else None


def _periods(cpu_stat: str | None) -> tuple[int, int] | None:
    stat = keyed(cpu_stat)
    return (stat["nr_throttled"], stat["nr_periods"]) if {"nr_throttled", "nr_periods"} <= stat.keys() else None


def _disk(text: Text) -> Traffic:
    if (stat := text(UNIFIED, "io.stat")) is not None:
        return _of_disks(io_traffic(stat))
    for name in ("blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_service_bytes"):
        if devices := blkio_traffic(text("blkio", name) or ""):
            return _of_disks(devices)
    return Traffic()  # of version 1 no device may also mean that this kernel does not count: processes are asked


def io_traffic(io_stat: str) -> dict[str, Traffic]:
    """By device (`8:0`), from version 2's io.stat."""
    devices = {}
    for line in io_stat.splitlines():
        device, *fields = line.split() or [""]
        numbers = dict(field.partition("=")[::2] for field in fields)
        if "rbytes" in numbers and "wbytes" in numbers:
            devices[device] = Traffic(number(numbers["rbytes"]), number(numbers["wbytes"]))
    return devices


def blkio_traffic(service_bytes: str) -> dict[str, Traffic]:
    """By device, from version 1's blkio files."""
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    for line in service_bytes.splitlines():
        fields = line.split()
        if len(fields) == 3 and fields[1] in ("Read", "Write"):
            (read if fields[1] == "Read" else written)[fields[0]] = number(fields[2]) or 0
    return {device: Traffic(read.get(device, 0), written.get(device, 0)) for device in read | written}


def _of_disks(devices: Mapping[str, Traffic]) -> Traffic:
    """A cgroup that never touched a disk has an empty file, which is a known 0."""
    return Traffic.sum([Traffic(0, 0), *(traffic for device, traffic in devices.items() if not _is_stacked(device))])


@lru_cache(maxsize=1024)
def _is_stacked(device: str) -> bool:
    """A device made of others (LVM, RAID, crypt): its bytes are counted again in those."""
    try:
        return bool(os.listdir(f"/sys/dev/block/{device}/slaves"))
    except OSError:
        return False
