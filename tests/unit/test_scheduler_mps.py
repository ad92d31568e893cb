"""Shares on a node that holds jobs to them by NVIDIA's MPS: ceilings alone, and fixed for as long as a job runs."""

from libs.domain.cluster import LIMITS_STAY, NO_SHARES, SHARES_ARE_CEILINGS
from libs.domain.job import Cause, CauseCode, JobState
from services.scheduler.thinking.core import Settings
from tests.support.scheduler import World, world

MPS = (SHARES_ARE_CEILINGS, LIMITS_STAY)


def on_mps(*, strict: bool = False) -> World:
    """One GPU, and a job with 0.3 of it and a limit of 0.5."""
    w = world(gpus=1, settings=Settings(shares_strict=strict))
    w.nodes["node-1"].not_enforced = MPS
    w.round()
    role = {"share": {"request": 0.3, "limit": 0.5, "memory": "1GiB"}, "gpus": 0}
    w.submit("j-1", gpus=0, spec={"role": role})
    w.round()
    return w


def share_of(w: World, job_id: str) -> tuple[int, int]:
    placement = w.core.picture.jobs[job_id].placement
    assert placement is not None
    share = placement.allocations[0].share
    assert share is not None
    return share.request, share.limit


def test_a_strict_pool_gives_no_shares_where_requests_are_no_promise() -> None:
    w = on_mps(strict=True)
    assert w.state("j-1") is JobState.QUEUED
    assert w.core.picture.pool.nodes["node-1"].not_enforced == (*MPS, NO_SHARES)
    assert on_mps().state("j-1") is JobState.RUNNING


def test_a_running_job_keeps_its_limit_and_its_story_says_so() -> None:
    w = on_mps()
    (step,) = w.share("j-1", request=400, limit=800)
    keeps = "what runs on node-1 keeps the limit with which it began, 0.5"
    assert step.cause.sentence == f"share 0.3 (up to 0.5) → 0.4 (up to 0.5) of a GPU, asked by alice; {keeps}"
    assert share_of(w, "j-1") == (400, 500)
    (step,) = w.share("j-1", limit=800)
    assert step.cause.sentence == f"share stays 0.4 (up to 0.5) of a GPU, asked by alice; {keeps}"
    (step,) = w.share("j-1", request=700)
    assert step.cause.sentence == f"share 0.4 (up to 0.5) → 0.5 (up to 0.5) of a GPU, asked by alice; {keeps}"
    assert w.share("j-1", request=500, limit=500) == []


def test_a_request_within_the_limit_is_another_as_anywhere() -> None:
    w = on_mps()
    (step,) = w.share("j-1", request=500)
    assert step.cause.sentence == "share 0.3 (up to 0.5) → 0.5 (up to 0.5) of a GPU, asked by alice"


def test_what_the_reallocator_asks_for_and_cannot_have_is_no_step() -> None:
    w = on_mps()
    w.share("j-1", request=500)
    cause = Cause(code=CauseCode.SHARE_USED, sentence="it uses all of it")
    assert w.share("j-1", request=800, cause=cause) == []
    assert share_of(w, "j-1") == (500, 500)
