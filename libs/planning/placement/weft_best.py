"""Weft's own placement: the place where the job runs fastest, and among those as fast the one that others miss least.

Three things are weighed, all as parts of the job's time. How long it takes there (the slowest GPU, times the locality)
counts in full. GPUs that are slow for other classes and not for this one are taken first: the fast ones stay free for
whom they speed up. And what is left of a node is best nothing: a whole node is what the next gang needs.
"""

from collections.abc import Callable

from libs.planning.capacity import Chunks, NodeRoom, Picks, Room
from libs.planning.placement.chunks import chunks
from libs.planning.shape import PlacementRequest, Want

SPARING = 0.3  # what a GPU that others would gain from counts, against one's own gain
WHOLE_NODES = 0.04  # what breaking a node that was whole counts at most
CHOICE = 4  # among how many times the GPUs it needs a gang chooses, in pools of more than NODES_LEAST nodes
NODES_LEAST = 64
MUCH_SLOWER = 0.8  # against the penalty: from where on it is worth a look whether GPUs of several nodes are faster
AS_FAST = 0.002  # scores nearer to each other than this are equal


def weft_best(room: Room, want: Want, count: int, asked: PlacementRequest) -> Picks | None:
    together = _in_one_node(room, want, count, asked)
    if together is None:
        return _across_nodes(room, want, count, asked)
    penalty = room.locality.across(asked.job_class)
    if count == 1 or _slowest(room, together, asked) <= MUCH_SLOWER * penalty:
        return together
    apart = _across_nodes(room, want, count, asked)
    return together if apart is None or _slowdown(room, together, asked) <= _slowdown(room, apart, asked) else apart


def _slowest(room: Room, picks: Picks, asked: PlacementRequest) -> float:
    scores = room.scores.of(asked.job_class)
    return max(scores.get((node.node.id, gpu), 1.0) for node, replicas in picks for gpus in replicas for gpu in gpus)


def _slowdown(room: Room, picks: Picks, asked: PlacementRequest) -> float:
    return _slowest(room, picks, asked) * room.spread_over({node.node.id for node, _ in picks}, asked.job_class)


def _in_one_node(room: Room, want: Want, count: int, asked: PlacementRequest) -> Picks | None:
    if count * want.request.gpus > room.largest:
        return None
    name = room.scores.known(asked.job_class)
    found = room.best_node((want.request, count, name), _cost_of_node(room, want, count, name))
    if found is None:
        return None
    node = found[1]
    offers = chunks(node, want.request, room.scores.of(name), name)
    return [(node, _dispensable(room, node, offers, count)[1])]


def _cost_of_node(room: Room, want: Want, count: int, name: str) -> Callable[[NodeRoom], tuple[float] | None]:
    request, scores = want.request, room.scores.of(name)
    gpus = count * request.gpus

    def cost(node: NodeRoom) -> tuple[float] | None:
        left = len(node.gpus.whole) - gpus
        if left < 0:
            return None
        offers = chunks(node, request, scores, name)
        if len(offers) < count:
            return None
        slowest, taken = _dispensable(room, node, offers, count)
        sparing = _worth_of_all(room, node, taken) / count
        return (slowest + SPARING * sparing + WHOLE_NODES * left / len(node.gpus.models),)

    return cost


def _dispensable(room: Room, node: NodeRoom, offers: Chunks, count: int) -> tuple[float, list[tuple[int, ...]]]:
    """Of the chunks that do not slow it down, those that others would gain least from; and its slowest GPU's score."""
    slowest = offers[count - 1][0]
    if len(offers) == count or offers[count][0] > slowest + AS_FAST:
        return slowest, [gpus for _, gpus in offers[:count]]
    as_fast = [gpus for score, gpus in offers if score <= slowest + AS_FAST]
    as_fast.sort(key=lambda gpus: (_worth_to_others(room, node, gpus), gpus))
    return slowest, as_fast[:count]


def _worth_to_others(room: Room, node: NodeRoom, gpus: tuple[int, ...]) -> float:
    """How much faster than the typical one these are for the class they suit worst; below zero: slower."""
    worst = room.scores.worst.get(node.node.id)
    if worst is None:
        return 0.0
    return 1.0 - (worst.get(gpus[0], 1.0) if len(gpus) == 1 else max([worst.get(gpu, 1.0) for gpu in gpus]))


def _worth_of_all(room: Room, node: NodeRoom, chunks_taken: list[tuple[int, ...]]) -> float:
    """The sum of that; what is asked most often, of single GPUs, without a call for each."""
    worst = room.scores.worst.get(node.node.id)
    if worst is None:
        return 0.0
    if len(chunks_taken[0]) == 1:
        return len(chunks_taken) - sum([worst.get(gpu, 1.0) for (gpu,) in chunks_taken])
    return sum(_worth_to_others(room, node, gpus) for gpus in chunks_taken)


def _across_nodes(room: Room, want: Want, count: int, asked: PlacementRequest) -> Picks | None:
    """Of the GPUs that are fast enough: nodes of which nothing is left, then as few others as can be."""
    scores, name = room.scores.of(asked.job_class), room.scores.known(asked.job_class)
    by_node = [(node, chunks(node, want.request, scores, name)) for node in _emptiest(room, want, count)]
    everything = sorted(score for _, offers in by_node for score, _ in offers)
    if len(everything) < count:
        return None
    slowest = everything[count - 1] + AS_FAST
    usable = []
    for node, offers in by_node:
        fast = [gpus for score, gpus in offers if score <= slowest]
        if fast:
            leaves = len(node.gpus.whole) - len(fast) * want.request.gpus
            usable.append((leaves, -len(fast), node.node.id, node, fast))
    usable.sort(key=lambda part: part[:3])
    picks: Picks = []
    left = count
    for _, _, _, node, fast in [part for part in usable if -part[1] <= count]:
        if len(fast) <= left:
            picks.append((node, fast))
            left -= len(fast)
        if not left:
            return picks
    chosen = {node.node.id for node, _ in picks}
    rest = [part for part in usable if part[2] not in chosen]
    rest.sort(key=lambda part: (-part[1] < left, -part[1] - left if -part[1] >= left else 0, part[0], part[2]))
    for _, _, _, node, fast in rest:
        fast = sorted(fast, key=lambda gpus: (_worth_to_others(room, node, gpus), gpus))[:left]
        picks.append((node, fast))
        left -= len(fast)
        if not left:
            return picks
    return None


def _emptiest(room: Room, want: Want, count: int) -> list[NodeRoom]:
    """All nodes of a small pool; of a large one the emptiest, as many as give ample choice."""
    ample = CHOICE * count * want.request.gpus
    found: list[NodeRoom] = []
    for free in sorted(room.buckets, reverse=True):
        if free < want.request.gpus:
            break
        for node_id in room.buckets[free]:
            if ample <= 0 and len(found) >= NODES_LEAST:
                return found
            found.append(room.nodes[node_id])
            ample -= free
    return found
