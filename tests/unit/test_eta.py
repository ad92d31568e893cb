"""When jobs start and end: by what is known, and said to be unknown where nothing is."""

from typing import Any

from msgspec import structs

from tests.support.builders import job, node
from tests.support.steps import placement
from weft.domain.classes import BENCHMARK_LABEL
from weft.domain.cluster import Node
from weft.domain.job import HELD_FOR, Cause, CauseCode, Job, JobState
from weft.domain.quotas import ALL, Quota
from weft.domain.shares import WHOLE
from weft.messages.eta import Basis, Estimate, Helps, Sooner
from weft.planning.eta.ends import Steps
from weft.planning.eta.learnt import Lasted, kinds_of, learn
from weft.planning.eta.sooner import Advised
from weft.planning.eta.starts import QUEUE_MAX, PoolToCome
from weft.planning.eta.told import end_of, ends_of, to_come
from weft.planning.surplus import STARVED_SECONDS, with_extras

NOW = 1000.0


def running(job_id: str = "j-1", gpus: int = 4, node_id: str = "node-1", **fields: Any) -> Job:
    """Since 500 seconds on the first GPUs of the node."""
    where = placement(*((node_id, index) for index in range(gpus)))
    begun = {"placed_at": 500.0, "started_at": 500.0, "since": 500.0}
    return job(job_id, gpus=gpus, state=JobState.RUNNING, placement=where, **begun, **fields)


def lasted(like: Job, *seconds: float) -> Lasted:
    durations = Lasted()
    for one in seconds:
        durations.add(kinds_of(like), one)
    return durations


def told(
    about: Job,
    *others: Job,
    nodes: tuple[Node, ...] = (node(),),
    durations: Lasted | None = None,
) -> tuple[Estimate, tuple[Sooner, ...]]:
    jobs = [about, *others]
    pool = PoolToCome(
        nodes,
        [one for one in jobs if one.state.holding],
        [one for one in jobs if one.state is JobState.QUEUED],
        now=NOW,
        policy="priority+weft-best+easy",
        durations=durations,
    )
    foreseen, helps = to_come(about, lambda: pool)
    assert foreseen is not None
    return foreseen.estimate, helps


WAITS = job("j-2", seq=2, gpus=2)


def test_by_time_limits_only_the_latest_start_is_known() -> None:
    eta, _ = told(WAITS, running(spec={"time_limit": "20m"}))
    assert (eta.basis, eta.earliest, eta.likely, eta.latest) == (Basis.LIMITS, None, None, 500.0 + 1200)
    assert eta.sentence == "starts in 11m40s at the latest, by time limits"


def test_where_nothing_is_known_it_is_said_so_and_no_number_stands_beside_it() -> None:
    eta, _ = told(WAITS, running())
    assert (eta.basis, eta.earliest, eta.likely, eta.latest) == (Basis.UNKNOWN, None, None, None)
    assert eta.sentence.startswith(
        "nobody can tell when it starts: the jobs that hold what it needs have no time limit"
    )


def test_durations_of_like_jobs_give_a_range_by_those_that_lasted_as_long() -> None:
    holds = running()
    eta, _ = told(WAITS, holds, durations=lasted(holds, *(10.0 for _ in range(50)), 700, 750, 800, 850, 900, 950))
    assert eta.basis is Basis.LEARNT
    assert eta.earliest is not None
    assert eta.likely is not None
    assert eta.latest is not None
    assert NOW <= eta.earliest < eta.likely < eta.latest
    assert 250 < eta.likely - NOW < 450  # it has run for 500 s; most of those that ran so long took 750 to 900


def test_a_drained_node_that_would_help_is_tried_and_named() -> None:
    _, helps = told(WAITS, running(), nodes=(node(), node("node-2", drained=True)))
    resumed = next(one for one in helps if one.what is Helps.RESUME_NODE)
    assert resumed.change == {"node": "node-2"}
    assert resumed.sentence == (
        "if node-2, which is drained, took work again (`weft resume node-2`), it would start now;"
        " without that, nobody can tell"
    )


def test_what_does_not_help_is_not_told() -> None:
    _, helps = told(WAITS, running(), nodes=(node(), node("node-2", gpus=1, drained=True)))
    assert Helps.RESUME_NODE not in {one.what for one in helps}


