"""Why a gang goes where it goes: how fast it is there, and how fast it would be if packed in the same room."""

from collections.abc import Sequence

from msgspec import Struct

from libs.domain.job import Allocation
from libs.domain.quantity import count_text
from libs.planning.capacity import Room
from libs.planning.finding import find
from libs.planning.placement.packed import packed, tightest_node
from libs.planning.scores import GpuKey
from libs.planning.shape import PlacementRequest, Shape, is_pinned
from libs.planning.shortages import each_asks, short_on_each
from libs.planning.slow import SlowGpus

ALIKE = 0.005  # slowdowns that differ by less are reported as equal
NODES_NAMED = 3
NONE_SLOW = SlowGpus({}, 0.0)


class Why(Struct, frozen=True):
    """Of the `numbers`, `slowdown` is the score of the slowest GPU (`slowest`) times `locality`."""

    sentence: str
    numbers: dict[str, float]


def why_there(
    room: Room,
    shape: Shape,
    asked: PlacementRequest,
    allocations: Sequence[Allocation],
    *,
    placement: str,
    slow: SlowGpus = NONE_SLOW,
) -> Why:
    """Of a place that is still free in the room. `placement` is the name of the placement; `slow`: scores of GPUs."""
    gpus = sum(len(allocation.gpus) for allocation in allocations)
    nodes = list(dict.fromkeys(allocation.node_id for allocation in allocations))
    pinned = is_pinned(shape)
    if not gpus and pinned:
        return Why(f"pinned to {nodes[0]}, where its CPUs and memory are free", {})
    if not gpus:
        together = " together" if len(allocations) > 1 else ""
        sentence = f"its CPUs and memory are free{together} on {_named(nodes)}; without GPUs, the fullest that fits"
        return Why(sentence, {})
    slowdown = room.slowdown(allocations, asked.job_class)
    slowest = max(room.slowdown([allocation], asked.job_class) for allocation in allocations if allocation.gpus)
    locality = slowdown / slowest
    numbers = {"slowdown": slowdown, "slowest": slowest, "locality": locality}
    where = f"{nodes[0]}{' together' if gpus > 1 else ''}" if len(nodes) == 1 else _named(nodes)
    speed = f"slowest {slowest:.2f}" if gpus > 1 else f"score {slowest:.2f}"
    if locality != 1.0:
        speed += f" × locality {locality:.2f}"
    sentence = f"{'pinned' if pinned else placement}: {count_text(gpus, 'GPU')} of {where}, {speed}"
    if not pinned:
        sentence += _forced(room, shape, allocations)
    taken = _gpus_of(allocations)
    otherwise = None if pinned or placement == "packed" else find(room, shape, asked, placer=packed)
    if otherwise is not None:
        numbers["slowdown_packed"] = room.slowdown(otherwise, asked.job_class)
        sentence += _against(numbers["slowdown_packed"], slowdown)
        left = _free_beside(room, shape, nodes) | _gpus_of(otherwise)
        if avoided := slow.avoided(sorted(left - taken), slowest):
            sentence += f"; left aside: {avoided}"
    if named := slow.taken(sorted(taken)):
        sentence += f"; taken although {named}"
    return Why(sentence, numbers)


def _free_beside(room: Room, shape: Shape, nodes: Sequence[str]) -> set[GpuKey]:
    """The GPUs of these nodes that the job could have had."""
    return {
        (node_id, gpu)
        for node_id in nodes
        for want in shape
        if want.request.gpus
        for gpu in room.nodes[node_id].gpus_for(want.request)
    }


def _gpus_of(allocations: Sequence[Allocation]) -> set[GpuKey]:
    return {(allocation.node_id, gpu) for allocation in allocations for gpu in allocation.gpus}


def _forced(room: Room, shape: Shape, allocations: Sequence[Allocation]) -> str:
    """Which resource spread the replicas of a role over several nodes; empty if one node could have held them."""
    told: list[str] = []
    for want in shape:
        replicas = [allocation for allocation in allocations if allocation.role == want.role]
        if len({allocation.node_id for allocation in replicas}) < 2:
            continue
        if tightest_node(room, want, len(replicas)) is not None:
            continue
        whose = f"all {len(replicas)} replicas" + (f" of {want.role}" if len(shape) > 1 else "")
        short = short_on_each(room, want.request, len(replicas))
        what = f"{short} for {whose} ({each_asks(want.request, short)})" if short else f"all that {whose} ask for"
        told.append(f"; on several nodes, because no node had {'enough ' if short else ''}{what}")
    return "".join(told)


def _against(otherwise: float, slowdown: float) -> str:
    """How fast the chosen place is, against the place that packing would have given."""
    if abs(otherwise - slowdown) < ALIKE:
        return "; packed would be as fast"
    if otherwise > slowdown:
        less = 100 * (1 - slowdown / otherwise)
        return f"; here it takes {less:.0f} % less time than where packed would have put it ({otherwise:.2f})"
    return (
        f"; packed would have put it on faster GPUs ({otherwise:.2f}), which are left to jobs that gain more from them"
    )


def _named(nodes: Sequence[str]) -> str:
    if len(nodes) <= NODES_NAMED:
        return " and ".join([", ".join(nodes[:-1]), nodes[-1]] if len(nodes) > 1 else nodes)
    return f"{len(nodes)} nodes"
