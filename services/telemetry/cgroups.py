"""What a run uses, from its cgroup: version 2, version 1, or both side by side as some hosts have them.

Known limits of version 1: it counts only writes that bypass the page cache, and keeps no pressure.
"""

import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeAlias

from msgspec import Struct

from services.telemetry.counters import Traffic, keyed, stalled_seconds
from services.telemetry.files import read_text

UNIFIED = ""
"""What version 2 is called among the controllers, as in /proc/<pid>/cgroup."""

Folders: TypeAlias = Mapping[str, str]
"""A run's folder in each hierarchy, by controller."""

_USED = frozenset({UNIFIED, "cpu", "cpuacct", "memory", "blkio"})
_NO_LIMIT = 1 << 60  # version 1 writes "no limit" as the largest number of whole pages


class Mount(Struct, frozen=True):
    """Where a hierarchy is to be seen, and which of its folders is seen there as the topmost."""

    point: str
    root: str


class CgroupUse(Struct, frozen=True, kw_only=True):
    """Counters of one cgroup. `periods`: those in which it was held back, and all. Stalled times in seconds."""

    sources: frozenset[str] = frozenset()
    cpu_seconds: float | None = None
    periods: tuple[int, int] | None = None
    memory_used: int | None = None
    memory_limit: int | None = None
    disk: Traffic = Traffic()
    cpu_stalled: float | None = None
    memory_stalled: float | None = None
    disk_stalled: float | None = None


def mounts(mountinfo: str) -> dict[str, Mount]:
    """The hierarchies of /proc/self/mountinfo, by controller."""
    found: dict[str, Mount] = {}
    for line in mountinfo.splitlines():
        place, dash, kind = line.partition(" - ")
        fields, options = place.split(), kind.split()
        if not dash or len(fields) < 5 or len(options) < 3:
            continue
        mount = Mount(point=_plain(fields[4]), root=_plain(fields[3]))
        if options[0] == "cgroup2":
            found.setdefault(UNIFIED, mount)
        elif options[0] == "cgroup":
            for option in options[2].split(","):
                found.setdefault(option, mount)
    return {controller: mount for controller, mount in found.items() if controller in _USED}


def _plain(path: str) -> str:
    return path.replace("\\040", " ")


def memberships(proc_cgroup: str) -> dict[str, str]:
    """Where a process belongs, from /proc/<pid>/cgroup, by controller."""
    paths = {}
    for line in proc_cgroup.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            if controller in _USED:
                paths[controller] = path
    return paths


def folders(paths: Mapping[str, str], mounted: Mapping[str, Mount]) -> dict[str, str]:
    """Where those can be read. The topmost folder is nobody's own, and one outside of what is mounted is not seen."""
    seen = {}
    for controller, path in paths.items():
        mount = mounted.get(controller)
        if mount is None or path == "/" or "/../" in f"{path}/":
            continue
        root = mount.root.rstrip("/")
        if path != root and path.startswith(f"{root}/"):
            seen[controller] = mount.point + path.removeprefix(root)
    return seen


def cgroup_use(where: Folders, read: Callable[[str], str | None] = read_text) -> CgroupUse:
    """Each measure from the hierarchy that has it. What none has is None."""

    def text(controller: str, name: str) -> str | None:
        return read(f"{where[controller]}/{name}") if controller in where else None

    seconds, cpu_source = _cpu(text)
    used, limit, memory_source = _memory(text)
    return CgroupUse(
        sources=frozenset(source for source in (cpu_source, memory_source) if source),
        cpu_seconds=seconds,
        periods=_periods(text("cpu", "cpu.stat")) or _periods(text(UNIFIED, "cpu.stat")),
        memory_used=used,
        memory_limit=limit,
        disk=_disk(text),
        cpu_stalled=stalled_seconds(text(UNIFIED, "cpu.pressure")),
        memory_stalled=stalled_seconds(text(UNIFIED, "memory.pressure")),
        disk_stalled=stalled_seconds(text(UNIFIED, "io.pressure")),
    )


def processes_in(where: Folders, read: Callable[[str], str | None] = read_text) -> list[int] | None:
    """The pids in a cgroup; None where it has no folder of its own."""
    for folder in where.values():
        pids = read(f"{folder}/cgroup.procs")
        if pids is not None:
            return [int(pid) for pid in pids.split()]
    return None


_Text: TypeAlias = Callable[[str, str], str | None]


def _cpu(text: _Text) -> tuple[float | None, str]:
    # Most hosts mount cpu and cpuacct together, and then either folder has the file.
    nanoseconds = _number(text("cpuacct", "cpuacct.usage") or text("cpu", "cpuacct.usage"))
    if nanoseconds is not None:
        return nanoseconds / 1e9, "cgroup1"
    microseconds = keyed(text(UNIFIED, "cpu.stat")).get("usage_usec")
    return (None, "") if microseconds is None else (microseconds / 1e6, "cgroup2")


def _memory(text: _Text) -> tuple[int | None, int | None, str]:
    """The working set, which is what a limit cannot get back: all that is used but the idle part of the page cache."""
    used = _number(text("memory", "memory.usage_in_bytes"))
    if used is not None:
        stat = keyed(text("memory", "memory.stat"))
        return (
            max(0, used - stat.get("total_inactive_file", 0)),
            _limit(stat.get("hierarchical_memory_limit")),
            "cgroup1",
        )
    used = _number(text(UNIFIED, "memory.current"))
    if used is None:
        return None, None, ""
    stat = keyed(text(UNIFIED, "memory.stat"))
    return max(0, used - stat.get("inactive_file", 0)), _limit(_number(text(UNIFIED, "memory.max"))), "cgroup2"


def _limit(limit: int | None) -> int | None:
    return limit if limit is not None and limit < _NO_LIMIT else None


def _periods(cpu_stat: str | None) -> tuple[int, int] | None:
    stat = keyed(cpu_stat)
    return (stat["nr_throttled"], stat["nr_periods"]) if {"nr_throttled", "nr_periods"} <= stat.keys() else None


def _disk(text: _Text) -> Traffic:
    if (stat := text(UNIFIED, "io.stat")) is not None:
        return _of_disks(io_traffic(stat))
    for name in ("blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_service_bytes"):
        if (stat := text("blkio", name)) is not None:
            return _of_disks(blkio_traffic(stat))
    return Traffic()


def io_traffic(io_stat: str) -> dict[str, Traffic]:
    """By device (`8:0`), from version 2's io.stat."""
    devices = {}
    for line in io_stat.splitlines():
        device, *fields = line.split() or [""]
        numbers = dict(field.partition("=")[::2] for field in fields)
        if "rbytes" in numbers and "wbytes" in numbers:
            devices[device] = Traffic(int(numbers["rbytes"]), int(numbers["wbytes"]))
    return devices


def blkio_traffic(service_bytes: str) -> dict[str, Traffic]:
    """By device, from version 1's blkio files."""
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    for line in service_bytes.splitlines():
        fields = line.split()
        if len(fields) == 3 and fields[1] in ("Read", "Write"):
            (read if fields[1] == "Read" else written)[fields[0]] = int(fields[2])
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


def _number(text: str | None) -> int | None:
    """None also for version 2's `max`."""
    return int(text) if text is not None and text.strip().isdecimal() else None
