"""Nodes that take no new work: which of them have room for a replica, and the words for why they give none."""

from libs.domain.cluster import Node, Request
from libs.domain.quantity import count_text
from libs.planning.capacity import NodeRoom, Room
from libs.planning.shortages import gpus_text

NAMED_MAX = 2
SILENT_SECONDS = 20.0  # the scheduler stores every 10 s which nodes have reported, so an older time means silence


def why_closed(node: Node) -> str:
    """Why a node takes no work; `takes no work now` if it is about to leave or has not reported yet."""
    if not node.ready:
        return "is lost"
    return f"is drained (`weft resume {node.id}`)" if node.drained else "takes no work now"


def closed_with_room(room: Room, request: Request) -> list[NodeRoom]:
    """Drained and lost nodes that have room for a replica of `request`, those with most free GPUs first.

    A node that is closed for another reason is about to leave, or is kept for a job that is served earlier.
    """
    closed = [each for each in room.nodes.values() if each.node.drained or not each.node.ready]
    fitting = [each for each in closed if each.count(request, 1)]
    return sorted(fitting, key=lambda each: (-len(each.gpus_for(request)), each.node.id))


def closed_text(room: Room, request: Request) -> str:
    """Such as `node-2 has 8 free GPUs, but is drained (`weft resume node-2`)`; empty if no closed node has room."""
    rooms = closed_with_room(room, request)
    told = [f"{each.node.id} has {_free(each, request)}, but {why_closed(each.node)}" for each in rooms[:NAMED_MAX]]
    if more := len(rooms) - NAMED_MAX:
        told += [f"so do {more} more nodes that take no work"] if more > 1 else []
        told += ["so does one more node that takes no work"] if more == 1 else []
    return "; ".join(told)


def silent_seconds(node: Node, now: float) -> float:
    """For how long a node that counts as ready has not reported; 0 while that is no longer than usual."""
    silence = now - node.seen_at
    return silence if node.ready and silence > SILENT_SECONDS else 0.0


def _free(each: NodeRoom, request: Request) -> str:
    if request.share is not None:
        return f"{gpus_text(request)} free"
    return count_text(len(each.gpus_for(request)), "free GPU") if request.gpus else "the CPUs and memory free"
