"""Processor seconds that each process of a local cluster used, the servers' included.

The machines are shared, so wall time says little about the cost of a job; processor time says more. A child that was
waited for counts for its parent, so what short processes used is found at the parent that outlives them.
"""

import os
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from weft import servers
from weftd.cli.local import LocalCluster

TICKS = os.sysconf("SC_CLK_TCK")
RUNS = "jobs"  # the shells and commands of jobs that have ended


async def used(local: LocalCluster) -> dict[str, float]:
    """By the name of the process, since it began. What an executor's runs used is counted apart, as RUNS."""
    state = await servers.status(local.home.root)
    own = {"nats": state.nats, "postgres": state.postgres}
    pids = {**local.pids, **{name: one.pid for name, one in own.items() if one is not None and one.pid}}
    return used_by(pids)


def used_by(pids: Mapping[str, int]) -> dict[str, float]:
    stats, children = _stats()
    found: dict[str, float] = defaultdict(float)
    for name, pid in pids.items():
        if pid not in stats:
            continue
        alone, waited_for = stats[pid]
        found[name] += alone
        if name.startswith("executor"):
            found[RUNS] += waited_for
            continue
        found[name] += waited_for
        family = list(children[pid])
        for one in family:  # grows while it is walked
            found[name] += sum(stats[one])
            family += children[one]
    return dict(found)


def difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}


def _stats() -> tuple[dict[int, tuple[float, float]], dict[int, list[int]]]:
    """Of each process what it used itself and what the children that it waited for used; and each one's children."""
    stats: dict[int, tuple[float, float]] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            user, system, children_user, children_system = (int(field) / TICKS for field in fields[11:15])
            stats[int(path.name)] = (user + system, children_user + children_system)
            children[int(fields[1])].append(int(path.name))
    return stats, children


def family_of(pid: int) -> list[int]:
    """A process and its descendants."""
    _, children = _stats()
    family = [pid]
    for one in family:  # grows while it is walked
        family += children[one]
    return family


def cpu_of(pid: int) -> float:
    """Seconds of processor time that one process has had, its children left out."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_of(pid: int) -> float:
    """Resident MiB of one process."""
    with suppress(OSError):  # it has ended
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
    return 0.0
