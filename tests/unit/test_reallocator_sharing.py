"""Shares of GPUs that follow their use: when a job gets more of its GPU, when less, and when nothing changes."""

from typing import Any

import pytest
from msgspec import structs

from tests.support.builders import GIB, job, node
from weft.domain.cluster import NOT_HELD_TO_SHARES
from weft.domain.job import Allocation, CauseCode, Job, JobState, Placement
from weft.domain.shares import Share
from weft.domain.spec import TuningMode
from weft.messages.asks import Reshare
from weft.messages.signals import HostSample, NodeSampled, RunSample, ShareSample
from weftd.reallocator.thinking.sharing import COOL_DOWN_SECONDS, ShareTuner

NOW = 1000.0


def sharing(job_id: str = "j-1", request: int = 300, *, asks: float = 0.3, limit: float = 1.0, **tuning: Any) -> Job:
    share = Share(request=request, limit=round(limit * 1000), memory=GIB)
    held = Allocation(rank=0, role="worker", node_id="node-1", gpus=(0,), cpus=1.0, memory=GIB, share=share)
    asked = {"request": asks, "limit": limit, "memory": "1GiB"}
    return job(
        job_id,
        gpus=0,
        spec={"role": {"share": asked}, "tuning": {"mode": "on", **tuning}},
        state=JobState.RUNNING,
        placement=Placement(allocations=(held,)),
    )


def watched(used: float, *jobs: Job, seconds: int = 25, tuner: ShareTuner | None = None) -> ShareTuner:
    """What each of these jobs used of its GPU, second by second until now."""
    tuner = tuner or ShareTuner(pool="default", tuning=TuningMode.ADVISE)
    for second in range(seconds):
        at = NOW - seconds + second
        runs = tuple(
            RunSample(
                job_id=each.id,
                epoch=each.epoch,
                rank=0,
                source="v2",
                share=ShareSample(gpu_uuid="gpu", request=0.3, limit=1.0, used=used),
            )
            for each in jobs
        )
        host = HostSample(cpus=4.0, memory_total=GIB, memory_used=0)
        tuner.observe(NodeSampled(node_id="node-1", pool="default", at=at, host=host, runs=runs, seq=second), now=at)
    return tuner


def decided(tuner: ShareTuner, *jobs: Job, waiting: bool = False, now: float = NOW) -> dict[str, Reshare]:
    return dict(tuner.decide(jobs, [node(gpus=1)], waiting=waiting, now=now).shares)


def requests(found: dict[str, Reshare]) -> dict[str, int | None]:
    return {job_id: share.request for job_id, share in found.items()}


def test_tuning_that_is_off_for_the_pool_is_off_for_every_job() -> None:
    one = sharing()
    tuner = watched(0.3, one, tuner=ShareTuner(pool="default", tuning=TuningMode.OFF))
    assert decided(tuner, one) == {}
    assert decided(watched(0.3, one), one) != {}


def test_no_share_changes_on_a_node_that_holds_no_job_to_its_share() -> None:
    one = sharing()
    loose = structs.replace(node(gpus=1), not_enforced=(NOT_HELD_TO_SHARES,))
    assert watched(0.5, one).decide([one], [loose], waiting=False, now=NOW).shares == {}
    assert decided(watched(0.5, one), one) != {}


def test_a_job_that_uses_all_of_its_share_and_more_gets_what_it_uses() -> None:
    one = sharing()
    [asked] = decided(watched(0.5, one), one).values()
    assert (asked.request, asked.role, asked.epoch, asked.instead_of) == (600, "worker", 0, 300)
    assert asked.cause is not None
    assert asked.cause.code is CauseCode.SHARE_USED
    assert asked.cause.sentence == "worker: 0.3 → 0.6 of a GPU: it uses all of it (50% of the GPU's time lately)"


def test_it_gets_no_more_than_its_limit_and_than_its_gpu_has_left() -> None:
    low = sharing(limit=0.4)
    assert requests(decided(watched(0.39, low), low)) == {"j-1": 400}
    one, other = sharing(), sharing("j-2", 550, asks=0.55)
    assert requests(decided(watched(0.5, one), one, other)) == {"j-1": 450}
    full = sharing("j-2", 700, asks=0.7)
    assert decided(watched(0.5, one), one, full) == {}


def test_two_jobs_of_one_gpu_do_not_both_get_what_is_left_once() -> None:
    one, two = sharing("j-1"), sharing("j-2")
    found = requests(decided(watched(0.5, one, two), one, two))
    assert found == {"j-1": 600, "j-2": 400} or sum(filter(None, found.values())) <= 1000


def test_what_it_was_given_goes_back_when_it_hardly_uses_it_and_when_jobs_wait() -> None:
    one, more = sharing(), sharing(request=600)
    tuner = watched(0.5, one)
    tuner.asked(decided(tuner, one), now=NOW)
    assert decided(watched(0.5, more, tuner=tuner), more) == {}, "it has only just changed"
    later = NOW + COOL_DOWN_SECONDS
    assert requests(decided(tuner, more, waiting=True, now=later)) == {"j-1": 300}
    tuner.asked({"j-1": Reshare(request=600)}, now=NOW - COOL_DOWN_SECONDS)
    assert requests(decided(watched(0.1, more, tuner=tuner), more)) == {"j-1": 300}


def test_what_a_user_gave_it_is_not_taken_back() -> None:
    more = sharing(request=800)
    assert decided(watched(0.1, more), more) == {}
    assert decided(watched(0.1, more), more, waiting=True) == {}


def test_it_goes_below_what_it_asked_for_only_where_its_owner_lets_it() -> None:
    one, low = sharing(), sharing(share_min=0.05)
    assert decided(watched(0.01, one), one) == {}
    assert requests(decided(watched(0.01, low), low)) == {"j-1": 50}
    assert requests(decided(watched(0.1, low), low)) == {"j-1": 120}


@pytest.mark.parametrize(
    ("one", "seconds"),
    [
        (sharing(mode="off"), 25),
        (sharing(mode="advise"), 25),
        (sharing(), 10),
        (sharing(limit=0.3), 25),
    ],
)
def test_nothing_changes_without_leave_without_a_whole_window_and_at_the_limit(one: Job, seconds: int) -> None:
    assert decided(watched(0.9, one, seconds=seconds), one) == {}


def test_where_it_only_advises_it_says_what_it_would_do() -> None:
    one = sharing(mode="advise")
    found = watched(0.5, one).decide([one], [node(gpus=1)], waiting=False, now=NOW)
    assert [(finding.code, finding.job_id) for finding in found.findings] == [("share", "j-1")]
