"""Why a job has no place: now, or ever in its pool."""

from collections.abc import Mapping, Sequence

from msgspec import structs

from weft.domain.cluster import Node, Request
from weft.domain.job import Cause, CauseCode
from weft.domain.quantity import size_text
from weft.domain.shares import WHOLE, context_bytes
from weft.domain.spec import JobSpec
from weft.domain.text import listed, plural
from weft.planning.capacity import FreeCapacity, NodeCapacity, empty_capacity
from weft.planning.finding import find, first_unplaced
from weft.planning.reasons.closed import NAMED_MAX, closed_text, closed_with_room, missed, sick_gpus, sick_text
from weft.planning.reasons.offering import offered_text, unoffered
from weft.planning.reasons.pins import why_not_there
from weft.planning.reasons.shortages import (
    cpus_text,
    each_asks,
    gpus_text,
    make_text,
    part_text,
    share_numbers,
    short_in_all,
)
from weft.planning.resource_request import (
    NOBODY,
    PlacementRequest,
    ResourceRequest,
    RoleRequest,
    gpus_least,
    resource_request_of,
    smallest,
    with_gpus,
)

ROLES_NAMED_MAX = 3


def why_not(
    free_capacity: FreeCapacity, resource_request: ResourceRequest, asked: PlacementRequest = NOBODY
) -> Cause | None:
    """Why there is no place for the job now; None if there is one. The numbers are those of the moment."""
    if find(free_capacity, resource_request, asked) is not None:
        return None
    with free_capacity.supposing():
        want = first_unplaced(free_capacity, smallest(resource_request), asked)
        assert want is not None, "it did not fit a moment ago"
        cause = _why_no_place(free_capacity, want)
    roles = [each.role for each in resource_request]
    return _beside(cause, free_capacity, want, roles[: roles.index(want.role)])


def never_fits(spec: JobSpec, nodes: Sequence[Node], tenant: str = "") -> Cause | None:
    """Why such a job of `tenant` could not start even if every one of `nodes` were empty and open; None if it could."""
    resource_request = smallest(resource_request_of(spec, tenant))
    cause = why_not(empty_capacity(nodes), resource_request)
    if cause is None:
        return None
    if spec.pin is not None or unoffered(nodes, resource_request[0].request):
        return structs.replace(cause, code=CauseCode.TOO_BIG)
    largest = max((len(node.capacity.gpus) for node in nodes), default=0)
    together = sum(len(node.capacity.gpus) for node in nodes)
    sentence = (
        f"asks for {_needs(resource_request)}; the largest node of pool {spec.pool} has {plural(largest, 'GPU')},"
        f" {cpus_text(max((node.capacity.cpus for node in nodes), default=0))} and"
        f" {size_text(max((node.capacity.memory for node in nodes), default=0))},"
        f" and all {len(nodes)} together have {plural(together, 'GPU')}"
    )
    if any(want.request.share is not None for want in resource_request):
        sentence += f"; {_largest_share(resource_request, nodes)}"
    if offered := offered_text(nodes, resource_request[0].request):
        sentence += f"; {offered}"
    numbers = {
        "gpus_asked": float(gpus_least(resource_request)),
        "gpus_on_largest_node": float(largest),
        "gpus_in_pool": float(together),
    }
    return Cause(code=CauseCode.TOO_BIG, sentence=sentence, numbers=numbers)


def _beside(cause: Cause, free_capacity: FreeCapacity, want: RoleRequest, placed: Sequence[str]) -> Cause:
    """The same cause, which was found while the job's roles `placed` had their places in the room, told with them: what
    they take is free now. Else one job would be told that no GPU is free, and the next job that the same three are."""
    if cause.code is not CauseCode.NO_ROOM or not placed:
        return cause
    others = f"{'role' if len(placed) == 1 else 'roles'} {listed(placed)}"
    if len(placed) > ROLES_NAMED_MAX:
        others = f"{len(placed)} other roles"
    demand, _, found = cause.sentence.partition("; ")
    sentence = f"its role {want.role} {demand}; with its {others} placed, {found or 'there is no place for it'}"
    numbers, free = dict(cause.numbers), _gpus_free(free_capacity, want.request)
    if taken := sum(free) - numbers.get("gpus_free", sum(free)):
        numbers |= {"gpus_free": float(sum(free)), "gpus_free_max": float(max(free)), "gpus_for_other_roles": taken}
    return structs.replace(cause, sentence=sentence, numbers=numbers)


