"""Holds a run to its CPU and memory by control groups, if this host lets us create them.

Version 1: `<root>/cpu/weft/<owner>/<run>` and `<root>/memory/weft/<owner>/<run>`, if the folders are writable.
In both versions the number of a run's processes is bounded, too, if the controller `pids` is available.
Version 2: `weft/<owner>/<run>` below our own group, if it was delegated to us with the cpu and memory controllers; we
then move into `weft-executor` beside it, because a group with processes may not delegate controllers.
Neither: `NoCgroups`, and the node reports what it does not enforce. A run's groups are `{controller: folder}`.
"""

import logging
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from weftd.executor.runs import Limits
from weftd.executor.runtime.limits.groups import Groups, change, get, oom_kills, put, read_limits, write
from weftd.executor.thinking.pinning import Pin

logger = logging.getLogger(__name__)

KILL_ROUNDS_MAX = 20
PIDS_MAX = 8192  # of one run
PID_MIN, PID_MAX = 2, 1 << 22  # the kernel gives no higher number; a signal to group 1 would reach every process


class Cgroups(Protocol):
    not_enforced: tuple[str, ...]

    def create(self, name: str, limits: Limits, pin: Pin | None = None) -> dict[str, str]:
        """The groups of a new run, with its pin if this host has the controller `cpuset`. Raises OSError."""

    def limit(self, groups: Groups, limits: Limits) -> str:
        """Change the limits. Empty, or which limits stay as they were, and why: such as less memory than is in use."""

    def limits(self, groups: Groups) -> Limits:
        """The current limits."""

    def oom_kills(self, groups: Groups) -> int:
        """How many processes of the groups the kernel killed for memory."""

    def kill(self, groups: Groups) -> None:
        """SIGKILL every process inside."""

    def names(self) -> dict[str, dict[str, str]]:
        """All groups of this owner, by the name of their run."""

    def close(self) -> None:
        """Remove the owner's folders, unless there are runs in them."""


def find_cgroups(
    owner: str, *, root: Path = Path("/sys/fs/cgroup"), own: str | None = None, pids_max: int = PIDS_MAX
) -> Cgroups:
    """The groups that this host allows. `owner` must be unique on the host. `own` is the text of /proc/self/cgroup.

    `pids_max`: how many processes and threads a run may have.
    """
    if (root / "cpu" / "cpu.cfs_quota_us").exists() or (root / "cpu" / "cgroup.procs").exists():
        return CgroupsV1.open(root, owner, pids_max=pids_max) or NoCgroups()
    if (root / "cgroup.controllers").exists():
        return CgroupsV2.open(root, owner, own=own, pids_max=pids_max) or NoCgroups()
    return NoCgroups()


class NoCgroups:
    not_enforced: tuple[str, ...] = ("cpus", "memory")

    def create(self, name: str, limits: Limits, pin: Pin | None = None) -> dict[str, str]:
        return {}

    def limit(self, groups: Groups, limits: Limits) -> str:
        return "this host does not allow new control groups"

    def limits(self, groups: Groups) -> Limits:
        return Limits()

    def oom_kills(self, groups: Groups) -> int:
        return 0

    def kill(self, groups: Groups) -> None:
        pass

    def names(self) -> dict[str, dict[str, str]]:
        return {}

    def close(self) -> None:
        pass


class CgroupsV1:
    not_enforced: tuple[str, ...] = ()

    def __init__(self, folders: dict[str, Path], pids_max: int) -> None:
        self._folders = folders
        self._pids_max = pids_max

    @classmethod
    def open(cls, root: Path, owner: str, *, pids_max: int) -> "CgroupsV1 | None":
        folders = {controller: root / controller / "weft" / owner for controller in ("cpu", "memory")}
        try:
            for folder in folders.values():
                folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        if (root / "pids" / "cgroup.procs").exists():
            with suppress(OSError):
                (root / "pids" / "weft" / owner).mkdir(parents=True, exist_ok=True)
                folders["pids"] = root / "pids" / "weft" / owner
        if (root / "cpuset" / "cgroup.procs").exists():
            with suppress(OSError):
                folders["cpuset"] = _cpuset_folder(root / "cpuset", owner)
        return cls(folders, pids_max)

    def create(self, name: str, limits: Limits, pin: Pin | None = None) -> dict[str, str]:
        groups = {
            controller: f"{folder}/{name}"
            for controller, folder in self._folders.items()
            if controller != "cpuset" or pin is not None
        }
        for group in groups.values():
            try:
                os.mkdir(group)
            except FileExistsError:
                pass
            except FileNotFoundError:
                os.makedirs(group, exist_ok=True)
        write(groups, limits)
        _bound_pids(groups.get("pids"), self._pids_max)
        if pin is not None and "cpuset" in groups:
            # In version 1 a group without CPUs and memory takes no process.
            memory = pin.memory or get(str(self._folders["cpuset"]), "cpuset.mems").strip()
            if not _pinned(groups["cpuset"], Pin(cpus=pin.cpus, memory=memory)):
                remove({"cpuset": groups.pop("cpuset")})
        return groups

    def limit(self, groups: Groups, limits: Limits) -> str:
        return change(groups, limits)

    def limits(self, groups: Groups) -> Limits:
        return read_limits(groups)

    def oom_kills(self, groups: Groups) -> int:
        return oom_kills(groups)

    def kill(self, groups: Groups) -> None:
        kill(groups)

    def names(self) -> dict[str, dict[str, str]]:
        return _names(self._folders)

    def close(self) -> None:
        remove({controller: str(folder) for controller, folder in self._folders.items()})


