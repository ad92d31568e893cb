"""The node's capacity: CPUs and memory within the limits of its own cgroup, and its GPUs."""

import os
from pathlib import Path

from weft.domain.cluster import Capacity, Gpu


def capacity(
    *, gpus: tuple[Gpu, ...], cpus: float = 0.0, memory: int = 0, root: Path = Path("/sys/fs/cgroup")
) -> Capacity:
    """The capacity. `cpus` and `memory`: 0 reads the host; any other value is what the owner declares."""
    return Capacity(cpus=cpus or host_cpus(root), memory=memory or host_memory(root), gpus=gpus)


def host_cpus(root: Path) -> float:
    try:
        count = float(len(os.sched_getaffinity(0)))
    except AttributeError:  # not on Linux
        count = float(os.cpu_count() or 1)
    match _words(root / "cpu.max"):
        case [quota, period] if quota != "max":
            return min(count, int(quota) / int(period))
    match _words(root / "cpu" / "cpu.cfs_quota_us"), _words(root / "cpu" / "cpu.cfs_period_us"):
        case [quota], [period] if int(quota) > 0:
            return min(count, int(quota) / int(period))
    return count


def host_memory(root: Path) -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in (root / "memory.max", root / "memory" / "memory.limit_in_bytes"):
        match _words(path):
            case [limit] if limit != "max":
                total = min(total, int(limit))
    return total


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
