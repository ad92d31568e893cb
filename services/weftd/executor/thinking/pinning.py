"""Which NUMA node a run is pinned to: the one of all its GPUs, if its CPUs and memory fit there beside other runs."""

from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct

UNPINNED = -1


class NumaNode(Struct, frozen=True, kw_only=True):
    """One NUMA node. `cpus`: a list as the kernel writes it, such as `0-15,32-47`; `memory` in bytes."""

    number: int
    cpus: str
    cpu_count: int
    memory: int


class Pin(Struct, frozen=True, kw_only=True):
    """The CPUs and the NUMA nodes of memory that a run is confined to, as lists for `cpuset`; `memory` empty: any."""

    cpus: str
    memory: str = ""


class Pinned(Struct, frozen=True, kw_only=True):
    """CPUs and memory of a run on this node. `numa`: its NUMA node, or UNPINNED."""

    numa: int
    cpus: float
    memory: int


def numa_for(
    gpus: Collection[int], *, cpus: float, memory: int, nodes: Sequence[NumaNode], held: Iterable[Pinned]
) -> NumaNode | None:
    """The NUMA node to pin a run to. `gpus`: the NUMA node of each of its GPUs; `held`: the runs that are there.

    A run that is not pinned may use the memory of every NUMA node, so its whole memory counts on each of them.
    """
    if len(nodes) < 2 or len(set(gpus)) != 1:
        return None
    node = next((node for node in nodes if node.number in gpus), None)
    if node is None:
        return None
    there = [run for run in held if run.numa in (node.number, UNPINNED)]
    fits = (
        sum(run.cpus for run in there if run.numa != UNPINNED) + cpus <= node.cpu_count
        and sum(run.memory for run in there) + memory <= node.memory
    )
    return node if fits else None