def _gpus_free(free_capacity: FreeCapacity, request: Request) -> list[int]:
    """The number of suitable free GPUs of each open node that could start such a replica, or of the pinned node."""
    nodes = [node for node in free_capacity.open_nodes if request.node in (None, node.node.id)]
    return [len(node.gpus_for(request)) for node in nodes if node.starts(request)]


def _why_no_place(free_capacity: FreeCapacity, want: RoleRequest) -> Cause:
    request = want.request
    if request.node is not None:
        return why_not_there(free_capacity, want)
    nodes = [each.node for each in free_capacity.nodes.values()]
    if nowhere := unoffered(nodes, request):
        return Cause(code=CauseCode.NO_NODES, sentence=nowhere)
    closed, offered = closed_text(free_capacity, request), offered_text(nodes, request)
    lacking = missed(free_capacity, request, want.least)
    open_nodes = [node for node in free_capacity.open_nodes if node.starts(request)]
    if not open_nodes:
        sentence = "no node of its pool takes work now"
        if offered:
            sentence = f"no node that could start it takes work now: {offered}"
        if closed:
            sentence += f": {closed}"
        elif lacking is not None:
            sentence += f"; {lacking.text()}"
        return Cause(code=CauseCode.NO_NODES, sentence=sentence)
    free = _gpus_free(free_capacity, request)
    numbers = {
        "replicas_wanted": float(want.least),
        "gpus_wanted": float(request.gpus),
        "gpus_free": float(sum(free)),
        "gpus_free_max": float(max(free)),
        "replicas_that_fit": float(sum(node.count(request, want.least) for node in open_nodes)),
    }
    # `offered` and `closed` name nodes that may have free GPUs, so "none is free" must name the nodes that it counts.
    among = "node that could start it" if offered else "node that takes work" if closed else "node"
    if request.share is not None:
        numbers |= share_numbers(request, open_nodes)
        sentence = _no_part_sentence(want, numbers, open_nodes, among)
    else:
        sentence = _no_room_sentence(want, numbers, open_nodes, among)
        if lacking is not None and lacking.one_each and want.least > 1 and request.gpus:
            sentence = f"needs {want.least} nodes with {_free_gpus(request)} each"
    if offered:
        sentence += f"; {offered}"
    if offered and request.volumes:
        numbers["nodes_with_volumes"] = float(sum(all(map(node.offers, request.volumes)) for node in nodes))
    if offered and request.where:
        numbers["nodes_that_match"] = float(sum(node.matches(request) for node in nodes))
    if closed:
        numbers["nodes_closed"] = float(len(closed_with_room(free_capacity, request)))
        sentence += f"; {closed}"
    if lacking is not None:
        sentence += f"; {lacking.text([each.node.id for each in closed_with_room(free_capacity, request)[:NAMED_MAX]])}"
    if request.gpus and (shared := sum(len(node.gpus.shared) for node in open_nodes)):
        numbers["gpus_shared"] = float(shared)
        sentence += f"; {plural(shared, 'GPU')} {'is' if shared == 1 else 'are'} held in shares"
    if with_gpus(request) and (occupied := free_capacity.gpus_occupied):
        numbers["gpus_occupied"] = float(occupied)
        sentence += f"; {occupied} more are held by runs that should have ended"
    if (with_gpus(request) or request.share is not None) and (sick := sick_gpus(open_nodes, request)):
        numbers["gpus_out_of_use"] = float(len(sick))
        sentence += f"; {sick_text(sick)}"
    return Cause(code=CauseCode.NO_ROOM, sentence=sentence, numbers=numbers)


