"""Weft's own placement: the place where the job runs fastest; among equals, the one that costs other jobs least.

Three costs are weighed, all as parts of the job's time. How long the job takes there (the slowest GPU, times the
locality, of links within a node too) counts in full. GPUs that are slow only for other classes are taken first: fast
ones stay free for the jobs that they speed up. And a node is best used up: the next gang needs a whole one.
"""

from collections.abc import Callable, Sequence

from weft.planning.capacity import Chunks, ChunksKey, FreeCapacity, NodeCapacity, Picks
from weft.planning.placement.chunks import KEPT_MAX, chunks
from weft.planning.placement.inside import SPARING, in_parts, inside, links_cost
from weft.planning.resource_request import PlacementRequest, RoleRequest
from weft.planning.scores import TYPICAL

WHOLE_NODES = 0.04  # the most that breaking a whole node costs
CHOICE = 4  # a gang chooses among this many times the GPUs it needs, in pools of more than NODES_LEAST nodes
NODES_LEAST = 64
MUCH_SLOWER = 0.8  # part of the penalty: a slower place in one node is compared with one across nodes
AS_FAST = 0.002  # scores nearer to each other than this are equal


def weft_best(free_capacity: FreeCapacity, want: RoleRequest, count: int, asked: PlacementRequest) -> Picks | None:
    together = _in_one_node(free_capacity, want, count, asked)
    if together is None:
        return _across_nodes(free_capacity, want, count, asked)
    penalty = free_capacity.locality.across(asked.workload)
    if count == 1 or _slowdown(free_capacity, together, asked) <= MUCH_SLOWER * penalty:
        return together
    apart = _across_nodes(free_capacity, want, count, asked)
    return (
        together
        if apart is None or _slowdown(free_capacity, together, asked) <= _slowdown(free_capacity, apart, asked)
        else apart
    )


def _slowdown(free_capacity: FreeCapacity, picks: Picks, asked: PlacementRequest) -> float:
    scores = free_capacity.scores.of(asked.job_class)
    keys = [(node.node.id, gpu) for node, replicas in picks for gpus in replicas for gpu in gpus]
    nodes = {node_id for node_id, _ in keys}
    links = free_capacity.within(keys[0][0], [gpu for _, gpu in keys], asked.workload) if len(nodes) == 1 else 1.0
    return max([scores.get(key, TYPICAL) for key in keys]) * links * free_capacity.spread_over(nodes, asked.workload)


def _in_one_node(free_capacity: FreeCapacity, want: RoleRequest, count: int, asked: PlacementRequest) -> Picks | None:
    if count * want.request.gpus > free_capacity.largest:
        return None
    name = free_capacity.scores.known(asked.job_class)
    penalty = free_capacity.locality.across(asked.workload) if count * want.request.gpus > 1 else TYPICAL
    cost = _cost_of_node(free_capacity, want, count, name, penalty)
    found = free_capacity.best_node((want.request, count, name, penalty), cost)
    if found is None:
        return None
    node = found[1]
    if node.near is not None:
        return [(node, inside(free_capacity, node, node.near, want, count, name, penalty))]
    offers = chunks(node, want.request, free_capacity.scores.of(name), name)
    return [(node, [offers[at][1] for at in _dispensable(offers, worst_scores(free_capacity, node, offers), count)])]


def _cost_of_node(
    free_capacity: FreeCapacity, want: RoleRequest, count: int, name: str, penalty: float
) -> Callable[[NodeCapacity], tuple[float] | None]:
    request, scores = want.request, free_capacity.scores.of(name)
    cpus, memory, gpus = request.cpus, request.memory, count * request.gpus
    need = (name, request.gpus, *request.gpu_kind)

    def cost(node: NodeCapacity) -> tuple[float] | None:
        if len(node.gpus.whole) < gpus or not node.starts(request):
            return None
        costs = node.costs.get(need)  # of all the chunks that GPUs allow
        if costs is None or node.cpus < len(costs) * cpus or node.memory < len(costs) * memory:
            offers = chunks(node, request, scores, name)
            if count > len(offers):
                return None
            costs = _kept_costs(free_capacity, node, need, offers)
        if count > len(costs):
            return None
        return (costs[count - 1] + (links_cost(node, want, count, penalty) if node.near else 0.0),)

    def cost_of_one(node: NodeCapacity) -> tuple[float] | None:
        """The same for one chunk, without looking at the costs of more."""
        if len(node.gpus.whole) < gpus:
            return None
        offers = chunks(node, request, scores, name)
        if not offers:
            return None
        links = links_cost(node, want, 1, penalty) if node.near else 0.0
        return (_cost_of_one(free_capacity, node, offers) + links,)

    return cost_of_one if count == 1 else cost


def _cost_of_one(free_capacity: FreeCapacity, node: NodeCapacity, offers: Chunks) -> float:
    slowest, taken = offers[0]
    if len(offers) > 1 and offers[1][0] <= slowest + AS_FAST:
        worsts = worst_scores(free_capacity, node, offers)
        worst = worsts[_dispensable(offers, worsts, 1)[0]]
    else:
        of_node = free_capacity.scores.worst.get(node.node.id, {})
        worst = max([of_node.get(gpu, TYPICAL) for gpu in taken])
    left = len(node.gpus.whole) - len(taken)
    return slowest + SPARING * (1.0 - worst) + WHOLE_NODES * left / len(node.gpus.models)


