"""Placements that ignore the scores of GPUs: packed, spread and random."""

from hashlib import blake2b
from heapq import heapify, heappop, heappush

from weft.planning.capacity import FreeCapacity, NodeCapacity, Picks
from weft.planning.resource_request import PlacementRequest, RoleRequest


def packed(free_capacity: FreeCapacity, want: RoleRequest, count: int, asked: PlacementRequest) -> Picks | None:
    del asked  # not used
    tightest = tightest_node(free_capacity, want, count)
    if tightest is not None:
        return [(tightest, first_gpus(tightest, want, count))]
    return emptiest_nodes(free_capacity, want, count)


def tightest_node(free_capacity: FreeCapacity, want: RoleRequest, count: int) -> NodeCapacity | None:
    """The node that holds all `count` and has the fewest GPUs left over."""
    for free in sorted(free_capacity.buckets):
        if free >= want.request.gpus * count:
            for node_id in free_capacity.buckets[free]:
                node = free_capacity.nodes[node_id]
                if node.count(want.request, count) == count:
                    return node
    return None


def emptiest_nodes(free_capacity: FreeCapacity, want: RoleRequest, count: int) -> Picks | None:
    """The nodes with most free first, each filled up. Replicas without GPUs leave nodes with free GPUs for the last."""
    picks: Picks = []
    left = count
    for free in sorted(free_capacity.buckets, reverse=want.request.gpus > 0):
        if free < want.request.gpus:
            break
        for node_id in free_capacity.buckets[free]:
            node = free_capacity.nodes[node_id]
            fits = node.count(want.request, left)
            if fits:
                picks.append((node, first_gpus(node, want, fits)))
                left -= fits
            if not left:
                return picks
    return None


def first_gpus(node: NodeCapacity, want: RoleRequest, count: int) -> list[tuple[int, ...]]:
    """The free GPUs with the lowest indices, for `count` replicas."""
    size = want.request.gpus
    gpus = node.gpus_for(want.request)
    return [tuple(gpus[at * size : (at + 1) * size]) for at in range(count)]


def spread(free_capacity: FreeCapacity, want: RoleRequest, count: int, asked: PlacementRequest) -> Picks | None:
    del asked  # not used
    size = want.request.gpus
    given: dict[str, int] = {}
    heap = [(-len(node.gpus_for(want.request)), node.node.id) for node in free_capacity.open_nodes]
    heapify(heap)
    left = count
    while left and heap:
        free, node_id = heappop(heap)
        if free_capacity.nodes[node_id].count(want.request, count) > given.get(node_id, 0):
            given[node_id] = given.get(node_id, 0) + 1
            left -= 1
            heappush(heap, (free + size, node_id))
    if left:
        return None
    picks: Picks = []
    for node_id, replicas in given.items():
        gpus = free_capacity.nodes[node_id].gpus_for(want.request)
        picks.append(
            (free_capacity.nodes[node_id], [tuple(gpus[at * size : (at + 1) * size]) for at in range(replicas)])
        )
    return picks


def at_random(free_capacity: FreeCapacity, want: RoleRequest, count: int, asked: PlacementRequest) -> Picks | None:
    size = want.request.gpus
    offers: list[tuple[bytes, str, tuple[int, ...]]] = []
    for node in free_capacity.open_nodes:
        gpus = sorted(node.gpus_for(want.request), key=lambda gpu, node=node: _die(asked.key, node, gpu))  # type: ignore[misc]
        for at in range(node.count(want.request, count)):
            part = tuple(gpus[at * size : (at + 1) * size])
            offers.append((_die(asked.key, node, part[0]), node.node.id, part))
    if len(offers) < count:
        return None
    picks: dict[str, list[tuple[int, ...]]] = {}
    for _, node_id, part in sorted(offers)[:count]:
        picks.setdefault(node_id, []).append(part)
    return [(free_capacity.nodes[node_id], parts) for node_id, parts in picks.items()]


def _die(key: str, node: NodeCapacity, gpu: int) -> bytes:
    return blake2b(f"{key}/{node.node.id}/{gpu}".encode(), digest_size=8).digest()
