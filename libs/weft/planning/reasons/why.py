"""Explains the place of a gang: its speed there, and its speed if packed in the same capacity."""

from collections.abc import Sequence

from msgspec import Struct

from weft.domain.job import Allocation
from weft.domain.text import listed, plural
from weft.planning.capacity import NO_SPEEDS, FreeCapacity
from weft.planning.capacity.gpus_left import Left
from weft.planning.finding import find
from weft.planning.placement.unscored import packed, tightest_node
from weft.planning.reasons.shortages import each_asks, part_text, short_on_each
from weft.planning.reasons.slow import SlowGpus
from weft.planning.resource_request import PlacementRequest, ResourceRequest, gpus_in, is_pinned, may_choose
from weft.planning.scores import TYPICAL, GpuKey

SHARING = "best fit"  # how every policy places shares
APART = "replicas apart"  # how every policy places services
ALIKE = 0.005  # slowdowns that differ by less are reported as equal
NODES_NAMED = 3
NONE_SLOW = SlowGpus({}, 0.0)


class PlacementExplanation(Struct, frozen=True):
    """In `numbers`, `slowdown` is the score of the slowest GPU (`slowest`) times `locality`: the factor of the network
    between its nodes, or of the links between its GPUs if they are on one node. `penalty_learnt`: the factor across
    nodes that its workload has shown, where that is known. `model_speed`: how fast the job is on the model of its GPUs,
    in parts of the fastest model; the slowdown is beside that."""

    sentence: str
    numbers: dict[str, float]


def why_there(
    free_capacity: FreeCapacity,
    resource_request: ResourceRequest,
    asked: PlacementRequest,
    allocations: Sequence[Allocation],
    *,
    placement: str,
    slow: SlowGpus = NONE_SLOW,
) -> PlacementExplanation:
    """Explain a place that is still free. `placement`: name of the placement; `slow`: scores of GPUs."""
    gpus, shared = gpus_in(allocations), [one for one in allocations if one.share is not None]
    nodes = list(dict.fromkeys(allocation.node_id for allocation in allocations))
    pinned = is_pinned(resource_request)
    if not gpus and pinned:
        return PlacementExplanation(f"pinned to {nodes[0]}, where its CPUs and memory are free", {})
    if not gpus:
        together = " together" if len(allocations) > 1 else ""
        free = f"its CPUs and memory are free{together} on {_named(nodes)}"
        sentence = f"{free}; the fullest node that fits it without GPUs"
        return PlacementExplanation(sentence, {})
    slowest = max(
        free_capacity.scores.get(asked.job_class, (one.node_id, gpu)) for one in allocations for gpu in one.gpus
    )
    slowdown = (
        max(free_capacity.slowdown([one], asked) for one in allocations if one.gpus)
        if asked.is_service
        else free_capacity.slowdown(allocations, asked, speeds=NO_SPEEDS)
    )
    locality = slowdown / slowest
    numbers = {"slowdown": slowdown, "slowest": slowest, "locality": locality}
    several = gpus > 1 or len(shared) > 1
    where = f"{nodes[0]}{' together' if several else ''}" if len(nodes) == 1 else _named(nodes)
    speed = f"slowest {slowest:.2f}" if several else f"score {slowest:.2f}"
    if locality != 1.0:
        speed += f" × locality {locality:.2f}"
        if asked.workload in free_capacity.locality.by_workload:
            numbers["penalty_learnt"] = free_capacity.locality.across(asked.workload)
            speed += f" (its workload was measured: {numbers['penalty_learnt']:.2f} across nodes)"
    how = "pinned" if pinned else SHARING if len(shared) == len(allocations) else placement
    if asked.is_service and not pinned:
        how = APART
    sentence = f"{how}: {_what(allocations)} of {where}, {speed}"
    if shared:
        sentence += _left_then(free_capacity, shared) + _beside(free_capacity, shared, asked.job_class, numbers)
    sentence += _on_model(free_capacity, resource_request, asked, allocations, numbers)
    if not (pinned or asked.is_service):
        sentence += _forced(free_capacity, resource_request, allocations)
    taken = _gpus_of(allocations)
    alike = pinned or placement == "packed" or how in (SHARING, APART)  # packed would have put it there too
    otherwise = None if alike else find(free_capacity, resource_request, asked, placer=packed)
    if otherwise is not None:
        numbers["slowdown_packed"] = free_capacity.slowdown(otherwise, asked)
        sentence += _against(numbers["slowdown_packed"], free_capacity.slowdown(allocations, asked))
        left = _free_beside(free_capacity, resource_request, nodes) | _gpus_of(otherwise)
        if avoided := slow.avoided(sorted(left - taken), slowest):
            sentence += f"; left aside: {avoided}"
    if named := slow.taken(sorted(taken)):
        sentence += f"; taken although {named}"
    return PlacementExplanation(sentence, numbers)


