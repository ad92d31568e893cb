"""Spread: each replica where most is free, so that a node that fails or slows down hits as few as possible."""

from heapq import heapify, heappop, heappush

from weft.planning.capacity import Picks, Room
from weft.planning.shape import PlacementRequest, Want


def spread(room: Room, want: Want, count: int, asked: PlacementRequest) -> Picks | None:
    del asked  # not used
    size = want.request.gpus
    given: dict[str, int] = {}
    heap = [(-len(node.gpus_for(want.request)), node.node.id) for node in room.open_nodes]
    heapify(heap)
    left = count
    while left and heap:
        free, node_id = heappop(heap)
        if room.nodes[node_id].count(want.request, count) > given.get(node_id, 0):
            given[node_id] = given.get(node_id, 0) + 1
            left -= 1
            heappush(heap, (free + size, node_id))
    if left:
        return None
    picks: Picks = []
    for node_id, replicas in given.items():
        gpus = room.nodes[node_id].gpus_for(want.request)
        picks.append((room.nodes[node_id], [tuple(gpus[at * size : (at + 1) * size]) for at in range(replicas)]))
    return picks