class CgroupsV2:
    not_enforced: tuple[str, ...] = ()

    def __init__(self, folder: Path, pids_max: int) -> None:
        self._folder = folder
        self._pids_max = pids_max

    @classmethod
    def open(cls, root: Path, owner: str, *, own: str | None = None, pids_max: int) -> "CgroupsV2 | None":
        try:
            text = Path("/proc/self/cgroup").read_text() if own is None else own
            path = next(line[3:] for line in text.splitlines() if line.startswith("0::"))
            base = root / path.strip("/")
            base = base.parent if base.name == "weft-executor" else base
            if not {"cpu", "memory"} <= set(get(str(base), "cgroup.controllers").split()):
                return None
            if not {"cpu", "memory"} <= set(get(str(base), "cgroup.subtree_control").split()):
                leaf = base / "weft-executor"
                leaf.mkdir(exist_ok=True)
                put(str(leaf), "cgroup.procs", 0)
            folder = base / "weft" / owner
            folder.mkdir(parents=True, exist_ok=True)
            for parent in (base, base / "weft", folder):
                offered = get(str(parent), "cgroup.controllers").split()
                put(str(parent), "cgroup.subtree_control", "+cpu +memory" + " +pids" * ("pids" in offered))
                if "cpuset" in offered:
                    with suppress(OSError):  # runs are then not pinned
                        put(str(parent), "cgroup.subtree_control", "+cpuset")
        except (OSError, StopIteration):
            return None
        return cls(folder, pids_max)

    def create(self, name: str, limits: Limits, pin: Pin | None = None) -> dict[str, str]:
        groups = {"unified": f"{self._folder}/{name}"}
        with suppress(FileExistsError):
            os.mkdir(groups["unified"])
        write(groups, limits)
        _bound_pids(groups["unified"], self._pids_max)
        if pin is not None:
            _pinned(groups["unified"], pin)
        return groups

    def limit(self, groups: Groups, limits: Limits) -> str:
        return change(groups, limits)

    def limits(self, groups: Groups) -> Limits:
        return read_limits(groups)

    def oom_kills(self, groups: Groups) -> int:
        return oom_kills(groups)

    def kill(self, groups: Groups) -> None:
        kill(groups)

    def names(self) -> dict[str, dict[str, str]]:
        return _names({"unified": self._folder})

    def close(self) -> None:
        remove({"unified": str(self._folder)})


def _cpuset_folder(root: Path, owner: str) -> Path:
    """The owner's folder of the controller `cpuset` in version 1, with all CPUs and memory of the root. Raises
    OSError."""
    folder = root
    for part in ("weft", owner):
        above, folder = folder, folder / part
        folder.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            if not get(str(folder), name).strip():
                put(str(folder), name, get(str(above), name).strip())
    return folder


def _pinned(group: str, pin: Pin) -> bool:
    """Pin a group to CPUs and memory; False if the host does not let us."""
    try:
        put(group, "cpuset.cpus", pin.cpus)
        if pin.memory:
            put(group, "cpuset.mems", pin.memory)
    except OSError as error:
        logger.warning("a run is not pinned to CPUs %s and the memory of NUMA node %s: %s", pin.cpus, pin.memory, error)
        return False
    return True


def _bound_pids(group: str | None, pids_max: int) -> None:
    """Bound the number of processes, if the kernel and the delegated group offer that. Raises OSError."""
    if group is not None:
        with suppress(FileNotFoundError):
            put(group, "pids.max", pids_max)


def kill(groups: Groups) -> None:
    """SIGKILL every process inside, in either version."""
    if "unified" in groups:
        with suppress(OSError):
            put(groups["unified"], "cgroup.kill", 1)
    elif "memory" in groups:
        for _ in range(KILL_ROUNDS_MAX):  # A process forked meanwhile is in the next list.
            pids = get(groups["memory"], "cgroup.procs").split()
            if not pids:
                return
            for pid in pids:  # 0 is a process of another namespace, and as a number it would mean our own group.
                if pid.isdecimal() and PID_MIN <= int(pid) <= PID_MAX:
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(int(pid), signal.SIGKILL)


def members(groups: Groups) -> set[int]:
    """The pids of the processes inside."""
    pids = {pid for group in groups.values() for pid in get(group, "cgroup.procs").split()}
    return {int(pid) for pid in pids if pid.isdecimal() and PID_MIN <= int(pid) <= PID_MAX}


def occupied(groups: Groups) -> bool:
    """True if any process is inside."""
    return any(get(group, "cgroup.procs").strip() for group in groups.values())


def remove(groups: Groups) -> bool:
    """Remove the groups. False while a process inside is still dying: try again."""
    gone = True
    for group in groups.values():
        try:
            os.rmdir(group)
        except FileNotFoundError:
            pass
        except OSError:
            gone = False
    return gone


def _names(folders: Mapping[str, Path]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for controller, folder in folders.items():
        with suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    found.setdefault(entry.name, {})[controller] = entry.path
    return found
