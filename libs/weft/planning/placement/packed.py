"""Packed: as few nodes as possible, the fullest that still hold the gang. Scores do not matter.

A gang goes to the node with exactly that much free, or least more; if no node holds it, to the emptiest nodes.
The order among equals (by node, then by GPU) is that of the PAL artifact's packing baseline.
"""

from weft.planning.capacity import NodeRoom, Picks, Room
from weft.planning.shape import PlacementRequest, Want


def packed(room: Room, want: Want, count: int, asked: PlacementRequest) -> Picks | None:
    del asked  # not used
    tightest = tightest_node(room, want, count)
    if tightest is not None:
        return [(tightest, first_gpus(tightest, want, count))]
    return emptiest_nodes(room, want, count)


def tightest_node(room: Room, want: Want, count: int) -> NodeRoom | None:
    """The node that holds all `count` and has the fewest GPUs left over."""
    for free in sorted(room.buckets):
        if free >= want.request.gpus * count:
            for node_id in room.buckets[free]:
                node = room.nodes[node_id]
                if node.count(want.request, count) == count:
                    return node
    return None


def emptiest_nodes(room: Room, want: Want, count: int) -> Picks | None:
    """The nodes with most free first, each filled up. Replicas without GPUs leave nodes with free GPUs for the last."""
    picks: Picks = []
    left = count
    for free in sorted(room.buckets, reverse=want.request.gpus > 0):
        if free < want.request.gpus:
            break
        for node_id in room.buckets[free]:
            node = room.nodes[node_id]
            fits = node.count(want.request, left)
            if fits:
                picks.append((node, first_gpus(node, want, fits)))
                left -= fits
            if not left:
                return picks
    return None


def first_gpus(node: NodeRoom, want: Want, count: int) -> list[tuple[int, ...]]:
    """The free GPUs with the lowest indices, for `count` replicas."""
    size = want.request.gpus
    gpus = node.gpus_for(want.request)
    return [tuple(gpus[at * size : (at + 1) * size]) for at in range(count)]
