"""Nodes that take no new work: which of them have room for a replica, and the words for why they give none."""

from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct

from weft.domain.cluster import Node, Request
from weft.domain.health import HealthRecord
from weft.domain.text import listed, plural
from weft.planning.capacity import FreeCapacity, NodeCapacity
from weft.planning.reasons.shortages import gpus_text

NAMED_MAX = 2
SILENT_SECONDS = 20.0  # the scheduler stores every 10 s which nodes have reported, so an older time means silence


def why_closed(node: Node) -> str:
    """Why a node takes no work; `takes no work now` if it is about to leave or has not reported yet."""
    if not node.ready:
        return "is lost"
    if not node.drained and node.own_health is not None and node.own_health.closed:
        return f"is {node.own_health.state}: {node.own_health.sentence} (`weft health {node.id}`)"
    return f"is drained{node.drain.text} (`weft resume {node.id}`)" if node.drain else "takes no work now"


def closed_with_room(free_capacity: FreeCapacity, request: Request) -> list[NodeCapacity]:
    """Nodes that take no work and have room for a replica of `request`, those with most free GPUs first.

    A node that is closed for another reason is about to leave, or is kept for a job that is served earlier.
    """
    closed = [each for each in free_capacity.nodes.values() if not each.node.takes_work]
    fitting = [each for each in closed if each.count(request, 1)]
    return sorted(fitting, key=lambda each: (-len(each.gpus_for(request)), each.node.id))


def closed_text(free_capacity: FreeCapacity, request: Request) -> str:
    """Such as `node-2 has 8 free GPUs, but is drained (`weft resume node-2`)`; empty if no closed node has room."""
    rooms = closed_with_room(free_capacity, request)
    told = [f"{each.node.id} has {_free(each, request)}, but {why_closed(each.node)}" for each in rooms[:NAMED_MAX]]
    if more := len(rooms) - NAMED_MAX:
        told += [f"so do {more} more nodes that take no work"] if more > 1 else []
        told += ["so does one more node that takes no work"] if more == 1 else []
    return "; ".join(told)


class Missed(Struct, frozen=True):
    """Drained and lost nodes without which a job cannot start, whatever ends. `one_each`: no node of its pool has
    room for two of its replicas."""

    nodes: Sequence[Node]
    one_each: bool

    def text(self, told: Collection[str] = ()) -> str:
        """Such as `node-2 is drained, so it cannot start until node-2 is resumed`. `told`: nodes that the sentence
        before it says to be closed."""
        if len(self.nodes) > 1:
            names = listed([node.id for node in self.nodes], NAMED_MAX)
            return f"{names} take no work, so it cannot start until enough of them do"
        (node,) = self.nodes
        until = f"it cannot start until {node.id} {'is resumed' if node.ready and node.drained else 'is back'}"
        state = "lost" if not node.ready else "drained" if node.drained else "out of use"
        return until if node.id in told else f"{node.id} is {state}, so {until}"


def missed(free_capacity: FreeCapacity, request: Request, least: int) -> Missed | None:
    """The closed nodes that a job waits for: those that take work could not hold `least` replicas of `request` even if
    they were empty, and all together could. None if there is no such node."""
    open_nodes = [each for each in free_capacity.nodes.values() if each.node.takes_work]
    if len(open_nodes) == len(free_capacity.nodes):
        return None
    left = least
    most = 0  # on one node
    for each in open_nodes:
        there = NodeCapacity(each.node).count(request, least)
        left, most = left - there, max(most, there)
        if left <= 0:
            return None
    closed: list[Node] = []
    for each in free_capacity.nodes.values():
        if not each.node.takes_work:
            there = NodeCapacity(each.node).count(request, least)
            left, most = left - there, max(most, there)
            closed += [each.node] if there else []
    return Missed(sorted(closed, key=lambda node: node.id), one_each=most == 1) if closed and left <= 0 else None


def sick_gpus(nodes: Iterable[NodeCapacity], request: Request) -> list[tuple[Node, HealthRecord]]:
    """The GPUs of these nodes that are out of use and that `request` could have otherwise."""
    return [
        (each.node, health)
        for each in nodes
        for health in each.node.health
        if health.closed and (make := each.gpus.makes.get(-1 if health.gpu is None else health.gpu)) is not None
        if request.suits(make.model, make.memory)
    ]


def sick_text(found: Sequence[tuple[Node, HealthRecord]]) -> str:
    """Such as `GPU 3 of node-1 is quarantined (Xid 79: it fell off the bus)`."""
    told = [f"GPU {each.gpu} of {node.id} is {each.state} ({each.sentence})" for node, each in found[:NAMED_MAX]]
    return "; ".join([*told, f"{len(found) - NAMED_MAX} more GPUs are out of use"] if found[NAMED_MAX:] else told)


def silent_seconds(node: Node, now: float) -> float:
    """For how long a node that counts as ready has not reported; 0 while that is no longer than usual."""
    silence = now - node.seen_at
    return silence if node.ready and silence > SILENT_SECONDS else 0.0


def _free(each: NodeCapacity, request: Request) -> str:
    if request.share is not None:
        return f"{gpus_text(request)} free"
    return plural(len(each.gpus_for(request)), "free GPU") if request.gpus else "the CPUs and memory free"
