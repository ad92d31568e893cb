"""Jobs that are pinned to a node or to GPUs there: why they do not fit, and which jobs hold what they need."""

from collections.abc import Iterable, Sequence

from msgspec import structs

from weft.domain.cluster import Request
from weft.domain.job import Cause, CauseCode, Job
from weft.domain.quantity import size_text
from weft.domain.shares import WHOLE
from weft.domain.text import listed, plural
from weft.planning.capacity import FreeCapacity, NodeCapacity
from weft.planning.reasons.closed import why_closed
from weft.planning.reasons.offering import missing_on, offered_text
from weft.planning.reasons.shortages import cpus_text, gpus_text, part_text, share_numbers
from weft.planning.resource_request import ResourceRequest, RoleRequest, pinned_gpus, with_gpus

NAMED_MAX = 3


def why_not_there(free_capacity: FreeCapacity, want: RoleRequest) -> Cause:
    """Why a pinned role that does not fit now does not."""
    request = want.request
    node = free_capacity.nodes.get(request.node or "")
    if node is None:
        return Cause(code=CauseCode.TOO_BIG, sentence=f"is pinned to {request.node}, which is not in its pool")
    where = f"is pinned to {_gpus_of(want)}{request.node}"
    missing, busy = _missing(node, want), _busy(node, want)
    if missing:
        has = f"which has {_numbered(sorted(node.gpus.models)) if node.gpus.models else 'no GPUs'}"
        if any(gpu in node.gpus.models for gpu in missing):
            has = f"where {_numbered(missing)} {_unsuited(node, missing, request)}"
        return Cause(code=CauseCode.TOO_BIG, sentence=f"{where}, {has}")
    if lacks := missing_on(node.node, request):
        offered = offered_text([each.node for each in free_capacity.nodes.values()], request)
        sentence = f"{where}, which {lacks}{f'; {offered}' if offered else ''}"
        return Cause(code=CauseCode.TOO_BIG, sentence=sentence)
    if not free_capacity.is_open(request.node or ""):
        return Cause(code=CauseCode.NO_NODES, sentence=f"{where}, which {why_closed(node.node)}")
    if busy and request.share is not None:
        return _part_taken(node, want, where)
    if busy:
        sentence = f"{where}, of which {_numbered(busy)} {'is' if len(busy) == 1 else 'are'} not free"
        return Cause(code=CauseCode.NO_ROOM, sentence=sentence, numbers={"gpus_busy": float(len(busy))})
    numbers = {
        "replicas_wanted": float(want.least),
        "gpus_wanted": float(request.gpus),
        "gpus_free": float(len(node.gpus_for(request))),
        "cpus_free": max(node.cpus, 0.0),
        "memory_free": float(max(node.memory, 0)),
    }
    if request.share is not None:
        numbers |= share_numbers(request, [node])
    sentence = (
        f"{where}; it wants {want.least} × ({_gpus_each(request)}, {cpus_text(request.cpus)},"
        f" {size_text(request.memory)}); free there are {plural(int(numbers['gpus_free']), 'GPU')},"
        f" {cpus_text(numbers['cpus_free'])},"
        f" {size_text(max(node.memory, 0))}"
    )
    if (left := numbers.get("share_left_max")) is not None:
        text = part_text(int(left * WHOLE), int(numbers["share_memory_left_max"]))
        sentence += f", and the most left on a shared GPU is {text}"
    return Cause(code=CauseCode.NO_ROOM, sentence=sentence, numbers=numbers)


def in_the_way(resource_request: ResourceRequest, jobs: Iterable[Job]) -> list[Job]:
    """The jobs that hold GPUs which a pinned shape needs, or anything there if it needs none by index."""
    found: list[Job] = []
    demand = [(want.request, set(_wanted(want))) for want in resource_request]
    for job in jobs:
        for allocation in job.placement.allocations if job.placement else ():
            if any(
                allocation.node_id == request.node
                and (not gpus.isdisjoint(allocation.gpus) if gpus else bool(allocation.gpus) or not with_gpus(request))
                for request, gpus in demand
            ):
                found.append(job)
                break
    return found


def with_holders(cause: Cause, holders: Sequence[Job]) -> Cause:
    """The same cause, with the jobs that hold what it needs."""
    if not holders:
        return cause
    names = listed([job.id for job in holders], NAMED_MAX)
    return structs.replace(cause, sentence=f"{cause.sentence}; held by {names}", by=holders[0].id)


def _wanted(want: RoleRequest) -> list[int]:
    """The GPUs that start it, where they are known by index."""
    return list(dict.fromkeys(gpu for gpus in pinned_gpus(want, want.least) for gpu in gpus))


def _missing(node: NodeCapacity, want: RoleRequest) -> list[int]:
    """GPUs that the node does not have, or whose model or memory does not suit the job."""
    makes = node.gpus.makes
    return [
        gpu for gpu in _wanted(want) if gpu not in makes or not want.request.suits(makes[gpu].model, makes[gpu].memory)
    ]


def _unsuited(node: NodeCapacity, gpus: Sequence[int], request: Request) -> str:
    """Why these GPUs do not suit the request: by their model, else by their memory."""
    models = [node.gpus.models.get(gpu, "") for gpu in gpus]
    if request.models and any(model not in request.models for model in models):
        return f"is no {' or '.join(request.models)}"
    if excluded := next((model for model in models if model in request.excluded), ""):
        return f"is of {excluded}, which the job excludes"
    return f"has less than {size_text(request.gpu_memory)}"


def _busy(node: NodeCapacity, want: RoleRequest) -> list[int]:
    if want.request.share is not None and node.gpus.count_shares(want.request, want.least) >= want.least:
        return []
    return [gpu for gpu in _wanted(want) if not node.gpus.has([gpu]) or want.request.share is not None]


def _part_taken(node: NodeCapacity, want: RoleRequest, where: str) -> Cause:
    """The refusal of a pinned GPU that has too little capacity for shares."""
    request, numbers = want.request, share_numbers(want.request, [node])
    demand = f"it wants {gpus_text(request)}" + (f", {want.least} times" if want.least > 1 else "")
    gpu = node.gpus.left_of(request.gpu or 0)
    if gpu is None:
        left = "none of that is left"
    else:
        context = node.gpus.makes[request.gpu or 0].context
        left = f"{part_text(max(0, gpu.time), max(0, gpu.memory - context))} is left of it"
    return Cause(code=CauseCode.NO_ROOM, sentence=f"{where}; {demand}, and {left}", numbers=numbers)


def _gpus_each(request: Request) -> str:
    return plural(request.gpus, "GPU") if request.share is None else gpus_text(request)


def _gpus_of(want: RoleRequest) -> str:
    wanted = _wanted(want)
    return f"{_numbered(wanted)} of " if wanted else ""


def _numbered(gpus: Sequence[int]) -> str:
    """`GPU 3`, `GPUs 0–3`, `GPUs 0, 2`."""
    if len(gpus) == 1:
        return f"GPU {gpus[0]}"
    if len(gpus) > 2 and gpus[-1] - gpus[0] == len(gpus) - 1:
        return f"GPUs {gpus[0]}–{gpus[-1]}"
    return f"GPUs {', '.join(map(str, gpus))}"
