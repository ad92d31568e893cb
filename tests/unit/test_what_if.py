"""A pool from now on, in the simulator: who starts and ends when, and who gains by a supposition."""

from typing import Any

from msgspec import structs

from tests.support.builders import job, node
from tests.support.steps import placement
from weft.domain.job import Job, JobState
from weft.domain.quotas import ALL, Quota
from weft.domain.shares import WHOLE
from weft.domain.spec import Checkpointing
from weft.planning.eta.learnt import Lasted
from weft.planning.policy import Policy
from weft.planning.preemption.minimum_run import MinimumRun
from weft.planning.surplus import STARVED_SECONDS
from weft.simulator.whatif.compared import compared
from weft.simulator.whatif.durations import Assumptions
from weft.simulator.whatif.look_ahead import LookAhead
from weft.simulator.whatif.present import Present, Supposition, jobs_now, supposed

NOW = 1_800_000_000.0


TOO_LARGE = job("c", replicas=2, gpus=4, spec={"time_limit": "5m"}).spec  # for the one node of the pool


def holds(job_id: str, limit: str, **fields: Any) -> Job:
    where = placement(*(("node-1", gpu) for gpu in range(4)))
    made = job(job_id, replicas=4, spec={"time_limit": limit}, state=JobState.RUNNING, **fields)
    return structs.replace(made, placement=where, placed_at=NOW, started_at=NOW, since=NOW, submitted_at=NOW)


def waits(job_id: str, seq: int, limit: str, **fields: Any) -> Job:
    made = job(job_id, seq=seq, spec={"time_limit": limit, **fields}, gpus=4)
    return structs.replace(made, since=NOW, submitted_at=NOW)


def pool(*jobs: Job, policy: str = "fifo") -> Present:
    made = jobs_now(jobs, Assumptions(Lasted()), {}, at=NOW)
    return Present(nodes=(node("node-1"),), jobs=made, policy=Policy(policy, "packed-sticky", "easy"))


def test_what_waits_starts_when_what_runs_has_ended_one_after_the_other() -> None:
    outcomes = LookAhead(pool(holds("a", "10m"), waits("b", 2, "20m"), waits("c", 3, "5m"))).outcomes()
    assert (outcomes["a"].starts_s, outcomes["a"].ends_s) == (None, 600)
    assert (outcomes["b"].starts_s, outcomes["b"].ends_s) == (600, 1800)
    assert (outcomes["c"].starts_s, outcomes["c"].ends_s) == (1800, 2100)


def test_an_elastic_job_gives_ranks_to_one_that_starves_and_gets_them_back() -> None:
    sizes = {"role": {"replicas": {"min": 1, "want": 4, "max": 4}}, "resize": {"how": "live"}, "time_limit": "10m"}
    held = holds("a", "10m")
    assert held.placement is not None
    ranks = tuple(structs.replace(one, extra=one.rank > 0) for one in held.placement.allocations)
    elastic = structs.replace(
        job("a", state=JobState.RUNNING, spec=sizes),
        placement=structs.replace(held.placement, allocations=ranks),
        placed_at=NOW,
        started_at=NOW,
        since=NOW,
    )
    small = structs.replace(job("b", seq=2, gpus=1, spec={"time_limit": "5m"}), since=NOW)
    outcomes = LookAhead(pool(elastic, small)).outcomes()
    assert outcomes["b"].starts_s == STARVED_SECONDS
    worked = STARVED_SECONDS + 300 * 3 / 4
    assert outcomes["a"].ends_s == STARVED_SECONDS + 300 + (600 - worked), "it grows back once b has ended"


def test_one_more_node_lets_the_first_start_at_once_and_both_gain() -> None:
    base = pool(holds("a", "10m"), waits("b", 2, "20m"), waits("c", 3, "5m"))
    other = supposed(base, Supposition(add_nodes=1))
    found = compared(other.jobs, LookAhead(base).outcomes(), LookAhead(other).outcomes(), until_s=1e6)
    assert {one.id: one.gains_s for one in found.jobs} == {"a": 0.0, "b": 600.0, "c": 1200.0}
    assert (found.gained, found.lost, found.waiting) == (2, 0, 2)


def test_a_drained_node_takes_nothing_new_and_what_never_starts_has_no_time() -> None:
    base = pool(holds("a", "10m"), waits("b", 2, "20m"))
    outcomes = LookAhead(supposed(base, Supposition(drain=("node-1",)))).outcomes()
    assert outcomes["a"].ends_s == 600
    assert (outcomes["b"].starts_s, outcomes["b"].ends_s) == (None, None)


