"""Which nodes are kept for a job that has waited long, so that smaller jobs do not fill them for ever."""

from weft.planning.capacity import Room
from weft.planning.shape import Shape, gpus_least, is_pinned


def emptiest(room: Room, shape: Shape) -> tuple[str, ...]:
    """The nodes that would hold the smallest gang of the job if empty, those with most free GPUs first."""
    if is_pinned(shape):
        return tuple(sorted({want.request.node for want in shape if want.request.node in room.nodes}))
    wanted = gpus_least(shape)
    nodes = sorted(room.open_nodes, key=lambda node: (-len(node.gpus.whole), node.node.id))
    claimed: list[str] = []
    for node in nodes:
        if wanted <= 0:
            break
        if node.gpus.models and any(node.starts(want.request) for want in shape):
            claimed.append(node.node.id)
            wanted -= len(node.gpus.models)
    return tuple(claimed)
