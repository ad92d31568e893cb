"""Spares: nodes of a pool that are kept for gangs whose hardware failed. Small pre-emptible jobs use them meanwhile."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum

from weft.domain.cluster import Node
from weft.domain.failure import FailureClass
from weft.domain.job import Allocation, Job
from weft.domain.shares import gpus_held

SPARES = "spares"  # the number of a cause: how many nodes the job may not use, since they are spares
GUESTS_LEAVE = -1e9  # the worth of what uses a spare: it leaves before all others that do not stop yet
PART_MAX = 2  # at most half of the nodes of one kind are spares
_HARDWARE = frozenset({FailureClass.GPU, FailureClass.NODE})


class SpareUse(StrEnum):
    """How a job may use the spares of its pool."""

    NEVER = ""  # not at all, unless it is too large for the other nodes
    MEANWHILE = "meanwhile"  # until a gang needs them
    RESTARTS = "restarts"  # it is a gang whose hardware failed


Holding = tuple[SpareUse, Iterable[Allocation]]
"""How a job may use spares, and what it holds."""


def spare_use(job: Job) -> SpareUse:
    if job.spec.is_service:
        return SpareUse.NEVER
    if sum(job.wanted.values()) > 1:
        failed = bool(job.failures) and job.failures[-1].kind in _HARDWARE
        return SpareUse.RESTARTS if failed else SpareUse.NEVER
    return SpareUse.MEANWHILE if job.spec.preemptible else SpareUse.NEVER


def holding_of(jobs: Iterable[Job]) -> Iterator[Holding]:
    return ((spare_use(job), job.held) for job in jobs)


def spare_nodes(nodes: Iterable[Node], holding: Iterable[Holding], spares: int) -> tuple[str, ...]:
    """The ids of the spares of a pool. `holding`: the jobs that hold a part of its nodes."""
    guests: dict[str, float] = {}
    others: set[str] = set()
    for use, held in holding:
        for each in held:
            if use is SpareUse.MEANWHILE:
                guests[each.node_id] = guests.get(each.node_id, 0.0) + gpus_held(each.gpus, each.share)
            else:
                others.add(each.node_id)
    return chosen(nodes, guests, others, spares)


def chosen(nodes: Iterable[Node], guests: Mapping[str, float], others: Collection[str], spares: int) -> tuple[str, ...]:
    """`spares` nodes of each kind: those with the most GPUs held by `guests`, as they are in nobody's way, and of
    equals the last by id. `others`: nodes of jobs that would not give way. A node that is sick in part is no spare."""
    kinds: dict[tuple[str, ...], list[Node]] = {}
    for node in nodes:
        if node.capacity.gpus:
            kinds.setdefault(tuple(sorted(gpu.model for gpu in node.capacity.gpus)), []).append(node)
    found: list[str] = []
    for alike in kinds.values():
        fit = [(guests.get(node.id, 0.0), node.id) for node in alike if node.id not in others and _sound(node)]
        found += [node_id for _, node_id in sorted(fit, reverse=True)[: min(spares, len(alike) // PART_MAX)]]
    return tuple(sorted(found))


def _sound(node: Node) -> bool:
    return node.takes_work and all(each.well for each in node.health)
