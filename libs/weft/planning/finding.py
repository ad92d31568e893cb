"""Finds a place for a whole job: one role after the other, and with fewer replicas where not all of them fit."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf

from msgspec import structs

from weft.domain.job import Allocation
from weft.domain.shares import Share
from weft.planning.capacity import CPU_GRAIN, FreeCapacity, NodeCapacity, Picks, Placer
from weft.planning.placement.apart import apart, as_many_apart
from weft.planning.placement.chunks import chunks
from weft.planning.placement.inside import inside
from weft.planning.placement.sharing import as_many, sharing
from weft.planning.placement.unscored import packed
from weft.planning.resource_request import (
    NOBODY,
    PlacementRequest,
    ResourceRequest,
    RoleRequest,
    between,
    may_choose,
    of_one_model,
    only_on,
    pinned_gpus,
    smallest,
    with_more,
)

Place = tuple[Allocation, ...]
FASTEST_SCORE = 0.5  # no GPU takes less of the time of a typical one of its model


def find(
    free_capacity: FreeCapacity,
    resource_request: ResourceRequest,
    asked: PlacementRequest = NOBODY,
    *,
    placer: Placer | None = None,
) -> Place | None:
    """A place for the whole gang, or None; the room stays as it is until `take`. `placer` instead of the room's own.

    Roles are placed one after the other, in the order of the shape, and ranks are numbered so. If not all wanted
    replicas fit, the job gets as many as fit, and at least `least` of each role. A job that names several models gets
    GPUs of the first of them on which most of its replicas fit, and GPUs of several only if it fits on none of them
    alone. A job of one size that names none gets the place where it ends soonest on GPUs of one model, by the speed of
    the model for its workload, the scores of the GPUs and their distance. Replicas of a service need not be alike.
    Nodes that the job avoids are taken only if no other place is free: it never waits for one.
    """
    if avoids := [node_id for node_id in asked.avoids if free_capacity.is_open(node_id)]:
        elsewhere = structs.replace(asked, avoids=())
        with free_capacity.without(avoids):
            found = find(free_capacity, resource_request, elsewhere, placer=placer)
        return found or find(free_capacity, resource_request, elsewhere, placer=placer)
    best = None if asked.is_service else _on_fastest(free_capacity, resource_request, asked, placer)
    if best is not None:
        return best
    for alone in () if asked.is_service else of_one_model(resource_request):
        found = _find_place(free_capacity, alone, asked, placer)
        if found is not None and (best is None or len(found) > len(best)):
            best = found
        if best is not None and len(best) == sum(want.count for want in resource_request):
            break
    return best or _find_place(free_capacity, resource_request, asked, placer)


def _on_fastest(
    free_capacity: FreeCapacity, resource_request: ResourceRequest, asked: PlacementRequest, placer: Placer | None
) -> Place | None:
    """The fastest place on GPUs of one model; None if there is none, or the job has no choice between models."""
    speeds = free_capacity.speeds_for(asked)
    if not speeds or not may_choose(resource_request):
        return None
    best, least = None, inf
    for model, speed in sorted(speeds.items(), key=lambda each: (-each[1], each[0])):
        if FASTEST_SCORE / speed >= least:
            break
        found = _find_place(free_capacity, only_on(resource_request, model), asked, placer)
        if found is not None and (slowdown := free_capacity.slowdown(found, asked)) < least:
            best, least = found, slowdown
    return best


def _find_place(
    free_capacity: FreeCapacity, resource_request: ResourceRequest, asked: PlacementRequest, placer: Placer | None
) -> Place | None:
    if len(resource_request) == 1 and resource_request[0].request.share is not None:
        want = resource_request[0].of_class(asked.job_class)
        picks = as_many(free_capacity, want, want.count, asked)
        return allocations_of(picks, want) if len(picks) >= want.least else None
    if len(resource_request) == 1 and asked.is_service and resource_request[0].request.node is None:
        picks = as_many_apart(free_capacity, resource_request[0], resource_request[0].count, asked)
        return allocations_of(picks, resource_request[0]) if len(picks) >= resource_request[0].least else None
    placer = placer or free_capacity.placer or packed
    found = _find(free_capacity, resource_request, asked, placer)
    if found or all(want.least == want.count for want in resource_request):
        return found
    return _find_fewer(free_capacity, resource_request, asked, placer)


def first_unplaced(
    free_capacity: FreeCapacity, resource_request: ResourceRequest, asked: PlacementRequest
) -> RoleRequest | None:
    """The first role without a place after the roles before it. The free capacity keeps holding those."""
    places: list[Allocation] = []
    for want in resource_request:
        place = _place_role(
            free_capacity, want, len(places), with_shares_of(asked, places), free_capacity.placer or packed
        )
        if not place:
            return want
        free_capacity.take_all(place)
        places += place
    return None


def _find_fewer(
    free_capacity: FreeCapacity, resource_request: ResourceRequest, asked: PlacementRequest, placer: Placer
) -> Place | None:
    """A place for fewer replicas than wanted: the same fraction of the wish of each role beyond its least, then more of
    one role after the other."""
    counts = smallest(resource_request)
    best = _find(free_capacity, counts, asked, placer)
    if best is None:
        return None

    def most(shape_of_size: Callable[[int], ResourceRequest], largest: int) -> tuple[ResourceRequest, Place] | None:
        return _most(lambda size: _find(free_capacity, shape_of_size(size), asked, placer), shape_of_size, largest)

    parts = max(want.count - want.least for want in resource_request)
    counts, best = most(lambda part: between(resource_request, part, parts), parts - 1) or (counts, best)
    if len(resource_request) > 1:
        for index, want in enumerate(resource_request):
            counts, best = most(partial(with_more, counts, index), want.count - counts[index].count) or (counts, best)
    return best


def _most(
    find_size: Callable[[int], Place | None], shape_of_size: Callable[[int], ResourceRequest], largest: int
) -> tuple[ResourceRequest, Place] | None:
    """The largest of the sizes 1 … `largest` that fits, with its place; found by halving."""
    best: tuple[ResourceRequest, Place] | None = None
    low, high = 0, largest
    while low < high:
        middle = (low + high + 1) // 2
        found = find_size(middle)
        if found:
            best, low = (shape_of_size(middle), found), middle
        else:
            high = middle - 1
    return best


def _find(
    free_capacity: FreeCapacity, resource_request: ResourceRequest, asked: PlacementRequest, placer: Placer
) -> Place | None:
    """The place of exactly this number of replicas, or None."""
    if len(resource_request) == 1:
        return _place_role(free_capacity, resource_request[0], 0, asked, placer) or None
    places: list[Allocation] = []
    with free_capacity.supposing():
        for want in resource_request:
            place = _place_role(free_capacity, want, len(places), with_shares_of(asked, places), placer)
            if not place:
                return None
            free_capacity.take_all(place)
            places += place
    return tuple(places)


def with_shares_of(asked: PlacementRequest, places: Sequence[Allocation]) -> PlacementRequest:
    """The request with the GPUs of which the job has shares by now; of a service with all that it has."""
    if asked.is_service:
        has = tuple((one.node_id, gpu) for one in places for gpu in one.gpus or (-1,))
        return structs.replace(asked, beside=(*asked.beside, *has)) if has else asked
    shared = tuple((one.node_id, gpu) for one in places if one.share is not None for gpu in one.gpus)
    return structs.replace(asked, beside=(*asked.beside, *shared)) if shared else asked


def _place_role(
    free_capacity: FreeCapacity, want: RoleRequest, first_rank: int, asked: PlacementRequest, placer: Placer
) -> Place:
    """Empty if there is none."""
    if want.request.gpus > max(free_capacity.buckets, default=0):
        return ()  # no node has so many free
    if want.count > 1 and want.request.gpus * want.count > free_capacity.gpus_free:
        return ()
    if want.request.share is not None:
        placer, want = sharing, want.of_class(asked.job_class)
    elif want.request.node is not None:
        placer = pinned
    elif asked.is_service:
        placer = apart
    elif not want.request.gpus:
        placer = packed
    picks = placer(free_capacity, want, want.count, asked)
    return allocations_of(picks, want, first_rank) if picks else ()


def allocations_of(picks: Picks, want: RoleRequest, first_rank: int = 0) -> Place:
    """The picks as ranks, in their order."""
    request = want.request
    replicas = [(node.node.id, gpus) for node, of_node in picks for gpus in of_node]
    return tuple(
        Allocation(
            rank=rank,
            role=want.role,
            node_id=node_id,
            gpus=tuple(sorted(gpus)),
            cpus=request.cpus,
            memory=request.memory,
            egress=request.egress,
            share=request.share,
        )
        for rank, (node_id, gpus) in enumerate(replicas, start=first_rank)
    )


def pinned(free_capacity: FreeCapacity, want: RoleRequest, count: int, asked: PlacementRequest) -> Picks | None:
    node = free_capacity.nodes.get(want.request.node or "")
    if node is None or not free_capacity.is_open(node.node.id) or node.count(want.request, count) < count:
        return None
    if not want.request.gpus:
        return [(node, [()] * count)]
    if want.request.gpu is None:
        name = free_capacity.scores.known(asked.job_class)
        if node.near is not None:
            penalty = free_capacity.locality.across(asked.workload)
            return [(node, inside(free_capacity, node, node.near, want, count, name, penalty))]
        offers = chunks(node, want.request, free_capacity.scores.of(name), name)
        return [(node, [gpus for _, gpus in offers[:count]])]
    parts = pinned_gpus(want, count)
    free = set(node.gpus_for(want.request))
    return [(node, parts)] if all(free.issuperset(gpus) for gpus in parts) else None


def fits_there(free_capacity: FreeCapacity, allocations: Iterable[Allocation]) -> bool:
    """Return True if all of this is still free, exactly there. Only GPUs are reserved: CPUs and memory may be taken
    meanwhile, the node closed or lost."""
    with free_capacity.supposing():
        for one in allocations:
            node = free_capacity.nodes.get(one.node_id)
            if node is None or not free_capacity.is_open(one.node_id):
                return False
            if node.cpus + CPU_GRAIN < one.cpus or node.memory < one.memory:
                return False
            if not (node.gpus.has(one.gpus) if one.share is None else _has_left(node, one.gpus, one.share)):
                return False
            free_capacity.take(one)
    return True


def _has_left(node: NodeCapacity, gpus: Iterable[int], share: Share) -> bool:
    """Return True if each of these GPUs has room for the share."""
    for gpu in gpus:
        left, make = node.gpus.left_of(gpu), node.gpus.makes.get(gpu)
        if left is None or make is None or not node.gpus.gives_shares:
            return False
        if left.time < share.request or left.memory < share.memory + make.context:
            return False
    return True
