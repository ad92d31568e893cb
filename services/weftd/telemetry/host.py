"""The node itself: CPUs, memory, the disk of its runs, network, and how long its tasks wait for them."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from weft.cgroups.counters import Traffic, number, stalled_seconds
from weft.cgroups.files import read_text
from weftd.telemetry.counters import interfaces
from weftd.telemetry.thinking.readings import HostReading

_SECTOR_BYTES = 512  # the unit of /proc/diskstats, whatever the disk's own sectors are


def cpu_seconds(stat: str, ticks_per_second: int) -> float | None:
    """Busy seconds of all CPUs, from /proc/stat. `user` includes guests already; waiting is not busy time, and neither
    is time that a hypervisor stole for another machine."""
    for line in stat.splitlines():
        if line.startswith("cpu "):
            user, nice, system, _idle, _waiting, hard, soft = (
                [number(field) or 0 for field in line.split()[1:8]] + [0] * 7
            )[:7]
            return (user + nice + system + hard + soft) / ticks_per_second
    return None


def memory_total_and_used(meminfo: str) -> tuple[int, int]:
    """Total and used memory. Used: total less available (old kernels report only free memory)."""
    kilobytes = {}
    for line in meminfo.splitlines():
        name, _, value = line.partition(":")
        kilobytes[name] = number(value.removesuffix("kB")) or 0
    total = kilobytes.get("MemTotal", 0)
    free = kilobytes.get("MemAvailable", kilobytes.get("MemFree", 0))
    return total * 1024, (total - free) * 1024


def disk_traffic(diskstats: str) -> Traffic:
    """The traffic of all disks. A partition is counted in its disk, a stacked device in the disks below it."""
    disks: set[str] = set()
    read = written = 0
    for line in diskstats.splitlines():
        fields = line.split()
        if len(fields) < 10 or not _is_disk(fields[2], disks):
            continue
        disks.add(fields[2])
        read += number(fields[5]) or 0
        written += number(fields[9]) or 0
    return Traffic(read * _SECTOR_BYTES, written * _SECTOR_BYTES) if disks else Traffic()


def _is_disk(name: str, disks: set[str]) -> bool:
    if name.startswith(("loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd")):
        return False
    # Partitions follow their disk: sda1 after sda, nvme0n1p2 after nvme0n1.
    whole = name.rstrip("0123456789")
    return whole not in disks and whole.removesuffix("p") not in disks


def network_traffic(net_dev: str) -> Traffic:
    """The traffic of all interfaces but the loopback and those that only pass on the traffic of another one."""
    counted = [
        traffic for name, traffic in interfaces(net_dev) if name != "lo" and "." not in name and not _is_stacked(name)
    ]
    return Traffic.sum(counted)


def _is_stacked(name: str) -> bool:
    return name.startswith(
        ("docker", "br-", "veth", "virbr", "ifb", "bond", "team", "vlan", "tun", "tap", "wg", "cni", "flannel", "cali")
    )


def read_host(*, disk: Path, proc: str = "/proc", clock: Callable[[], float] = time.monotonic) -> HostReading:
    """Read the node's counters. `disk`: a path in the file system to report, where the node keeps its runs."""
    total, used = memory_total_and_used(read_text(f"{proc}/meminfo") or "")
    disk_total, disk_used = _space(disk)
    return HostReading(
        at=clock(),
        cpus=os.cpu_count() or 1,
        cpu_seconds=cpu_seconds(read_text(f"{proc}/stat") or "", os.sysconf("SC_CLK_TCK")),
        memory_total=total,
        memory_used=used,
        disk_total=disk_total,
        disk_used=disk_used,
        disk=disk_traffic(read_text(f"{proc}/diskstats") or ""),
        network=network_traffic(read_text(f"{proc}/1/net/dev") or read_text(f"{proc}/net/dev") or ""),
        cpu_stalled=stalled_seconds(read_text(f"{proc}/pressure/cpu")),
        memory_stalled=stalled_seconds(read_text(f"{proc}/pressure/memory")),
        disk_stalled=stalled_seconds(read_text(f"{proc}/pressure/io")),
    )


def _space(disk: Path) -> tuple[int, int]:
    try:
        space = os.statvfs(disk)
    except OSError:
        return 0, 0
    return space.f_blocks * space.f_frsize, (space.f_blocks - space.f_bfree) * space.f_frsize