def _kept_costs(free_capacity: FreeCapacity, node: NodeCapacity, need: ChunksKey, offers: Chunks) -> list[float]:
    key = need if len(offers) == len(node.chunked[need]) else (*need, len(offers))
    costs = node.costs.get(key)
    if costs is None:
        if len(node.costs) >= KEPT_MAX:
            node.costs.clear()
        costs = node.costs[key] = _costs(free_capacity, node, offers)
    return costs


def _costs(free_capacity: FreeCapacity, node: NodeCapacity, offers: Chunks) -> list[float]:
    """The cost of taking one chunk of the node, two, …, all."""
    worsts = worst_scores(free_capacity, node, offers)
    left, gpus, size = len(node.gpus.whole), len(node.gpus.models), len(offers[0][1])
    costs: list[float] = []
    of_first, last = 0.0, len(offers)
    for count, ((slowest, _), worst) in enumerate(zip(offers, worsts, strict=True), 1):
        left -= size
        of_first += worst
        of_taken = of_first
        if count < last and offers[count][0] <= slowest + AS_FAST:
            of_taken = sum([worsts[at] for at in _dispensable(offers, worsts, count)])
        costs.append(slowest + SPARING * ((count - of_taken) / count) + WHOLE_NODES * left / gpus)
    return costs


def _dispensable(offers: Chunks, worsts: Sequence[float], count: int) -> Sequence[int]:
    """The indices of the chunks that do not slow the job down and that other jobs would gain least from."""
    slowest = offers[count - 1][0] + AS_FAST
    if len(offers) == count or offers[count][0] > slowest:
        return range(count)
    as_fast = [at for at, (score, _) in enumerate(offers) if score <= slowest]
    as_fast.sort(key=lambda at: (1.0 - worsts[at], offers[at][1]))
    return as_fast[:count]


def worst_scores(free_capacity: FreeCapacity, node: NodeCapacity, offers: Chunks) -> list[float]:
    """By chunk, the score of its slowest GPU for the class that this GPU suits worst. Other jobs gain most from chunks
    with a low one."""
    worst = free_capacity.scores.worst.get(node.node.id, {})
    if offers and len(offers[0][1]) == 1:
        return [worst.get(gpu, TYPICAL) for _, (gpu,) in offers]
    return [
        worst.get(gpus[0], TYPICAL) if len(gpus) == 1 else max([worst.get(gpu, TYPICAL) for gpu in gpus])
        for _, gpus in offers
    ]


def _across_nodes(free_capacity: FreeCapacity, want: RoleRequest, count: int, asked: PlacementRequest) -> Picks | None:
    """A place on GPUs that are fast enough: first nodes that it uses up, then as few others as possible."""
    scores, name = free_capacity.scores.of(asked.job_class), free_capacity.scores.known(asked.job_class)
    by_node = [(node, chunks(node, want.request, scores, name)) for node in _emptiest(free_capacity, want, count)]
    everything = sorted([score for _, offers in by_node for score, _ in offers])
    if len(everything) < count:
        return None
    slowest = everything[count - 1] + AS_FAST
    usable = []
    for node, offers in by_node:
        fast = [chunk for chunk in offers if chunk[0] <= slowest]
        if fast:
            leaves = len(node.gpus.whole) - len(fast) * want.request.gpus
            usable.append((leaves, -len(fast), node.node.id, node, fast))
    usable.sort(key=lambda part: part[:3])
    picks: Picks = []
    left = count
    for _, _, _, node, fast in [part for part in usable if -part[1] <= count]:
        if len(fast) <= left:
            picks.append((node, in_parts(node, [gpus for _, gpus in fast])))
            left -= len(fast)
        if not left:
            return picks
    chosen = {node.node.id for node, _ in picks}
    rest = [part for part in usable if part[2] not in chosen]
    rest.sort(key=lambda part: (-part[1] < left, -part[1] - left if -part[1] >= left else 0, part[0], part[2]))
    for _, _, _, node, fast in rest:
        worth = [
            (1.0 - worst, gpus) for worst, (_, gpus) in zip(worst_scores(free_capacity, node, fast), fast, strict=True)
        ]
        picks.append((node, in_parts(node, [gpus for _, gpus in sorted(worth)[:left]])))
        left -= len(picks[-1][1])
        if not left:
            return picks
    return None


def _emptiest(free_capacity: FreeCapacity, want: RoleRequest, count: int) -> list[NodeCapacity]:
    """All nodes of a small pool; of a large one the emptiest, enough for an ample choice."""
    ample = CHOICE * count * want.request.gpus
    found: list[NodeCapacity] = []
    for free in sorted(free_capacity.buckets, reverse=True):
        if free < want.request.gpus:
            break
        for node_id in free_capacity.buckets[free]:
            if ample <= 0 and len(found) >= NODES_LEAST:
                return found
            node = free_capacity.nodes[node_id]
            if node.starts(want.request):
                found.append(node)
                ample -= free
    return found
