"""Where a run's cgroups are: of version 2, version 1, or both side by side as some hosts have them."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from msgspec import Struct

from weft.cgroups.counters import number
from weft.cgroups.files import read_text

UNIFIED = ""
"""What version 2 is called among the controllers, as in /proc/<pid>/cgroup."""

Folders: TypeAlias = Mapping[str, str]
"""A run's folder in each hierarchy, by controller."""

_USED = frozenset({UNIFIED, "cpu", "cpuacct", "memory", "blkio"})


class Mount(Struct, frozen=True):
    """Where a hierarchy is to be seen, and which of its folders is seen there as the topmost."""

    point: str
    root: str


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


def processes_in(where: Folders, read: Callable[[str], str | None] = read_text) -> list[int] | None:
    """The pids in a cgroup; None where it has no folder of its own."""
    for folder in where.values():
        pids = read(f"{folder}/cgroup.procs")
        if pids is not None:
            return [pid for pid in map(number, pids.split()) if pid is not None]
    return None


def threads_in(where: Folders, read: Callable[[str], str | None] = read_text) -> list[int] | None:
    """The threads in a cgroup; None where it has no folder of its own."""
    for controller, folder in where.items():
        threads = read(f"{folder}/{'cgroup.threads' if controller == UNIFIED else 'tasks'}")
        if threads is not None:
            return [thread for thread in map(number, threads.split()) if thread is not None]
    return None