def helps_of(about: Job, *others: Job, nodes: tuple[Node, ...]) -> dict[Helps, Sooner]:
    return {one.what: one for one in told(about, *others, nodes=nodes)[1]}


def test_fewer_gpus_help_where_a_few_are_free() -> None:
    found = helps_of(job("j-2", seq=2, gpus=4), running(gpus=2), nodes=(node(),))[Helps.FEWER_GPUS]
    assert found.change == {"gpus": 2, "role": "worker", "gpus_per_replica": 2}
    assert found.sentence == "with 2 GPUs in place of 4, it would start now; without that, nobody can tell"


def test_fewer_replicas_help_where_there_are_several() -> None:
    found = helps_of(job("j-2", seq=2, gpus=1, replicas=4), running(gpus=2), nodes=(node(),))[Helps.FEWER_GPUS]
    assert found.change == {"gpus": 2, "role": "worker", "replicas": 2}


def test_gpus_of_another_model_help_where_those_are_free() -> None:
    demand = job("j-2", seq=2, gpus=2, spec={"gpu_model": "Emulated GPU"})
    found = helps_of(demand, running(), nodes=(node(), node("node-2", model="Other")))[Helps.ANOTHER_MODEL]
    assert found.change == {"gpu_model": "Other"}
    assert found.sentence.startswith("with GPUs of Other in place of Emulated GPU, it would start now")


def test_smaller_replicas_on_several_nodes_help_where_no_node_has_enough() -> None:
    nodes = (node(), node("node-2"))
    holds = (running(gpus=2), running("j-3", gpus=2, node_id="node-2"))
    found = helps_of(job("j-2", seq=2, gpus=4), *holds, nodes=nodes)[Helps.SPANNING]
    assert found.change["replicas"] == 2
    assert found.change["gpus_per_replica"] == 2


def test_less_memory_helps_where_memory_is_what_is_short_and_only_there() -> None:
    greedy = running(gpus=1)
    demand = job("j-2", seq=2, gpus=1, spec={"role": {"memory": "300GiB"}})
    nodes = (node(), node("node-2", drained=True, memory=1 << 40))
    found = helps_of(demand, greedy, nodes=nodes)
    assert found[Helps.LESS_MEMORY].sentence.startswith("with 225GiB of memory a replica in place of 300GiB")
    short_of_gpus = helps_of(job("j-4", seq=4, gpus=4), greedy, nodes=(node(),))
    assert Helps.LESS_MEMORY not in short_of_gpus


def test_a_higher_priority_helps_where_others_give_way_and_says_how_many() -> None:
    found = helps_of(WAITS, running(), nodes=(node(),))[Helps.PRIORITY]
    assert found.change == {"priority": 1}
    assert found.sentence.endswith(": train would be stopped for it, within 30s")
    stays = running(spec={"preemptible": False})
    assert Helps.PRIORITY not in helps_of(WAITS, stays, nodes=(node(),))


def test_a_job_that_starts_at_once_is_told_of_nothing_that_helps() -> None:
    eta, helps = told(WAITS, nodes=(node(),))
    assert (eta.basis, eta.likely, helps) == (Basis.ROOM, NOW, ())


def test_jobs_ahead_are_placed_first() -> None:
    ahead = job("j-3", seq=1, gpus=3, spec={"time_limit": "10m"})
    alone, _ = told(WAITS, running(spec={"time_limit": "20m"}))
    behind, _ = told(WAITS, running(spec={"time_limit": "20m"}), ahead)
    assert (alone.latest, behind.latest) == (1700.0, 1700.0 + 600)
    assert behind.sentence.endswith("with 1 job ahead of it")


def test_steps_foretell_the_end_of_a_job_and_its_limit_stays_sure() -> None:
    eta, helps = told(running(progress={"step": 500.0, "steps": 600.0}))
    assert (eta.basis, helps) == (Basis.PROGRESS, ())
    assert eta.likely is not None
    assert abs(eta.likely - (NOW + 100)) < 10  # 500 steps in 500 seconds
    bounded, _ = told(running(progress={"step": 500.0, "steps": 600.0}, spec={"time_limit": "550s"}))
    assert bounded.latest is not None
    assert bounded.latest <= 500 + 550


def test_a_job_that_no_empty_pool_would_hold_is_said_to_start_never_as_far_as_is_known() -> None:
    eta, _ = told(job("j-2", seq=2, gpus=5))
    assert eta.basis is Basis.UNKNOWN
    assert eta.sentence.startswith("nobody can tell when it starts: its pool is too small for it")


