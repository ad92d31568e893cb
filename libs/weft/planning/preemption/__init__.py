"""Which running jobs give way to a waiting one: few, those that come last in the order, with the least work lost."""

from collections.abc import Sequence
from math import inf

from msgspec import Struct

from weft.domain.job import Allocation
from weft.planning.backfill import GPU_GRAIN
from weft.planning.capacity import FreeCapacity
from weft.planning.finding import find
from weft.planning.order import Key
from weft.planning.resource_request import NOBODY, PlacementRequest, ResourceRequest, gpus_in, gpus_least

LEAVES_FIRST: Key = (-inf,)  # the `worth` of what is about to be free: it comes before all others


class Holder(Struct, frozen=True, kw_only=True):
    """A running job that may be asked to give way, or one rank of it that it can do without (`extra`).

    `worth` sorts: the holder that is worth least leaves first.
    """

    job_id: str
    worth: Key
    allocations: tuple[Allocation, ...]
    extra: bool = False


class VictimSelection(Struct, frozen=True):
    """The jobs that must go, and the nodes that are then needed, those that are free already among them."""

    victims: tuple[Holder, ...]
    nodes: tuple[str, ...]


def by_job(selection: VictimSelection) -> dict[str, list[Holder]]:
    """The victims of each job: a job of which all are `extra` goes on without these ranks."""
    found: dict[str, list[Holder]] = {}
    for victim in selection.victims:
        found.setdefault(victim.job_id, []).append(victim)
    return found


def select_victims(
    resource_request: ResourceRequest,
    *,
    free_capacity: FreeCapacity,
    holders: Sequence[Holder],
    asked: PlacementRequest = NOBODY,
) -> VictimSelection | None:
    """The `holders` that have to go so that `shape` fits; None if it would not fit even if all of them went."""
    willing = sorted(
        (holder for holder in holders if _helps(holder, resource_request, free_capacity)),
        key=lambda holder: (holder.worth, holder.job_id),
    )
    with free_capacity.supposing():
        leaving = _enough_leaving(resource_request, free_capacity, willing, asked)
        if leaving is None:
            return None
        victims: list[Holder] = []
        for holder in reversed(leaving):  # those worth most first: may they stay?
            free_capacity.take_all(holder.allocations)
            if find(free_capacity, resource_request, asked) is None:
                free_capacity.give_back_all(holder.allocations)
                victims.append(holder)
        place = find(free_capacity, resource_request, asked)
        assert place is not None, "it fitted a moment ago"
    return VictimSelection(
        tuple(sorted(victims, key=lambda holder: holder.job_id)),
        tuple(sorted({allocation.node_id for allocation in place})),
    )


def enough(resource_request: ResourceRequest, holders: Sequence[Holder], *, free: float) -> bool:
    """Return True if the holders and the free GPUs suffice for the request. Without holders never, as it did not fit
    the free GPUs."""
    missing = gpus_least(resource_request) - free
    for holder in holders:
        missing -= gpus_in(holder.allocations)
        if missing <= GPU_GRAIN:
            return True
    return False


def _enough_leaving(
    resource_request: ResourceRequest, free_capacity: FreeCapacity, willing: Sequence[Holder], asked: PlacementRequest
) -> list[Holder] | None:
    """The first of `willing`, twice as many each time, until `shape` fits; the room is left without them."""
    count, more = 0, 1
    while find(free_capacity, resource_request, asked) is None:
        if count >= len(willing):
            return None
        for holder in willing[count : count + more]:
            free_capacity.give_back_all(holder.allocations)
        count, more = count + more, 2 * more
    return list(willing[:count])


def _helps(holder: Holder, resource_request: ResourceRequest, free_capacity: FreeCapacity) -> bool:
    """Return True if it holds resources on a node that takes work and can start a part of the request."""
    return any(
        free_capacity.is_open(node_id)
        and any(free_capacity.nodes[node_id].starts(want.request) for want in resource_request)
        for node_id in dict.fromkeys(allocation.node_id for allocation in holder.allocations)
    )
