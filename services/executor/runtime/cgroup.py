"""Holds a run to its CPU and memory by control groups, where this host lets us make some.

Version 1: `<root>/cpu/weft/<owner>/<run>` and `<root>/memory/weft/<owner>/<run>`, if the folders are writable.
Version 2: `weft/<owner>/<run>` below our own group, if it was delegated to us with the cpu and memory controllers; we
then move into `weft-executor` beside it, because a group with processes may not hand out controllers.
Neither: `NoCgroups`, and the node says what it does not enforce. A run's groups are `{controller: folder}`.
"""

import errno
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from services.executor.runtime import Limits

PERIOD_MICROSECONDS = 100_000
QUOTA_MICROSECONDS_MIN = 1_000
KILL_ROUNDS_MAX = 20
SHRINK_ROOM = 1.1  # memory is not shrunk below this many times what is in use

Groups = Mapping[str, str]


class Cgroups(Protocol):
    not_enforced: tuple[str, ...]

    def create(self, name: str, limits: Limits) -> dict[str, str]:
        """The groups of a new run. Raises OSError."""

    def limit(self, groups: Groups, limits: Limits) -> bool:
        """Change the limits; False where a limit cannot be held, such as less memory than is in use."""

    def oom_killed(self, groups: Groups) -> bool:
        """Did the kernel kill something in there for memory?"""

    def kill(self, groups: Groups) -> None:
        """SIGKILL to everything inside."""

    def names(self) -> dict[str, dict[str, str]]:
        """All groups there are of this owner, by the name of their run."""

    def close(self) -> None:
        """Remove the owner's folders, unless there are runs in them."""


def find_cgroups(owner: str, *, root: Path = Path("/sys/fs/cgroup"), own: str | None = None) -> Cgroups:
    """What this host allows. Nobody else on it may be the same `owner`. `own` is the text of /proc/self/cgroup."""
    if (root / "cpu" / "cpu.cfs_quota_us").exists() or (root / "cpu" / "cgroup.procs").exists():
        return CgroupsV1.open(root, owner) or NoCgroups()
    if (root / "cgroup.controllers").exists():
        return CgroupsV2.open(root, owner, own=own) or NoCgroups()
    return NoCgroups()


class NoCgroups:
    not_enforced: tuple[str, ...] = ("cpus", "memory")

    def create(self, name: str, limits: Limits) -> dict[str, str]:
        return {}

    def limit(self, groups: Groups, limits: Limits) -> bool:
        return False

    def oom_killed(self, groups: Groups) -> bool:
        return False

    def kill(self, groups: Groups) -> None:
        pass

    def names(self) -> dict[str, dict[str, str]]:
        return {}

    def close(self) -> None:
        pass


class CgroupsV1:
    not_enforced: tuple[str, ...] = ()

    def __init__(self, folders: dict[str, Path]) -> None:
        self._folders = folders

    @classmethod
    def open(cls, root: Path, owner: str) -> "CgroupsV1 | None":
        folders = {controller: root / controller / "weft" / owner for controller in ("cpu", "memory")}
        try:
            for folder in folders.values():
                folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        return cls(folders)

    def create(self, name: str, limits: Limits) -> dict[str, str]:
        groups = {controller: f"{folder}/{name}" for controller, folder in self._folders.items()}
        for group in groups.values():
            os.makedirs(group, exist_ok=True)
        self._write(groups, limits)
        return groups

    def limit(self, groups: Groups, limits: Limits) -> bool:
        return _possible(lambda: self._write(groups, limits)) if groups else False

    def _write(self, groups: Groups, limits: Limits) -> None:
        if limits.cpus is not None:
            _set(groups["cpu"], "cpu.cfs_period_us", PERIOD_MICROSECONDS)
            _set(groups["cpu"], "cpu.cfs_quota_us", _quota(limits.cpus))
        if limits.memory is not None:
            group, memory = groups["memory"], limits.memory
            with suppress(OSError):  # With swap counted, it must never be below the limit: widen it first.
                _set(group, "memory.memsw.limit_in_bytes", -1)
            _set(group, "memory.limit_in_bytes", memory)
            with suppress(OSError):  # Absent where the kernel does not count swap.
                _set(group, "memory.memsw.limit_in_bytes", memory)

    def oom_killed(self, groups: Groups) -> bool:
        return _counter(groups.get("memory"), "memory.oom_control", "oom_kill") > 0

    def kill(self, groups: Groups) -> None:
        kill(groups)

    def names(self) -> dict[str, dict[str, str]]:
        return _names(self._folders)

    def close(self) -> None:
        remove({controller: str(folder) for controller, folder in self._folders.items()})