def test_what_only_the_scheduler_sees_is_not_passed_over() -> None:
    cause = Cause(code=CauseCode.STILL_RUNS, sentence="node-1 still has a run of an earlier epoch")
    eta, _ = told(job("j-2", seq=2, gpus=1, waiting_for=cause))
    assert eta.sentence == "nobody can tell when it starts: node-1 still has a run of an earlier epoch"


def test_behind_too_many_jobs_nothing_is_foretold() -> None:
    others = [job(f"w-{number}", seq=10 + number) for number in range(QUEUE_MAX + 1)]
    eta, _ = told(job("j-2", seq=9_999_999), running(), *others)
    assert (eta.basis, eta.likely) == (Basis.UNKNOWN, None)
    assert "2,001 jobs are ahead of it" in eta.sentence


def under(quota: Quota, about: Job, *others: Job, nodes: tuple[Node, ...] = (node(),)) -> Estimate:
    jobs = [about, *others]
    pool = PoolToCome(
        nodes,
        [one for one in jobs if one.state.holding],
        [one for one in jobs if one.state is JobState.QUEUED],
        now=NOW,
        policy="priority+weft-best+easy",
        quotas=[quota],
    )
    foreseen, _ = to_come(about, lambda: pool)
    assert foreseen is not None
    return foreseen.estimate


def test_a_job_that_a_limit_holds_back_waits_for_its_own_tenant_whatever_is_free() -> None:
    limit = Quota(name=WAITS.tenant, limit={ALL: 4 * WHOLE})
    runs, free = running(spec={"time_limit": "20m"}), (node(), node("node-2"))
    assert told(WAITS, runs, nodes=free)[0].basis is Basis.ROOM
    eta = under(limit, WAITS, runs, nodes=free)
    assert (eta.basis, eta.latest) == (Basis.LIMITS, 500.0 + 1200)
    assert eta.sentence == (
        "starts in 11m40s at the latest, by time limits; a quota holds it back until its tenant, or its group, holds"
        " less"
    )


def test_a_job_that_is_larger_than_its_quota_never_starts_as_far_as_is_known() -> None:
    eta = under(Quota(name=WAITS.tenant, limit={ALL: WHOLE}), WAITS)
    assert eta.basis is Basis.UNKNOWN
    assert "quota does not allow so many GPUs" in eta.sentence


def test_jobs_inside_a_guarantee_are_placed_before_those_that_borrow() -> None:
    mine = job("j-3", seq=3, gpus=4, tenant="guaranteed", spec={"time_limit": "1h"})
    runs = running(spec={"time_limit": "20m", "preemptible": False})
    borrower = job("j-2", seq=2, gpus=4, spec={"time_limit": "1h"})
    quota = Quota(name="guaranteed", guaranteed={ALL: 4 * WHOLE})
    assert under(quota, mine, borrower, runs).latest == 500.0 + 1200
    assert under(quota, borrower, mine, runs).latest == 500.0 + 1200 + 3600


def test_a_lender_that_takes_back_what_it_lent_is_foreseen() -> None:
    mine = job("j-3", seq=3, gpus=4, tenant="guaranteed")
    quota = Quota(name="guaranteed", guaranteed={ALL: 4 * WHOLE})
    eta = under(quota, mine, running(spec={"time_limit": "20m"}))
    assert (eta.earliest, eta.latest) == (NOW, NOW + 30)
    assert eta.sentence == "starts within 30s, when 1 job has given way to it"


def test_a_job_of_higher_priority_takes_the_place_of_another_which_then_waits_again() -> None:
    high = job("j-2", seq=2, gpus=4, spec={"priority": 5, "time_limit": "10m"})
    low = job("j-3", seq=3, gpus=4, spec={"time_limit": "10m"})
    runs = running(spec={"time_limit": "20m"})
    eta, _ = told(high, runs, low)
    assert (eta.earliest, eta.latest) == (NOW, NOW + 30)
    behind, _ = told(low, runs, high)
    assert behind.latest is not None
    assert NOW + 600 + 1200 <= behind.latest <= NOW + 630 + 1200, "behind both"


