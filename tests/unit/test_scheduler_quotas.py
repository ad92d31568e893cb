"""Quotas in the scheduler: who starts, who waits, and whose jobs give back."""

from typing import Any

from tests.support.scheduler import World, world
from weft.domain.job import CauseCode, JobState
from weft.domain.quotas import ALL, Quota
from weftd.scheduler.thinking.core_settings import Settings
from weftd.scheduler.thinking.record.keeping import pickled, unpickled

S = JobState


def quota(name: str, guaranteed: int = 0, limit: int | None = None, **fields: Any) -> Quota:
    """In whole GPUs."""
    most = {} if limit is None else {ALL: limit * 1000}
    return Quota(name=name, guaranteed={ALL: guaranteed * 1000}, limit=most, **fields)


def limited(*quotas: Quota, gpus: int = 4, nodes: int = 1, settings: Settings | None = None) -> World:
    w = world(gpus=gpus, nodes=nodes, settings=settings)
    w.core.cluster_state.limit(quotas, w.now)
    return w


def rounds(w: World, count: int = 3) -> None:
    for _ in range(count):
        w.round()


def test_an_idle_guarantee_is_lent_and_comes_back_with_a_cause_of_its_own() -> None:
    w = limited(quota("vision", 2), quota("speech", 2))
    w.submit("j-lent", tenant="speech", gpus=4)
    rounds(w)
    assert w.state("j-lent") is S.RUNNING
    w.submit("j-back", tenant="vision", gpus=2)
    rounds(w)
    assert w.state("j-back") is S.RUNNING
    (why,) = [
        step.cause for step in w.steps if step.job_id == "j-lent" and step.cause.code is CauseCode.QUOTA_RECLAIMED
    ][:1]
    assert why.by == "j-back"
    assert why.numbers["gpus_reclaimed"] == 4
    assert "vision" not in why.sentence, "a tenant is told of itself, not of others"


def test_a_job_inside_its_guarantee_takes_nothing_that_is_owned_however_important_it_is() -> None:
    w = limited(quota("vision", 2), quota("speech", 2))
    w.submit("j-own", tenant="speech", gpus=2)
    rounds(w)
    w.submit("j-more", tenant="speech", gpus=2)
    rounds(w)
    w.submit("j-back", tenant="vision", gpus=2, spec={"priority": 50})
    w.submit("j-big", tenant="vision", gpus=2, spec={"priority": 90})
    rounds(w, 6)
    assert w.state("j-own") is S.RUNNING
    assert [w.state(one) for one in ("j-more", "j-back", "j-big")].count(S.QUEUED) == 2
    assert w.state("j-more") is S.QUEUED


def test_a_borrower_of_higher_priority_preempts_borrowers_only() -> None:
    w = limited(quota("vision", 2))
    w.submit("j-own", tenant="vision", gpus=2)
    w.submit("j-guest", tenant="guest", gpus=2)
    rounds(w)
    w.submit("j-urgent", tenant="other", gpus=2, spec={"priority": 90})
    rounds(w, 6)
    assert w.state("j-own") is S.RUNNING
    assert w.state("j-urgent") is S.RUNNING
    assert w.state("j-guest") is S.QUEUED


def test_a_tenant_at_its_limit_waits_with_its_numbers_and_holds_back_nobody() -> None:
    w = limited(quota("vision", 0, 2))
    w.submit("j-1", tenant="vision", gpus=2)
    w.submit("j-2", tenant="vision", gpus=1, spec={"priority": 90})
    w.submit("j-3", tenant="guest", gpus=1)
    rounds(w)
    assert [w.state(one) for one in ("j-1", "j-2", "j-3")] == [S.QUEUED, S.RUNNING, S.RUNNING]
    cause = w.stored["j-1"].waiting_for
    assert cause is not None
    assert cause.code is CauseCode.OVER_QUOTA
    assert cause.numbers == {"gpus_wanted": 2.0, "quota_held": 1.0, "quota_limit": 2.0}


