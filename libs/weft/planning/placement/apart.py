"""Apart: the replicas of a service, one by one, on different nodes as long as there are any, so that what ends a node
ends one of them. Every placement of whole GPUs leaves services to this one.

A replica takes the GPUs that other jobs would gain least from, of those that are fast enough for it (`tolerates`): fast
ones only where it needs them. Of equals the node is taken that it uses up.
"""

from collections import Counter
from collections.abc import Callable

from weft.planning.capacity import FreeCapacity, NodeCapacity, Picks
from weft.planning.placement.chunks import chunks
from weft.planning.placement.inside import SPARING, inside, links_cost
from weft.planning.placement.weft_best import WHOLE_NODES, worst_scores
from weft.planning.resource_request import PlacementRequest, RoleRequest

_Gpus = tuple[int, ...]


def apart(free_capacity: FreeCapacity, want: RoleRequest, count: int, asked: PlacementRequest) -> Picks | None:
    picks = as_many_apart(free_capacity, want, count, asked)
    return picks if len(picks) == count else None


def as_many_apart(free_capacity: FreeCapacity, want: RoleRequest, count: int, asked: PlacementRequest) -> Picks:
    """Places for the first of `count` replicas, as many as have one; each pick is one replica."""
    on = Counter(node_id for node_id, _ in asked.beside)
    picks: Picks = []
    with free_capacity.supposing():
        for placed in range(count):
            found = _one(free_capacity, want, asked, on)
            if found is None:
                break
            node, gpus = found
            picks.append((node, [gpus]))
            on[node.node.id] += 1
            if placed + 1 < count:
                free_capacity.take(want.allocation(node.node.id, gpus))
    return picks


def _one(
    free_capacity: FreeCapacity, want: RoleRequest, asked: PlacementRequest, on: Counter[str]
) -> tuple[NodeCapacity, _Gpus] | None:
    """A node with as few replicas of the service as can be."""
    name = free_capacity.scores.known(asked.job_class)
    need = (want.request, name, "apart", asked.tolerates)
    cost = _cost_of_node(free_capacity, want, asked)
    fewest: tuple[int, NodeCapacity] | None = None
    with free_capacity.supposing():
        while (found := free_capacity.best_node(need, cost)) is not None:
            node = found[1]
            if not on[node.node.id]:
                fewest = (0, node)
                break
            if fewest is None or on[node.node.id] < fewest[0]:
                fewest = (on[node.node.id], node)
            free_capacity.close([node.node.id])
    if fewest is None:
        return None
    node = fewest[1]
    if node.near is not None and want.request.gpus > 1:
        name = free_capacity.scores.known(asked.job_class)
        return node, inside(free_capacity, node, node.near, want, 1, name, free_capacity.locality.across_nodes)[0]
    return node, _best(free_capacity, want, asked, node)[1]


def _cost_of_node(
    free_capacity: FreeCapacity, want: RoleRequest, asked: PlacementRequest
) -> Callable[[NodeCapacity], tuple[float, ...] | None]:
    def cost(node: NodeCapacity) -> tuple[float, ...] | None:
        if not node.count(want.request, 1):
            return None
        return (_best(free_capacity, want, asked, node)[0],)

    return cost


def _best(
    free_capacity: FreeCapacity, want: RoleRequest, asked: PlacementRequest, node: NodeCapacity
) -> tuple[float, _Gpus]:
    """The GPUs of the node that one replica takes, and their cost. A replica without GPUs prefers a node without free
    ones."""
    request, whole, gpus = want.request, len(node.gpus.whole), max(1, len(node.gpus.models))
    if not request.gpus:
        return (whole / gpus, ())
    name = free_capacity.scores.known(asked.job_class)
    offers = chunks(node, request, free_capacity.scores.of(name), name)
    enough = asked.tolerates or 0.0
    costs = [
        (max(slowest, enough) + SPARING * (1.0 - worst), taken)
        for (slowest, taken), worst in zip(offers, worst_scores(free_capacity, node, offers), strict=True)
    ]
    cost, taken = min(costs)
    cost += links_cost(node, want, 1, free_capacity.locality.across_nodes)
    return (cost + WHOLE_NODES * (whole - request.gpus) / gpus, taken)
