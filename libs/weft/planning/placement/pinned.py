"""Pinned: on one node alone, on exactly the GPUs that the job is pinned to, else on the fastest that are free there."""

from weft.planning.capacity import Picks, Room
from weft.planning.placement.chunks import chunks
from weft.planning.shape import PlacementRequest, Want, pinned_gpus


def pinned(room: Room, want: Want, count: int, asked: PlacementRequest) -> Picks | None:
    node = room.nodes.get(want.request.node or "")
    if node is None or not room.is_open(node.node.id) or node.count(want.request, count) < count:
        return None
    if not want.request.gpus:
        return [(node, [()] * count)]
    if want.request.gpu is None:
        name = room.scores.known(asked.job_class)
        offers = chunks(node, want.request, room.scores.of(name), name)
        return [(node, [gpus for _, gpus in offers[:count]])]
    parts = pinned_gpus(want, count)
    free = set(node.gpus_for(want.request))
    return [(node, parts)] if all(free.issuperset(gpus) for gpus in parts) else None