def test_a_job_that_starves_is_told_that_an_elastic_one_gives_it_ranks() -> None:
    sizes = {"role": {"replicas": {"min": 1, "want": 4, "max": 4}}, "resize": {"how": "live"}}
    on_all = placement(*(("node-1", index) for index in range(4)))
    ranks = tuple(structs.replace(one, extra=one.rank > 0) for one in on_all.allocations)
    held = structs.replace(on_all, allocations=ranks)
    begun = {"placed_at": 500.0, "started_at": 500.0, "since": 500.0}
    elastic = job("j-1", gpus=1, state=JobState.RUNNING, placement=held, spec=sizes, **begun)
    small = job("j-2", seq=2, gpus=1, since=NOW)
    eta, _ = told(small, elastic)
    assert eta.earliest == NOW + STARVED_SECONDS
    assert eta.sentence == "starts in 30s to 1m0s, when 1 job has given way to it"
    high, _ = told(structs.replace(small, priority=-1), elastic)
    assert high.basis is Basis.UNKNOWN, "its priority is lower"


def test_what_is_looked_ahead_counts_against_the_quota() -> None:
    """Three jobs of 2 GPUs under a limit of 4, nothing runs: the third starts when one of the first two has ended."""
    first, second, third = (job(f"j-{number}", seq=number, gpus=2, spec={"time_limit": "10m"}) for number in (1, 2, 3))
    limit = Quota(name=first.tenant, limit={ALL: 4 * WHOLE})
    assert under(limit, third, first, second, nodes=(node(), node("node-2"))).latest == NOW + 600
    assert under(limit, second, first, third, nodes=(node(), node("node-2"))).basis is Basis.ROOM


def test_only_jobs_that_did_all_their_work_are_learnt() -> None:
    """Benchmarks of seconds, a job that failed at once and one that was cancelled foretold the ends of trainings."""
    done, broken, given_up = (
        job(f"j-{state}", state=state, attained_seconds=5.0, ended_at=900.0)
        for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
    )
    measures = job("j-b", state=JobState.SUCCEEDED, attained_seconds=5.0, spec={"labels": {BENCHMARK_LABEL: "1"}})
    durations = Lasted()
    learn(durations, [done, broken, given_up, measures])
    assert durations.count == 1


def test_below_five_samples_no_single_moment_is_shown() -> None:
    holds = running()
    few, _ = told(WAITS, holds, durations=lasted(holds, 1000, 1000, 1010, 1010))
    assert (few.basis, few.likely) == (Basis.LEARNT, None)
    assert few.latest is not None
    assert "about" not in few.sentence
    enough, _ = told(WAITS, holds, durations=lasted(holds, 1000, 1000, 1010, 1010, 1020))
    assert enough.likely is not None
    assert enough.sentence.startswith("starts in about ")


def test_jobs_that_outlast_all_that_ended_are_given_no_single_moment() -> None:
    """Twenty jobs of 5 s had ended; of trainings that have run for 500 s the queue said `about now`."""
    holds = running()
    eta, _ = told(WAITS, holds, durations=lasted(holds, *(5.0 for _ in range(20))))
    assert (eta.basis, eta.likely) == (Basis.LEARNT, None)
    assert not eta.sentence.startswith("starts in about")


def test_of_a_range_that_is_ten_times_as_late_as_it_is_early_no_single_moment_is_shown() -> None:
    holds = running()
    eta, _ = told(WAITS, holds, durations=lasted(holds, *(500.0 + 10 * 2**power for power in range(9))))
    assert eta.latest is not None
    assert eta.likely is None
    assert eta.sentence.startswith(("starts in ", "starts within "))
    assert "about" not in eta.sentence


def test_steps_of_a_measured_pace_foretell_the_end_before_a_hundredth_is_done() -> None:
    long = running(progress={"step": 35.0, "steps": 18394.0})
    heard = {long.id: Steps(35.0, 18394.0, 0.1996)}
    eta = end_of(long, Lasted().beside([]), now=NOW, steps=heard).estimate
    assert eta.basis is Basis.PROGRESS


def test_no_sentence_says_that_a_job_reports_no_steps_beside_its_steps() -> None:
    early = running(progress={"step": 3.0, "steps": 18394.0})
    ends, _ = told(early)
    assert "reports too few steps so far" in ends.sentence
    behind, _ = told(WAITS, early)
    assert "report too few steps so far" in behind.sentence
    silent, _ = told(WAITS, running())
    assert "report no steps" in silent.sentence