def _on_model(
    free_capacity: FreeCapacity,
    resource_request: ResourceRequest,
    asked: PlacementRequest,
    allocations: Sequence[Allocation],
    numbers: dict[str, float],
) -> str:
    """The models that were considered for a job that has a choice, and the reason for the model that it gets."""
    speeds = free_capacity.speeds_for(asked)
    if not speeds:
        return ""
    taken = {free_capacity.nodes[node_id].gpus.models[gpu] for node_id, gpu in _gpus_of(allocations)}
    slowest = min(taken, key=lambda model: (speeds[model], model))
    numbers["model_speed"] = speeds[slowest]
    if not may_choose(resource_request):
        return ""
    requests = [want.request for want in resource_request if want.request.gpus]
    suited = {model: speed for model, speed in speeds.items() if all(one.may_have(model) for one in requests)}
    others = sorted(suited.keys() - taken, key=lambda model: (-suited[model], model))
    faster = [model for model in others if suited[model] > speeds[slowest]]
    on = listed(sorted(taken))
    if len(taken) > 1:
        return f"; on {on}, because it fits on no model of GPUs alone" if others or len(suited) > 1 else ""
    if faster:
        parts = [f"{model} is {suited[model] / speeds[slowest]:.1f} times as fast for it" for model in faster]
        return f"; on {on}, because no faster place is free: {listed(parts)}"
    if others:
        parts = [f"{model} ({suited[model] / speeds[slowest]:.2f})" for model in others]
        return f"; on {on}, the fastest model for it; the others, relative to it: {listed(parts)}"
    return ""


def _what(allocations: Sequence[Allocation]) -> str:
    """`2 GPUs`, `0.5 of GPU 3`, `2 GPUs and 3 shares of GPUs`."""
    whole = sum(len(one.gpus) for one in allocations if one.share is None)
    shared = [one for one in allocations if one.share is not None]
    told = [plural(whole, "GPU")] if whole or not shared else []
    if len(shared) == 1:
        told.append(f"{gpus_in(shared):g} of GPU {shared[0].gpus[0]}")
    elif shared:
        together = len({(one.node_id, one.gpus[0]) for one in shared})
        told.append(f"{len(shared)} shares of {plural(together, 'GPU')}, {gpus_in(shared):g} in all")
    return listed(told)


def _left_then(free_capacity: FreeCapacity, shared: Sequence[Allocation]) -> str:
    """Free capacity of the fullest GPU of the job, once the job holds its share."""
    lefts: list[Left] = []
    with free_capacity.supposing():
        free_capacity.take_all(shared)
        for one in shared:
            lefts += [left for gpu in one.gpus if (left := free_capacity.nodes[one.node_id].gpus.left_of(gpu))]
    if not lefts:
        return ""
    least = min(lefts)
    others = least.holders - sum(one.gpus == shared[0].gpus for one in shared) if len(shared) == 1 else 0
    beside = f"beside {plural(others, 'other share')}, " if others > 0 else ""
    whose = "of that GPU" if len(shared) == 1 else "of the fullest of these GPUs"
    return f"; {beside}{part_text(max(0, least.time), max(0, least.memory))} {whose} is left"


def _beside(
    free_capacity: FreeCapacity, shared: Sequence[Allocation], job_class: str, numbers: dict[str, float]
) -> str:
    """The estimated mutual slowdown of the job and those beside it, also as `numbers`; empty without one."""
    own = theirs = TYPICAL
    for one in shared:
        for gpu in one.gpus:
            left = free_capacity.nodes[one.node_id].gpus.left_of(gpu)
            pair = free_capacity.scores.beside(job_class, left.company) if left is not None else (TYPICAL, TYPICAL)
            own, theirs = max(own, pair[0]), max(theirs, pair[1])
    if max(own, theirs) < TYPICAL + ALIKE:
        return ""
    numbers |= {"beside_slowdown": own, "neighbours_slowdown": theirs}
    return f"; beside the other jobs there its steps take {own:.2f} times as long, and their steps {theirs:.2f} times"


def _free_beside(free_capacity: FreeCapacity, resource_request: ResourceRequest, nodes: Sequence[str]) -> set[GpuKey]:
    """The GPUs of these nodes that the job could have had."""
    return {
        (node_id, gpu)
        for node_id in nodes
        for want in resource_request
        if want.request.gpus
        for gpu in free_capacity.nodes[node_id].gpus_for(want.request)
    }


def _gpus_of(allocations: Sequence[Allocation]) -> set[GpuKey]:
    return {(allocation.node_id, gpu) for allocation in allocations for gpu in allocation.gpus}


def _forced(free_capacity: FreeCapacity, resource_request: ResourceRequest, allocations: Sequence[Allocation]) -> str:
    """Which resource spread the replicas of a role over several nodes; empty if one node could have held them."""
    told: list[str] = []
    for want in resource_request:
        replicas = [allocation for allocation in allocations if allocation.role == want.role]
        if want.request.share is not None or len({allocation.node_id for allocation in replicas}) < 2:
            continue
        if tightest_node(free_capacity, want, len(replicas)) is not None:
            continue
        whose = f"all {len(replicas)} replicas" + (f" of {want.role}" if len(resource_request) > 1 else "")
        short = short_on_each(free_capacity, want.request, len(replicas))
        what = f"{short} for {whose} ({each_asks(want.request, short)})" if short else f"all that {whose} ask for"
        told.append(f"; on several nodes, because no node had {'enough ' if short else ''}{what}")
    return "".join(told)


def _against(otherwise: float, slowdown: float) -> str:
    """The speed of the chosen place compared with the place that packing would have given."""
    if abs(otherwise - slowdown) < ALIKE:
        return "; the placement packed would be as fast"
    if otherwise > slowdown:
        less = 100 * (1 - slowdown / otherwise)
        return f"; here it takes {less:.0f} % less time than at the place of the placement packed ({otherwise:.2f})"
    return f"; the placement packed would use faster GPUs ({otherwise:.2f}), which are left to jobs that gain more"


def _named(nodes: Sequence[str]) -> str:
    return listed(nodes) if len(nodes) <= NODES_NAMED else plural(len(nodes), "node")