def test_a_job_that_starts_on_one_side_alone_is_counted_and_lengthens_no_mean() -> None:
    """A job that never starts counted as a wait of 30 days, which spoilt the mean of the others."""
    base = pool(holds("a", "10m"), waits("b", 2, "20m"), structs.replace(waits("c", 3, "5m"), spec=TOO_LARGE))
    other = supposed(base, Supposition(add_nodes=1))
    outcomes = LookAhead(base).outcomes(), LookAhead(other).outcomes()
    found = compared(other.jobs, *outcomes, until_s=2_592_000.0)
    assert (outcomes[0]["c"].starts_s, outcomes[1]["c"].starts_s is None) == (None, False)
    assert (found.only_other, found.only_base) == (1, 0)
    assert found.waited_base_s == 600.0


def test_a_more_important_job_pre_empts_where_the_order_says_so() -> None:
    jobs = holds("a", "10m"), waits("b", 2, "5m", priority=9)
    outcomes = LookAhead(
        pool(*(structs.replace(one, priority=one.spec.priority) for one in jobs), policy="priority")
    ).outcomes()
    assert outcomes["b"].starts_s == 300, "each start runs for at least five minutes"
    assert outcomes["a"].ends_s == 600 + 600, "it writes no checkpoints: its five minutes are lost"


def test_a_job_with_checkpoints_gives_way_soon_and_loses_nothing() -> None:
    saves = structs.replace(holds("a", "10m").spec, checkpoints=Checkpointing(on_stop=True))
    jobs = structs.replace(holds("a", "10m"), spec=saves), waits("b", 2, "5m", priority=9)
    outcomes = LookAhead(
        pool(*(structs.replace(one, priority=one.spec.priority) for one in jobs), policy="priority")
    ).outcomes()
    assert (outcomes["b"].starts_s, outcomes["a"].ends_s) == (60, 900)


def test_the_minimum_run_is_the_one_that_the_pool_has() -> None:
    jobs = holds("a", "10m"), waits("b", 2, "5m", priority=9)
    here = pool(*(structs.replace(one, priority=one.spec.priority) for one in jobs), policy="priority")
    assert LookAhead(structs.replace(here, minimum_run=MinimumRun(120.0))).outcomes()["b"].starts_s == 120
    assert LookAhead(structs.replace(here, minimum_run=MinimumRun())).outcomes()["b"].starts_s == 0


def under(*quotas: Quota, of: Present) -> Present:
    return structs.replace(of, quotas=quotas)


def test_a_limit_of_its_tenant_holds_a_job_back_though_a_node_is_free() -> None:
    base = pool(holds("a", "10m"), waits("b", 2, "20m"))
    two = structs.replace(base, nodes=(node("node-1"), node("node-2")))
    assert LookAhead(two).outcomes()["b"].starts_s == 0
    limit = Quota(name=base.jobs[0].tenant, limit={ALL: 4 * WHOLE})
    assert LookAhead(under(limit, of=two)).outcomes()["b"].starts_s == 600


def test_what_is_inside_a_guarantee_takes_back_what_another_tenant_borrows_and_nothing_that_it_owns() -> None:
    lender = structs.replace(waits("b", 2, "5m"), tenant="lender")
    base = pool(holds("a", "10m"), lender)
    guaranteed = Quota(name="lender", guaranteed={ALL: 4 * WHOLE})
    outcomes = LookAhead(under(guaranteed, of=base)).outcomes()
    # It takes them once the borrower, which begins again behind it, has run for the minimum.
    assert (outcomes["b"].starts_s, outcomes["b"].ends_s, outcomes["a"].ends_s) == (300, 600, 600 + 600)
    owner = Quota(name=base.jobs[0].tenant, guaranteed={ALL: 4 * WHOLE})
    assert LookAhead(under(owner, of=base)).outcomes()["b"].starts_s == 600
    assert LookAhead(base).outcomes()["b"].starts_s == 600


def test_jobs_inside_a_guarantee_start_before_those_that_came_earlier_and_borrow() -> None:
    lender = structs.replace(waits("c", 3, "5m"), tenant="lender")
    base = pool(holds("a", "10m", tenant="other"), waits("b", 2, "20m"), lender)
    owned = Quota(name="other", guaranteed={ALL: 4 * WHOLE})
    guaranteed = Quota(name="lender", guaranteed={ALL: 4 * WHOLE})
    outcomes = LookAhead(under(owned, guaranteed, of=base)).outcomes()
    assert (outcomes["c"].starts_s, outcomes["b"].starts_s) == (600, 900)