def test_a_holder_ends_when_its_own_explanation_says() -> None:
    holds = running(progress={"step": 500.0, "steps": 600.0})
    pool = PoolToCome((node(),), [holds], [WAITS], now=NOW)
    own, _ = to_come(holds, lambda: pool)
    assert own is not None
    assert ends_of([holds.id], pool) == {holds.id: own.estimate}


def test_nothing_is_advised_to_a_job_that_no_room_would_start() -> None:
    nodes = (node(), node("node-2", drained=True))
    for code in (*HELD_FOR, CauseCode.STILL_RUNS, CauseCode.ORDERS_FULL):
        held = job("j-2", seq=2, gpus=4, waiting_for=Cause(code=code, sentence="waits"))
        assert told(held, running(gpus=2), nodes=nodes)[1] == (), code


def test_a_priority_is_advised_only_to_those_who_may_ask_for_it_and_names_the_jobs_it_would_stop() -> None:
    def advised(priority_max: int, name: str = "") -> list[Sooner]:
        pool = PoolToCome((node(),), [running()], [WAITS], now=NOW, policy="priority+weft-best+easy")
        person = Advised(priority_max, lambda other: name or other.name)
        return [one for one in to_come(WAITS, lambda: pool, person)[1] if one.what is Helps.PRIORITY]

    assert advised(0) == []
    (found,) = advised(1)
    assert found.sentence.endswith(": train would be stopped for it, within 30s")
    assert "a job of another tenant would be stopped for it" in advised(1, "a job of another tenant")[0].sentence


def test_behind_thousands_of_jobs_their_work_is_the_bound() -> None:
    like = job("w-0", gpus=2)
    others = [job(f"w-{number}", seq=10 + number, gpus=2) for number in range(QUEUE_MAX + 1)]
    eta, _ = told(
        job("j-2", seq=9_999_999, gpus=2), running(), *others, durations=lasted(like, *(3600.0 for _ in range(9)))
    )
    assert (eta.basis, eta.likely, eta.latest) == (Basis.LEARNT, None, None)
    assert eta.earliest is not None
    assert abs((eta.earliest - NOW) / 3600 - 2001 * 2 / 4) < 5  # GPU-hours ahead by the four GPUs
    assert "2,001 jobs ahead of it need 4," in eta.sentence


def test_a_job_that_will_grow_onto_idle_gpus_is_expected_to_end_sooner() -> None:
    """One rank lasts 1,500 s more; four of them, from the next moment on, a quarter of that."""
    late = job("j-2", seq=2, gpus=4, not_before=NOW + 100)
    seen: list[Estimate] = []
    for most in (4, 1):
        sizes = {"role": {"replicas": {"min": 1, "want": 1, "max": most}}, "resize": {"how": "live"}, "priority": 1}
        begun = {"placed_at": 500.0, "started_at": 500.0, "since": 500.0}
        runs = job("j-1", gpus=1, state=JobState.RUNNING, placement=placement(("node-1", 0)), spec=sizes, **begun)
        seen.append(told(late, runs, durations=lasted(runs, *([2000.0] * 20)))[0])
    grows, stays = seen
    assert grows.latest is not None
    assert stays.earliest is not None
    assert grows.latest < NOW + 600 < stays.earliest


def test_a_job_that_will_grow_onto_ranks_that_another_was_offered_is_looked_ahead() -> None:
    """It runs below its size, and no GPU is free: two ranks of another are beyond what that one should have."""
    begun = {"placed_at": 500.0, "started_at": 500.0, "since": 500.0}
    sizes = {"resize": {"how": "live"}, "priority": 1}
    lender = {"role": {"replicas": {"min": 1, "want": 1, "max": 3}}, **sizes}
    grower = {"role": {"replicas": {"min": 1, "want": 2, "max": 2}}, **sizes}
    held = placement(*(("node-1", gpu) for gpu in range(3)))
    held = structs.replace(held, allocations=with_extras(held.allocations, {"worker": 1}))
    lends = job("j-1", gpus=1, state=JobState.RUNNING, placement=held, spec=lender, **begun)
    grows = job("j-2", gpus=1, state=JobState.RUNNING, placement=placement(("node-1", 3)), spec=grower, **begun)
    waits = job("j-3", seq=3, gpus=4, not_before=NOW + 100)
    eta, _ = told(waits, lends, grows, durations=lasted(grows, *([2000.0] * 20)))
    assert eta.latest is not None