def _no_room_sentence(
    want: RoleRequest, numbers: Mapping[str, float], nodes: Sequence[NodeCapacity], among: str
) -> str:
    request, free = want.request, f"{numbers['gpus_free']:g}"
    if request.gpus and numbers["gpus_free_max"] < request.gpus:
        most = f"the most free on one {among} is {numbers['gpus_free_max']:g} ({free} free in all)"
        found = most if numbers["gpus_free"] else f"none is free{_on_a(among)}"
        return f"wants {gpus_text(request)} on one node{_times(want)}; {found}"
    if numbers["replicas_that_fit"]:
        short = short_in_all(nodes, request, want.least)
        lacking = f", for lack of {short} ({each_asks(request, short)})" if short else ""
        in_all = f" ({free} GPUs free in all)" if request.gpus else ""
        what = gpus_text(request) if request.gpus else _cpus_and_memory(request)
        return (
            f"wants {want.least} replicas of {what} at once;"
            f" {numbers['replicas_that_fit']:g} would fit now{lacking}{in_all}"
        )
    cpus = max((node.cpus for node in nodes), default=0.0)
    memory = max((node.memory for node in nodes), default=0)
    gpus = (f"{gpus_text(request)} with ", f"{plural(int(numbers['gpus_free_max']), 'GPU')}, ")
    wanted, most = gpus if request.gpus else ("", "")
    return (
        f"wants {wanted}{_cpus_and_memory(request)} on one node{_times(want)};"
        f" no {among} has all of it (most free: {most}{cpus_text(round(max(cpus, 0), 3))}, {size_text(max(memory, 0))})"
    )


def _no_part_sentence(
    want: RoleRequest, numbers: Mapping[str, float], nodes: Sequence[NodeCapacity], among: str
) -> str:
    """The refusal of a share: free capacity of shared GPUs, and free GPUs."""
    request, nodes = want.request, [node for node in nodes if node.gpus.gives_shares]
    free = sum(len(node.gpus_for(request)) for node in nodes)
    if numbers["replicas_that_fit"]:
        short = short_in_all(nodes, request, want.least)
        lacking = f", for lack of {short} ({each_asks(request, short)})" if short else ""
        fits = f"{numbers['replicas_that_fit']:g} would fit now{lacking}"
        return f"wants {want.least} replicas of {gpus_text(request)} at once; {fits}"
    wanted = f"wants {gpus_text(request)}{_times(want)}"
    if not nodes:
        return f"{wanted}; no node that takes work gives shares of its GPUs"
    if any(node.gpus.count_shares(request, 1) for node in nodes):
        cpus, memory = max(node.cpus for node in nodes), max(node.memory for node in nodes)
        most = f"{cpus_text(round(max(cpus, 0), 3))}, {size_text(max(memory, 0))}"
        on_one = f"and {_cpus_and_memory(request)} on that GPU's node"
        return f"{wanted} {on_one}; no node with such a GPU has them (most free on a node: {most})"
    left = numbers.get("share_left_max")
    shared = "no GPU is shared"
    if left is not None:
        left_text = part_text(round(left * WHOLE), int(numbers["share_memory_left_max"]))
        shared = f"the most left on a shared GPU is {left_text}"
    if not free:
        no_gpu = f"no GPU is free{_on_a(among)}"
        return f"{wanted}; {shared}, and {no_gpu}" if left is not None else f"{wanted}; {no_gpu}"
    sizes = [
        make.memory - make.context
        for node in nodes
        for _, make, left in node.gpus.giving()
        if not left.holders and request.suits(make.model, make.memory)
    ]
    return f"{wanted}; {shared}, and the largest GPU that is free has {size_text(max(sizes))} for a share"


def _largest_share(resource_request: ResourceRequest, nodes: Sequence[Node]) -> str:
    if not any(node.gives_shares for node in nodes):
        return "no node gives shares of its GPUs"
    requests = [want.request for want in resource_request if want.request.share is not None]
    gpus = [
        gpu
        for node in nodes
        if node.gives_shares
        for gpu in node.capacity.gpus
        if any(request.suits(gpu.model, gpu.memory) for request in requests)
    ]
    most = max((gpu.memory - context_bytes(emulated=gpu.emulated) for gpu in gpus), default=0)
    named = make_text(requests[0])
    return f"one share can have {size_text(max(0, most))} of {f'a GPU{named}' if named else 'its largest GPU'}"


def _needs(resource_request: ResourceRequest) -> str:
    requests = ((want.least, want.request) for want in resource_request)
    return listed(
        [f"{least} × ({gpus_text(each)}, {cpus_text(each.cpus)}, {size_text(each.memory)})" for least, each in requests]
    )


def _cpus_and_memory(request: Request) -> str:
    return f"{cpus_text(request.cpus)} and {size_text(request.memory)}"


def _free_gpus(request: Request) -> str:
    return f"{plural(request.gpus, 'free GPU')}{make_text(request)}"


def _on_a(among: str) -> str:
    """Nothing where all nodes are meant."""
    return "" if among == "node" else f" on a {among}"


def _times(want: RoleRequest) -> str:
    return "" if want.least == 1 else f", {want.least} times"
