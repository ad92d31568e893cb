"""Reads and changes limits in the files of control groups, of both versions, without a container engine.

A run's groups are `{controller: folder}`: `cpu` and `memory` in version 1, `unified` in version 2.
"""

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path

from weft.cgroups.counters import keyed, number
from weft.cgroups.places import UNIFIED
from weft.cgroups.use import Text, cpus_limit, memory_use
from weftd.executor.files.regular import READ
from weftd.executor.runs import Limits
from weftd.executor.thinking.rounding import CPU_STEPS, quota

SHRINK_TENTHS = 11  # the memory limit is not set below this many tenths of the memory in use
MEMORY_WITHOUT_END = 1 << 63
BYTES_MAX = 16 << 20  # of one file, such as the pids in a group
CHUNK_BYTES = 64 << 10
ABSENT = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})

Groups = Mapping[str, str]


def is_of(pid: int, name: str, *, proc: Path = Path("/proc")) -> bool:
    """True if this host shows the process in a group of this name: its number is not that of another one, as where
    this executor has process numbers of its own."""
    try:
        return name in (proc / str(pid) / "cgroup").read_text()
    except OSError:
        return False


def find_groups(pid: int, name: str, *, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> Groups:
    """The groups of a process with `name` in the path: those of a container, by its id.

    Empty if they are out of reach, or if the process has ended and its pid is reused.
    """
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        inside = _as_far_as(path, name)
        if inside is None:
            continue
        for controller in controllers.split(",") if controllers else ["unified"]:
            probe = {"cpu": "cpu.cfs_quota_us", "memory": "memory.limit_in_bytes", "unified": "memory.max"}
            for mounted in (controllers, controller) if controllers else ("", "unified"):
                folder = f"{root / mounted}{inside}"
                if controller in probe and os.access(f"{folder}/{probe[controller]}", os.W_OK):
                    found[controller] = folder
    if "unified" in found:
        return {"unified": found["unified"]}
    return found if found.keys() == {"cpu", "memory"} else {}


def read_limits(groups: Groups) -> Limits:
    """The current limits; None for a limit that cannot be read."""
    text = _reader(groups)
    limit = text("memory", "memory.limit_in_bytes") or text(UNIFIED, "memory.max") or ""
    return Limits(cpus=cpus_limit(text), memory=MEMORY_WITHOUT_END if limit.strip() == "max" else number(limit))


def working_set(groups: Groups) -> int | None:
    """Memory that cannot just be dropped, in bytes: without the inactive page cache."""
    return memory_use(_reader(groups))[0].used


def too_tight(used: int | None, memory: int) -> str:
    """Why the memory in use does not fit into `memory`; empty if it fits or is unknown."""
    if used is None or used * SHRINK_TENTHS <= memory * 10:
        return ""
    return f"memory {memory}: it uses {used} bytes now, and needs {SHRINK_TENTHS / 10:g} times that"


def change(groups: Groups, limits: Limits) -> str:
    """Change limits. Empty, or which limits stay as they were, and why. CPU and memory are independent."""
    if not groups:
        return "its control groups are out of reach"
    reasons = []
    if limits.cpus is not None:
        reasons.append(_written(groups, Limits(cpus=limits.cpus), f"cpus {limits.cpus:g}"))
    if limits.memory is not None:
        has = read_limits(groups).memory
        smaller = has is not None and limits.memory < has
        why = too_tight(working_set(groups), limits.memory) if smaller else ""
        reasons.append(why or _written(groups, Limits(memory=limits.memory), f"memory {limits.memory}"))
    return "; ".join(why for why in reasons if why)


def write(groups: Groups, limits: Limits) -> None:
    """Write limits. Raises OSError. Memory and swap go together: a run has no swap beyond its memory."""
    if "unified" in groups:
        _write_v2(groups["unified"], limits)
        return
    if limits.cpus is not None:
        put(groups["cpu"], "cpu.cfs_period_us", CPU_STEPS)
        put(groups["cpu"], "cpu.cfs_quota_us", quota(limits.cpus))
    if limits.memory is not None:
        # The limit with swap may never be lower than that without; it is absent if the kernel does not count swap.
        has = number(get(groups["memory"], "memory.limit_in_bytes"))
        names = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
        for name in names if has is None or limits.memory <= has else reversed(names):
            with suppress(FileNotFoundError) if "memsw" in name else nullcontext():
                put(groups["memory"], name, limits.memory)


def _write_v2(group: str, limits: Limits) -> None:
    if limits.cpus is not None:
        put(group, "cpu.max", f"{quota(limits.cpus)} {CPU_STEPS}")
    if limits.memory is not None:
        put(group, "memory.max", limits.memory)
        with suppress(OSError):
            put(group, "memory.swap.max", 0)


def _written(groups: Groups, limits: Limits, what: str) -> str:
    try:
        write(groups, limits)
    except OSError as error:
        if error.errno == errno.EBUSY:
            return f"{what}: the kernel could not reclaim that much used memory"
        return f"{what}: {error.strerror}"
    return ""


def put(group: str, name: str, value: str | int) -> None:
    """Write one value. Raises OSError. A pipe or link that a job put in place of a group does not block it."""
    fd = os.open(f"{group}/{name}", os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        os.write(fd, str(value).encode())
    finally:
        os.close(fd)


def get(group: str, name: str) -> str:
    """The text of a group's file. Empty if it is missing, gone, or no file of a control group. Raises OSError."""
    try:
        fd = os.open(f"{group}/{name}", READ)
    except OSError as error:
        if error.errno in ABSENT:
            return ""
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return b"".join(_chunks(fd)).decode("ascii", errors="replace")
    except OSError as error:
        if error.errno in ABSENT:
            return ""
        raise
    finally:
        os.close(fd)


def _chunks(fd: int) -> Iterator[bytes]:
    """Raises OSError."""
    left = BYTES_MAX
    while left > 0 and (chunk := os.read(fd, min(left, CHUNK_BYTES))):
        left -= len(chunk)
        yield chunk


def counter(group: str | None, name: str, field: str) -> int:
    """One number of a file whose lines are `field number`."""
    return 0 if group is None else keyed(get(group, name)).get(field, 0)


def oom_kills(groups: Groups) -> int:
    """How many processes of the groups the kernel killed for memory, in either version."""
    if "unified" in groups:
        return counter(groups["unified"], "memory.events", "oom_kill")
    return counter(groups.get("memory"), "memory.oom_control", "oom_kill")


def _reader(groups: Groups) -> Text:
    """The function with which `weft.cgroups` reads these groups."""

    def text(controller: str, name: str) -> str | None:
        group = groups.get(controller or "unified")
        return None if group is None else get(group, name) or None

    return text


def _as_far_as(path: str, name: str) -> str | None:
    """The cgroup path up to the component that contains `name`; a container may have nested groups."""
    parts = path.split("/")
    for place, part in enumerate(parts):
        if name and name in part:
            return "/".join(parts[: place + 1])
    return None
