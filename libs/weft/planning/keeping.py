"""Whether a place that was kept for a job is free once it was let go."""

from collections.abc import Iterable

from weft.domain.job import Allocation
from weft.domain.shares import Share
from weft.planning.capacity import CPU_GRAIN, NodeRoom, Room


def fits_there(room: Room, allocations: Iterable[Allocation]) -> bool:
    """Does the room still have all of this, exactly there? Only GPUs are kept: CPUs and memory may be taken meanwhile,
    the node closed or lost."""
    with room.supposing():
        for one in allocations:
            node = room.nodes.get(one.node_id)
            if node is None or not room.is_open(one.node_id):
                return False
            if node.cpus + CPU_GRAIN < one.cpus or node.memory < one.memory:
                return False
            if not (node.gpus.has(one.gpus) if one.share is None else _has_left(node, one.gpus, one.share)):
                return False
            room.take(one)
    return True


def _has_left(node: NodeRoom, gpus: Iterable[int], share: Share) -> bool:
    """Is so much left of these GPUs?"""
    for gpu in gpus:
        left, make = node.gpus.left_of(gpu), node.gpus.makes.get(gpu)
        if left is None or make is None or not node.gpus.gives_shares:
            return False
        if left.time < share.request or left.memory < share.memory + make.context:
            return False
    return True
