"""Jobs that must run on one node, and perhaps on certain GPUs there: where they go, and who is in their way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from libs.domain.job import Cause, CauseCode
from libs.domain.quantity import count_text, size_text
from libs.planning.closed import why_closed
from libs.planning.limits import cpus_text
from libs.planning.placement.chunks import chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from libs.domain.cluster import Request
    from libs.domain.job import Job
    from libs.planning.room import NodeRoom, Picks, PlacementRequest, Room, Shape, Want

NAMED_MAX = 3


def is_pinned(shape: Shape) -> bool:
    return any(want.request.node is not None for want in shape)


def pinned(room: Room, want: Want, count: int, asked: PlacementRequest) -> Picks | None:
    """On its node alone; on exactly the GPUs it is pinned to, else on the fastest that are free there."""
    node = room.nodes.get(want.request.node or "")
    if node is None or not room.is_open(node.node.id) or node.count(want.request, count) < count:
        return None
    if not want.request.gpus:
        return [(node, [()] * count)]
    if want.request.gpu is None:
        name = room.scores.known(asked.job_class)
        offers = chunks(node, want.request, room.scores.of(name), name)
        return [(node, [gpus for _, gpus in offers[:count]])]
    parts = gpus_wanted(want.request, count)
    free = set(node.gpus_for(want.request))
    return [(node, parts)] if all(free.issuperset(gpus) for gpus in parts) else None


def gpus_wanted(request: Request, count: int) -> list[tuple[int, ...]]:
    """For each of `count` replicas, from its first GPU on."""
    assert request.gpu is not None
    first, size = request.gpu, request.gpus
    return [tuple(range(first + at * size, first + (at + 1) * size)) for at in range(count)]


def why_not_there(room: Room, want: Want) -> Cause:
    """Why a pinned want does not fit now, though it is known not to."""
    request = want.request
    node = room.nodes.get(request.node or "")
    if node is None:
        return Cause(code=CauseCode.TOO_BIG, sentence=f"is pinned to {request.node}, which is no node of its pool")
    where = f"is pinned to {_gpus_of(want)}{request.node}"
    missing, busy = _missing(node, want), _busy(node, want)
    if missing:
        has = f"which has {_listed(sorted(node.models)) if node.models else 'no GPUs'}"
        if any(gpu in node.models for gpu in missing):
            has = f"where {_listed(missing)} is no {request.model}"
        return Cause(code=CauseCode.TOO_BIG, sentence=f"{where}, {has}")
    if not room.is_open(request.node or ""):
        return Cause(code=CauseCode.NO_NODES, sentence=f"{where}, which {why_closed(node.node)}")
    if busy:
        sentence = f"{where}, of which {_listed(busy)} {'is' if len(busy) == 1 else 'are'} not free"
        return Cause(code=CauseCode.NO_ROOM, sentence=sentence, numbers={"gpus_busy": float(len(busy))})
    numbers = {
        "replicas_wanted": float(want.least),
        "gpus_wanted": float(request.gpus),
        "gpus_free": float(len(node.gpus_for(request))),
        "cpus_free": max(node.cpus, 0.0),
        "memory_free": float(max(node.memory, 0)),
    }
    sentence = (
        f"{where}; it wants {want.least} × ({count_text(request.gpus, 'GPU')}, {cpus_text(request.cpus)},"
        f" {size_text(request.memory)}); free there are {count_text(int(numbers['gpus_free']), 'GPU')},"
        f" {cpus_text(numbers['cpus_free'])},"
        f" {size_text(max(node.memory, 0))}"
    )
    return Cause(code=CauseCode.NO_ROOM, sentence=sentence, numbers=numbers)


def in_the_way(shape: Shape, jobs: Iterable[Job]) -> list[Job]:
    """Those of `jobs` that hold GPUs which a pinned shape needs, or anything there if it needs none by index."""
    found: list[Job] = []
    wants = [(want.request, {gpu for gpus in _wanted(want) for gpu in gpus}) for want in shape]
    for job in jobs:
        for allocation in job.placement.allocations if job.placement else ():
            if any(
                allocation.node_id == request.node
                and (not gpus.isdisjoint(allocation.gpus) if gpus else bool(allocation.gpus) or not request.gpus)
                for request, gpus in wants
            ):
                found.append(job)
                break
    return found


def with_holders(cause: Cause, holders: Sequence[Job]) -> Cause:
    """The same, and who holds what it needs."""
    if not holders:
        return cause
    names = ", ".join(job.id for job in holders[:NAMED_MAX])
    others = f" and {len(holders) - NAMED_MAX} more" if len(holders) > NAMED_MAX else ""
    return structs.replace(cause, sentence=f"{cause.sentence}; held by {names}{others}", by=holders[0].id)


def _wanted(want: Want) -> list[tuple[int, ...]]:
    if want.request.gpu is None or not want.request.gpus:
        return []
    return gpus_wanted(want.request, want.least)


def _missing(node: NodeRoom, want: Want) -> list[int]:
    """GPUs that the node does not have, or not of that model."""
    model = want.request.model
    return [
        gpu
        for gpus in _wanted(want)
        for gpu in gpus
        if gpu not in node.models or (model is not None and node.models[gpu] != model)
    ]


def _busy(node: NodeRoom, want: Want) -> list[int]:
    return [gpu for gpus in _wanted(want) for gpu in gpus if gpu not in node.free]


def _gpus_of(want: Want) -> str:
    wanted = [gpu for gpus in _wanted(want) for gpu in gpus]
    return f"{_listed(wanted)} of " if wanted else ""


def _listed(gpus: Sequence[int]) -> str:
    """`GPU 3`, `GPUs 0–3`, `GPUs 0, 2`."""
    if len(gpus) == 1:
        return f"GPU {gpus[0]}"
    if len(gpus) > 2 and gpus[-1] - gpus[0] == len(gpus) - 1:
        return f"GPUs {gpus[0]}–{gpus[-1]}"
    return f"GPUs {', '.join(map(str, gpus))}"
