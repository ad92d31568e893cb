"""Changes the share of a GPU of the ranks of a running job: less at once, more as far as their GPUs have it."""

from collections.abc import Collection, Sequence

from msgspec import structs

from weft.domain.job import Allocation, Cause, CauseCode, Job, JobEvent, JobState, Step
from weft.domain.shares import WHOLE, Share
from weft.messages.asks import Ask, Reshare
from weftd.scheduler.thinking.state.cluster_state import ClusterState


def share(cluster_state: ClusterState, ask: Ask, now: float, *, closed: Collection[str] = ()) -> list[Step]:
    """The step that `ask` leads to; none if it is outdated, unlawful or changes nothing. What the GPUs do not have is
    not given, and the step says so. On `closed` nodes a rank gets no more than its job's specification requests."""
    job, asked = cluster_state.jobs.get(ask.subject_id), ask.share
    if job is None or asked is None or job.placement is None or job.state is not JobState.RUNNING:
        return []
    ranks = _ranks(job, asked.role)
    if not ranks or not _is_sane(asked) or asked.epoch not in (None, job.epoch):
        return []
    had = ranks[0].share
    assert had is not None, "only ranks with shares are looked at"
    if asked.instead_of not in (None, had.request):
        return []
    level, where = _level(cluster_state, job, ranks, closed)
    before = [one.share for one in ranks if one.share is not None]
    given = [_given(one, asked, level) for one in before]
    by_rank = {one.rank: share for one, share in zip(ranks, given, strict=True)}
    after = tuple(
        structs.replace(one, share=by_rank[one.rank]) if one.rank in by_rank else one
        for one in job.placement.allocations
    )
    short = asked.request is not None and any(one.request < asked.request for one in given)
    if after == job.placement.allocations and not short:
        return []
    # The sentence has the share of one rank: where ranks have different ones, of the first that gets another.
    was, has = next((pair for pair in zip(before, given, strict=True) if pair[0] != pair[1]), (before[0], given[0]))
    wanted = has.request if asked.request is None else asked.request
    cause = asked.cause or _cause(ask, was, has, wanted=wanted, where=where)
    placement = structs.replace(job.placement, allocations=after)
    return cluster_state.go(job, JobEvent.TUNED, cause, now, ask=ask.id, placement=placement)


def _given(had: Share, asked: Reshare, level: int) -> Share:
    """The new share of a rank that had this one: less if less is requested, more up to the level."""
    request = had.request
    if asked.request is not None:
        request = asked.request if asked.request <= request else max(request, min(asked.request, level))
    return structs.replace(had, request=request, limit=max(request, had.limit if asked.limit is None else asked.limit))


def _is_sane(asked: Reshare) -> bool:
    return all(part is None or 0 < part <= WHOLE for part in (asked.request, asked.limit))


def _ranks(job: Job, role: str) -> list[Allocation]:
    """The ranks of a role, which has shares; of the only such role if none is named."""
    assert job.placement is not None
    sharing = [one for one in job.placement.staying if one.share is not None and role in ("", one.role)]
    return sharing if len({one.role for one in sharing}) == 1 else []


def _level(
    cluster_state: ClusterState, job: Job, ranks: Sequence[Allocation], closed: Collection[str]
) -> tuple[int, str]:
    """The largest request up to which all ranks that have less could be raised, and the GPU that has no more."""
    by_gpu: dict[tuple[str, int], list[Share]] = {}
    for one in ranks:
        if one.share is not None:
            by_gpu.setdefault((one.node_id, one.gpus[0]), []).append(one.share)
    asked = job.spec.roles[ranks[0].role].share
    most, where = WHOLE, ""
    for (node_id, gpu), held in sorted(by_gpu.items()):
        node = cluster_state.pool.free_capacity.nodes.get(node_id)
        left = None if node is None else node.gpus.left_of(gpu)
        fits = _raised([share.request for share in held], 0 if left is None else max(0, left.time))
        if node_id in closed and asked is not None:
            fits = min(fits, asked.held.request)
        if fits < most:
            most, where = fits, f"GPU {gpu} of {node_id}"
    return most, where


def _raised(requests: Sequence[int], left: int) -> int:
    """The level to which `left` raises the smallest of these, those that have more staying as they are."""
    total = left
    ascending = sorted(requests)
    for count, request in enumerate(ascending, 1):
        total += request
        if count == len(ascending) or total // count <= ascending[count]:
            return total // count
    return left


def _cause(ask: Ask, had: Share, has: Share, *, wanted: int, where: str) -> Cause:
    what = f"stays {_text(has)}" if has == had else f"{_text(had)} → {_text(has)}"
    sentence = f"share {what} of a GPU, asked by {ask.by}"
    if has.request < wanted and where:
        sentence += f": {wanted / WHOLE:g} was asked for, and {where} has no more"
    numbers = {"request": has.request / WHOLE, "limit": has.limit / WHOLE, "asked": wanted / WHOLE}
    return Cause(code=CauseCode.SHARE_ASKED, sentence=sentence, by=ask.by, numbers=numbers)


def _text(share: Share) -> str:
    return f"{share.request / WHOLE:g} (up to {share.limit / WHOLE:g})"