class CgroupsV2:
    not_enforced: tuple[str, ...] = ()

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def open(cls, root: Path, owner: str, *, own: str | None = None) -> "CgroupsV2 | None":
        try:
            text = Path("/proc/self/cgroup").read_text() if own is None else own
            path = next(line[3:] for line in text.splitlines() if line.startswith("0::"))
            base = root / path.strip("/")
            base = base.parent if base.name == "weft-executor" else base
            if not {"cpu", "memory"} <= set(_get(str(base), "cgroup.controllers").split()):
                return None
            if not {"cpu", "memory"} <= set(_get(str(base), "cgroup.subtree_control").split()):
                leaf = base / "weft-executor"
                leaf.mkdir(exist_ok=True)
                _set(str(leaf), "cgroup.procs", 0)
            folder = base / "weft" / owner
            folder.mkdir(parents=True, exist_ok=True)
            for parent in (base, base / "weft", folder):
                _set(str(parent), "cgroup.subtree_control", "+cpu +memory")
        except (OSError, StopIteration):
            return None
        return cls(folder)

    def create(self, name: str, limits: Limits) -> dict[str, str]:
        groups = {"unified": f"{self._folder}/{name}"}
        with suppress(FileExistsError):
            os.mkdir(groups["unified"])
        self._write(groups["unified"], limits)
        return groups

    def limit(self, groups: Groups, limits: Limits) -> bool:
        if not groups or (limits.memory is not None and not self._fits(groups["unified"], limits.memory)):
            return False
        return _possible(lambda: self._write(groups["unified"], limits))

    def _fits(self, group: str, memory: int) -> bool:
        """Version 2 takes any limit, and kills whoever does not fit into it."""
        used = _get(group, "memory.current").strip()
        return not used or int(used) * SHRINK_ROOM <= memory

    def _write(self, group: str, limits: Limits) -> None:
        if limits.cpus is not None:
            _set(group, "cpu.max", f"{_quota(limits.cpus)} {PERIOD_MICROSECONDS}")
        if limits.memory is not None:
            _set(group, "memory.max", limits.memory)
            with suppress(OSError):
                _set(group, "memory.swap.max", 0)

    def oom_killed(self, groups: Groups) -> bool:
        return _counter(groups.get("unified"), "memory.events", "oom_kill") > 0

    def kill(self, groups: Groups) -> None:
        kill(groups)

    def names(self) -> dict[str, dict[str, str]]:
        return _names({"unified": self._folder})

    def close(self) -> None:
        remove({"unified": str(self._folder)})


def kill(groups: Groups) -> None:
    """SIGKILL to everything inside, whichever version they are of."""
    if "unified" in groups:
        with suppress(OSError):
            _set(groups["unified"], "cgroup.kill", 1)
    elif "memory" in groups:
        for _ in range(KILL_ROUNDS_MAX):  # What forks meanwhile is in the next list.
            pids = _get(groups["memory"], "cgroup.procs").split()
            if not pids:
                return
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


def occupied(groups: Groups) -> bool:
    """Is any process inside?"""
    return any(_get(group, "cgroup.procs").strip() for group in groups.values())


def remove(groups: Groups) -> bool:
    """False while something is still dying in there: try again."""
    gone = True
    for group in groups.values():
        try:
            os.rmdir(group)
        except FileNotFoundError:
            pass
        except OSError:
            gone = False
    return gone


def _quota(cpus: float) -> int:
    return max(QUOTA_MICROSECONDS_MIN, round(cpus * PERIOD_MICROSECONDS))


def _names(folders: Mapping[str, Path]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for controller, folder in folders.items():
        with suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    found.setdefault(entry.name, {})[controller] = entry.path
    return found


def _possible(change: Callable[[], None]) -> bool:
    try:
        change()
    except OSError as error:
        if error.errno in (errno.EBUSY, errno.EINVAL, errno.ENOENT):
            return False
        raise
    return True


def _set(group: str, name: str, value: str | int) -> None:
    fd = os.open(f"{group}/{name}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, str(value).encode())
    finally:
        os.close(fd)


def _get(group: str, name: str) -> str:
    try:
        with open(f"{group}/{name}", encoding="ascii") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _counter(group: str | None, name: str, field: str) -> int:
    """One number of a file whose lines are `field number`."""
    if group is None:
        return 0
    for line in _get(group, name).splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == field:
            return int(words[1])
    return 0