def test_jobs_inside_a_guarantee_start_before_more_important_ones_that_borrow() -> None:
    w = limited(quota("vision", 2), gpus=2)
    w.submit("j-guest", tenant="guest", gpus=2, spec={"priority": 90})
    w.submit("j-own", tenant="vision", gpus=2)
    rounds(w)
    assert (w.state("j-own"), w.state("j-guest")) == (S.RUNNING, S.QUEUED)


def test_a_job_that_may_not_be_preempted_starts_inside_its_guarantee_only() -> None:
    w = limited(quota("vision", 2))
    w.submit("j-big", tenant="vision", gpus=3, spec={"preemptible": False})
    w.submit("j-own", tenant="vision", gpus=2, spec={"preemptible": False})
    rounds(w)
    assert (w.state("j-big"), w.state("j-own")) == (S.QUEUED, S.RUNNING)
    cause = w.stored["j-big"].waiting_for
    assert cause is not None
    assert cause.code is CauseCode.OVER_QUOTA


def test_a_borrower_is_left_its_guaranteed_time() -> None:
    w = limited(quota("vision", 4), settings=Settings(quota_runtime_seconds=600.0))
    w.submit("j-guest", tenant="guest", gpus=4)
    rounds(w)
    w.submit("j-own", tenant="vision", gpus=4)
    rounds(w)
    assert w.state("j-guest") is S.RUNNING
    w.tick(600.0)
    rounds(w)
    assert w.state("j-own") is S.RUNNING


def test_two_jobs_of_a_lender_get_their_gpus_back_together() -> None:
    w = limited(quota("vision", 4))
    w.submit("j-g1", tenant="guest", gpus=2)
    w.submit("j-g2", tenant="guest", gpus=2)
    rounds(w)
    w.submit("j-1", tenant="vision", gpus=2)
    w.submit("j-2", tenant="vision", gpus=2)
    w.tick()
    assert (w.state("j-g1"), w.state("j-g2")) == (S.STOPPING, S.STOPPING)
    rounds(w)
    assert (w.state("j-1"), w.state("j-2")) == (S.RUNNING, S.RUNNING)


def test_an_elastic_job_grows_to_the_limit_of_its_tenant_and_no_further() -> None:
    w = limited(quota("vision", 0, 3))
    live = {"role": {"replicas": {"min": 1, "want": 4}}, "resize": {"how": "live"}}
    w.submit("j-1", tenant="vision", gpus=1, spec=live)
    rounds(w, 6)
    assert w.stored["j-1"].gpus_held <= 3
    w.core.cluster_state.limit([], w.now)
    w.submit("j-x", tenant="vision", gpus=1)
    rounds(w, 6)
    assert w.stored["j-1"].gpus_held + w.stored["j-x"].gpus_held == 4


def test_quotas_that_are_taken_away_bind_nobody() -> None:
    w = limited(quota("vision", 0, 1))
    w.submit("j-1", tenant="vision", gpus=4)
    rounds(w)
    assert w.state("j-1") is S.QUEUED
    w.core.cluster_state.limit([], w.now)
    rounds(w)
    assert w.state("j-1") is S.RUNNING


def test_a_core_with_quotas_is_the_same_after_it_was_written_down() -> None:
    w = limited(quota("lab", 4, is_group=True), quota("vision", 2, group="lab"))
    w.submit("j-1", tenant="vision", gpus=4)
    rounds(w)
    again = unpickled(pickled(w.core), w.open_jobs())
    assert again.cluster_state.quotas.ledger.jobs == w.core.cluster_state.quotas.ledger.jobs
    assert again.cluster_state.quotas.ledger.tree.path("vision") == w.core.cluster_state.quotas.ledger.tree.path(
        "vision"
    )


def test_an_elastic_job_that_may_not_be_preempted_grows_inside_its_guarantee_only() -> None:
    spec = {"preemptible": False, "resize": {"how": "live"}, "role": {"replicas": {"min": 1, "want": 4, "max": 4}}}
    w = limited(quota("vision", 2))
    w.submit("j-1", tenant="vision", gpus=1, spec=spec)
    rounds(w, 6)
    assert w.state("j-1") is S.RUNNING
    assert len(w.stored["j-1"].held) <= 2
    w.core.cluster_state.limit([quota("vision", 3)], w.now)
    rounds(w, 6)
    assert len(w.stored["j-1"].held) == 3
