"""Another share of a GPU for the ranks of a running job: less at once, more as far as their GPUs have it."""

from collections.abc import Collection, Sequence

from msgspec import structs

from libs.domain.job import Allocation, Cause, CauseCode, Job, JobEvent, JobState, Step
from libs.domain.shares import WHOLE, Share
from libs.messages.asks import Ask, Reshare
from services.scheduler.thinking.picture import Picture


def share(picture: Picture, ask: Ask, now: float, *, closed: Collection[str] = ()) -> list[Step]:
    """The step that `ask` leads to; none if it is outdated, unlawful or changes nothing. What the GPUs do not have is
    not given, and the step says so. On `closed` nodes a rank gets no more than its job's specification requests. On
    nodes that hold a run to its first limit a rank keeps that limit, and requests no more."""
    job, asked = picture.jobs.get(ask.subject_id), ask.share
    if job is None or asked is None or job.placement is None or job.state is not JobState.RUNNING:
        return []
    ranks = _ranks(job, asked.role)
    if not ranks or not _is_sane(asked) or asked.epoch not in (None, job.epoch):
        return []
    had = ranks[0].share
    assert had is not None, "only ranks with shares are looked at"
    if asked.instead_of not in (None, had.request):
        return []
    wanted = had.request if asked.request is None else asked.request
    most, where = _most(picture, job, ranks, closed)
    request = min(wanted, max(most, had.request))
    limit = max(request, had.limit if asked.limit is None else asked.limit)
    keeping = _keeping_limits(picture, ranks) if limit != had.limit else ""
    if keeping:
        request, limit = min(request, had.limit), had.limit
    role = ranks[0].role
    after = tuple(
        one
        if one.role != role or one.share is None or one.leaving
        else structs.replace(one, share=structs.replace(one.share, request=request, limit=limit))
        for one in job.placement.allocations
    )
    told = asked.cause is None if keeping else request < wanted  # the reallocator would ask again and again
    if after == job.placement.allocations and not told:
        return []
    has = structs.replace(had, request=request, limit=limit)
    cause = asked.cause or _cause(ask, had, has, wanted=wanted, where=where, keeping=keeping)
    placement = structs.replace(job.placement, allocations=after)
    return picture.go(job, JobEvent.TUNED, cause, now, ask=ask.id, placement=placement)


def _is_sane(asked: Reshare) -> bool:
    return all(part is None or 0 < part <= WHOLE for part in (asked.request, asked.limit))


def _ranks(job: Job, role: str) -> list[Allocation]:
    """The ranks of a role, which has shares; of the only such role if none is named."""
    assert job.placement is not None
    sharing = [one for one in job.placement.staying if one.share is not None and role in ("", one.role)]
    return sharing if len({one.role for one in sharing}) == 1 else []


def _most(picture: Picture, job: Job, ranks: Sequence[Allocation], closed: Collection[str]) -> tuple[int, str]:
    """The largest request that each of the ranks could have alike, and the GPU that has no more."""
    by_gpu: dict[tuple[str, int], list[Share]] = {}
    for one in ranks:
        if one.share is not None:
            by_gpu.setdefault((one.node_id, one.gpus[0]), []).append(one.share)
    asked = job.spec.roles[ranks[0].role].share
    most, where = WHOLE, ""
    for (node_id, gpu), held in sorted(by_gpu.items()):
        node = picture.pool.room.nodes.get(node_id)
        left = None if node is None else node.gpus.left_of(gpu)
        fits = (sum(share.request for share in held) + max(0, 0 if left is None else left.time)) // len(held)
        if node_id in closed and asked is not None:
            fits = min(fits, asked.held.request)
        if fits < most:
            most, where = fits, f"GPU {gpu} of {node_id}"
    return most, where


def _keeping_limits(picture: Picture, ranks: Sequence[Allocation]) -> str:
    """The nodes of these ranks that hold each of them to the limit with which it began."""
    nodes = picture.pool.nodes
    held_on = sorted({one.node_id for one in ranks} & nodes.keys())
    return ", ".join(node_id for node_id in held_on if nodes[node_id].keeps_limits)


def _cause(ask: Ask, had: Share, has: Share, *, wanted: int, where: str, keeping: str) -> Cause:
    what = f"stays {_text(has)}" if has == had else f"{_text(had)} → {_text(has)}"
    sentence = f"share {what} of a GPU, asked by {ask.tenant}"
    if has.request < wanted and where:
        sentence += f": {wanted / WHOLE:g} was asked for, and {where} has no more"
    if keeping:
        sentence += f"; what runs on {keeping} keeps the limit with which it began, {has.limit / WHOLE:g}"
    numbers = {"request": has.request / WHOLE, "limit": has.limit / WHOLE, "asked": wanted / WHOLE}
    return Cause(code=CauseCode.SHARE_ASKED, sentence=sentence, by=ask.tenant, numbers=numbers)


def _text(share: Share) -> str:
    return f"{share.request / WHOLE:g} (up to {share.limit / WHOLE:g})"
