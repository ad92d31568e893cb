"""The outer loop: one more replica of the role that holds a job back is tried, verified, kept or taken back."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.support.tier import examples
from tests.support.trained import Kindred, Model, Pool, Trained
from weft.domain.job import Allocation, CauseCode, JobState
from weft.domain.spec import TuningMode
from weft.planning.partition.weft import weft
from weft.tuning.outer import REST_SECONDS, ROOM_SECONDS
from weft.tuning.state import Phase, decode, encode
from weftd.reallocator.thinking.partitioning import Plans, SizePlanner

LIVE = {"how": "live"}
RESTART = {"how": "restart"}
UP, BACK = CauseCode.OUTSCALED, CauseCode.ROLLED_BACK
STARVED = {"worker": Kindred(count=2, seconds=0.3, cpus=0.5, most=4)}


class Shared(Model, frozen=True, kw_only=True):
    """Workers each have their own samples; servers share what has to be summed and sent for all workers."""

    def step_seconds(self, held: Sequence[Allocation]) -> float:
        return Model(roles=self._shared(held), takes_turns=self.takes_turns).step_seconds(held)

    def sending(self, held: Sequence[Allocation]) -> float:
        return Model(roles=self._shared(held)).sending(held)

    def _shared(self, held: Sequence[Allocation]) -> dict[str, Kindred]:
        has = {name: sum(one.role == name for one in held) for name in self.roles}
        part = has["worker"] / self.roles["worker"].count / max(1, has.get("ps", 1))
        return {
            name: structs.replace(role, seconds=role.seconds * part, sends=role.sends * part) if name == "ps" else role
            for name, role in self.roles.items()
        }


class Crowded(Model, frozen=True, kw_only=True):
    """Another worker makes each slower by as much: together they are as fast as before."""

    def step_seconds(self, held: Sequence[Allocation]) -> float:
        return 0.3 * len(held)


def grown(model: Model | None = None, **fields: Any) -> Trained:
    fields = {"resize": LIVE, "noise": 0.003, **fields}
    return Trained(model or Shared(roles=STARVED), **fields)


def until_asked(pool: Pool, count: int = 1, *, seconds: int = 600) -> Pool:
    for _ in range(seconds):
        if len(pool.scales) >= count:
            return pool
        pool.second()
    raise AssertionError(f"only {len(pool.scales)} sizes were asked for in {seconds} s")


def state_of(pool: Pool) -> Any:
    state = pool.core.state_of("j-1")
    assert state is not None
    return state


def test_workers_are_added_one_by_one_while_each_pays_up_to_the_most_that_the_job_may_have() -> None:
    job = grown()
    pool = Pool(job).run(900)
    assert pool.sizes == [({"worker": 3}, UP), ({"worker": 4}, UP)]
    assert job.job.granted == {"worker": 4}
    state = state_of(pool)
    assert (state.kept, state.undone, state.trial) == (2, 0, None)
    assert state.gained == pytest.approx(2.0, rel=0.1)
    assert state.exponents["worker"] == pytest.approx(1.0, abs=0.1)
    cause = pool.scales[0][1].cause
    assert cause is not None
    assert cause.sentence.startswith("worker 2 → 3: worker rank 0, and 1 more of its role holds it back: uses 0.50")
    assert cause.numbers["cost"] == pytest.approx(0.5)


def test_a_server_is_added_where_it_may_not_send_more() -> None:
    roles = {
        "ps": Kindred(count=1, seconds=0.02, cpus=1.02, sends=2e6, egress=2_500_000, most=3),
        "worker": Kindred(count=2, seconds=0.1, cpus=1.02),
    }
    job = grown(Shared(roles=roles), tuning={"mode": "on", "egress": "2500KB"})
    before = job.speed
    pool = Pool(job).run(600)
    assert [size for size, _ in pool.sizes[:1]] == [{"ps": 2}]
    assert job.job.granted["ps"] >= 2
    assert job.job.granted["worker"] == 2
    assert job.speed > 1.4 * before


def test_a_replica_that_does_not_pay_leaves_again_and_is_not_tried_before_the_speed_has_drifted() -> None:
    job = grown(Crowded(roles=STARVED))
    before = [(one.rank, one.cpus, one.memory) for one in job.held]
    pool = Pool(job).run(1200)
    assert pool.sizes == [({"worker": 3}, UP), ({"worker": 2}, BACK)]
    assert [(one.rank, one.cpus, one.memory) for one in job.held] == before
    back = pool.scales[1][1].cause
    assert back is not None
    assert back.sentence.startswith("as before (worker 2 → 3 did not pay): speed of all ranks")
    state = state_of(pool)
    assert (state.kept, state.undone, state.failed["replicas:one-more:worker"].times) == (0, 1, 1)
    job.model = Crowded(roles=STARVED, samples_per_step=80.0)
    pool.run(300)
    assert [size for size, _ in pool.sizes[2:]] == [{"worker": 3}, {"worker": 2}]


def test_gains_are_of_all_ranks_together_and_a_replica_counts_once_it_works() -> None:
    """The speed of each rank stays as it is; the rank that joined tells nothing for its first minute."""
    job = grown()
    pool = until_asked(Pool(job))
    asked_at, heard = pool.now, pool.core.gathering.hear_progress

    def late(seen: Any, *, now: float) -> None:
        runs = tuple(run for run in seen.runs if run.rank < 2 or pool.now > asked_at + 60)
        heard(structs.replace(seen, runs=runs), now=now)

    pool.core.gathering.hear_progress = late  # type: ignore[method-assign]
    pool.run(55)
    assert state_of(pool).phase is Phase.VERIFYING
    pool.run(60)
    assert state_of(pool).kept == 1
    assert [code for _, code in pool.sizes] == [UP, UP]


@pytest.mark.parametrize(
    ("fields", "of_pool"),
    [
        ({"resize": {"how": "never"}}, {}),
        ({"tuning": {"mode": "advise"}}, {}),
        ({"tuning": {"mode": "on", "cpus": 1.05}}, {}),
        ({}, {"cpus": 1.2}),
        ({}, {"plans_sizes": True}),
    ],
    ids=["never resizes", "advise", "over its envelope", "no room", "left to the planner"],
)
def test_what_may_not_be_asked_for_is_only_suggested(fields: Any, of_pool: Any) -> None:
    pool = Pool(grown(**fields), **of_pool).run(300)
    assert pool.scales == []
    assert "outscale" in {finding.code for finding in pool.decided.findings} or pool.tunes


def test_a_job_at_its_most_is_left_alone() -> None:
    pool = Pool(grown(Shared(roles={"worker": Kindred(count=2, seconds=0.3, cpus=0.5, most=2)}))).run(300)
    assert pool.scales == []


def test_a_job_whose_ranks_have_one_busy_thread_each_lacks_ranks_not_cores() -> None:
    job = grown(Shared(roles={"worker": Kindred(count=2, seconds=0.3, cpus=1.1, most=3)}))
    pool = Pool(job).run(300)
    assert pool.verdict() == "healthy"
    assert (pool.sizes, pool.tunes) == ([({"worker": 3}, UP)], [])


SERVERS_IDLE = {
    "ps": Kindred(count=3, seconds=0.01, cpus=0.32),
    "worker": Kindred(count=2, seconds=0.5, cpus=0.32, most=3),
}


class Alone(Shared, frozen=True, kw_only=True):
    """A third worker makes a step longer by as much as it adds."""

    def step_seconds(self, held: Sequence[Allocation]) -> float:
        return super().step_seconds(held) * (1.0 if len(held) < 6 else 1.5)


@pytest.mark.parametrize("pays", [True, False])
def test_a_rank_that_joins_has_as_much_as_its_peers_inside_the_envelope(pays: bool) -> None:
    """The workers were given the servers' cores; with what its role asks for the new one would hold all others up."""
    model = Shared(roles=SERVERS_IDLE, takes_turns=False) if pays else Alone(roles=SERVERS_IDLE, takes_turns=False)
    job = grown(model)
    pool = until_asked(Pool(job, growth=1.0), seconds=900)
    had = {one.rank: one.cpus for one in job.held[:5]}
    pool.run(5)
    workers = [one.cpus for one in job.held if one.role == "worker"]
    assert len(workers) == 3
    assert min(workers) > 0.32
    assert max(workers) <= min(workers) + 0.02
    assert sum(one.cpus for one in job.held) <= 6 * 0.32 + 1e-9
    pool.run(120)
    assert len([one for one in job.held if one.role == "worker"]) == (3 if pays else 2)
    if not pays:
        assert {one.rank: one.cpus for one in job.held} == pytest.approx(had)


@pytest.mark.parametrize("asked", [0.32, 0.6])
def test_where_all_cores_are_given_a_role_shares_its_own_with_a_further_rank(asked: float) -> None:
    """A step has a part that no CPU makes shorter, and that three workers share: the cores stay as many."""
    roles = {
        "ps": Kindred(count=1, seconds=0.01, cpus=0.1),
        "worker": Kindred(count=2, seconds=0.5, cpus=asked, most=3),
    }
    cores = 0.1 + 2 * asked
    for other, ends_with in ((1.0, 3), (0.0, 2)):
        job = grown(Model(roles=roles, other_seconds=other), tuning={"mode": "on", "cpus": cores})
        pool = Pool(job)
        for _ in range(300):
            pool.second()
            assert sum(one.cpus for one in job.held) <= cores + 1e-9
        assert job.job.granted["worker"] == ends_with
        workers = [one.cpus for one in job.held if one.role == "worker"]
        assert max(workers) - min(workers) <= 0.02
        if ends_with == 3:
            assert {CauseCode.OUTSCALED, CauseCode.REBALANCED} <= set(pool.codes)
            assert state_of(pool).gained > 1.1


def test_what_the_peers_gave_comes_back_when_the_replica_leaves() -> None:
    roles = {"ps": Kindred(count=1, seconds=0.01, cpus=0.1), "worker": Kindred(count=2, seconds=0.5, cpus=0.4, most=3)}

    class Promising(Model, frozen=True, kw_only=True):
        def step_seconds(self, held: Sequence[Allocation]) -> float:
            return super().step_seconds(held) + (5.0 if len(held) > 3 else 0.0)

    job = grown(Promising(roles=roles, other_seconds=1.0), tuning={"mode": "on", "cpus": 0.9})
    pool = until_asked(Pool(job), 2)
    pool.run(3)
    assert pool.codes[-3:] == [CauseCode.OUTSCALED, CauseCode.REBALANCED, BACK]
    before = pool.tunes[-3][1]
    assert {limit.rank for limit in before.ranks} == {limit.rank for limit in pool.tunes[-1][1].ranks}
    assert sum(one.cpus for one in job.held) == pytest.approx(0.9, abs=0.01)
    assert job.job.granted["worker"] == 2


# room, and the store


def test_an_ask_without_room_is_withdrawn_in_time_and_put_off() -> None:
    job = grown()
    pool = Pool(job)
    pool.full = True
    until_asked(pool, 2)
    (first, one), (second, other) = pool.scales
    assert (one.size, other.size) == ({"worker": 3}, {"worker": 2})
    assert ROOM_SECONDS <= second - first <= ROOM_SECONDS + 2
    assert other.cause is not None
    assert "no room was free for it within 120 s" in other.cause.sentence
    pool.run(int(REST_SECONDS) - 10)
    assert len(pool.scales) == 2
    assert state_of(pool).failed == {}
    pool.full = False
    pool.run(120)
    assert job.job.granted["worker"] >= 3


def test_what_the_store_refuses_has_not_begun() -> None:
    pool = Pool(grown())
    pool.store_refuses = True
    pool.run(200)
    assert (pool.scales, state_of(pool).trial) == ([], None)
    pool.store_refuses = False
    pool.run(200)
    assert pool.sizes[0] == ({"worker": 3}, UP)


def test_a_withdrawal_that_the_store_refuses_is_asked_for_until_it_takes_it() -> None:
    """It refuses while the first ask is not done: that one can then be neither lost nor done late."""
    job = grown()
    pool = Pool(job)
    pool.refuses = True
    until_asked(pool)
    pool.store_refuses = True
    pool.run(200)
    assert state_of(pool).phase is Phase.ACTING
    pool.store_refuses = pool.refuses = False
    pool.run(5)
    assert [size for size, _ in pool.sizes] == [{"worker": 3}, {"worker": 2}]
    pool.run(30)
    assert (state_of(pool).trial, job.job.granted) == (None, {"worker": 2})


@pytest.mark.parametrize("wait", [0, 3, 25])
def test_another_process_goes_on_with_the_trial(wait: int) -> None:
    for model, ends_with in ((None, 3), (Crowded(roles=STARVED), 2)):
        roles = {"worker": structs.replace(STARVED["worker"], most=3)}
        job = grown(structs.replace(model or Shared(roles=STARVED), roles=roles))
        pool = until_asked(Pool(job)).run(wait)
        pool.restart()
        pool.run(200)
        assert job.job.granted == {"worker": ends_with}
        assert [code for _, code in pool.sizes] == ([UP] if ends_with == 3 else [UP, BACK])


# others


def test_the_size_that_others_give_a_job_ends_its_trial_and_they_are_not_undone() -> None:
    job = grown()
    pool = until_asked(Pool(job)).run(2)
    job.scale({"worker": 4})
    job.resize(pool.now)
    pool.run(100)
    assert [size for size, _ in pool.sizes] == [{"worker": 3}]
    assert state_of(pool).trial is None
    assert job.job.granted == {"worker": 4}


def test_a_job_that_others_resized_is_left_alone_until_it_has_cooled_down() -> None:
    job = grown()
    pool = Pool(job)
    job.scale({"worker": 3})
    job.resize(pool.now)
    pool.run(110)
    assert pool.scales == []
    pool.run(60)
    assert pool.sizes == [({"worker": 4}, UP)]


def test_a_trial_of_limits_ends_without_a_verdict_when_ranks_join() -> None:
    roles = {"ps": Kindred(count=1, seconds=0.5, cpus=0.4), "worker": Kindred(count=3, seconds=0.05, cpus=0.4, most=4)}
    job = grown(Model(roles=roles))
    pool = Pool(job)
    while not pool.tunes:
        pool.second()
    pool.run(3)
    job.scale({"worker": 4})
    job.resize(pool.now)
    pool.run(3)
    state = state_of(pool)
    assert (state.trial, state.kept, state.undone) == (None, 0, 0)


def test_a_replica_that_ends_is_not_asked_for_again() -> None:
    job = grown()
    pool = until_asked(Pool(job)).run(3)
    held = job.held[:2]
    assert job.job.placement is not None
    job.job = structs.replace(job.job, placement=structs.replace(job.job.placement, allocations=held))
    pool.run(200)
    assert [size for size, _ in pool.sizes] == [{"worker": 3}, {"worker": 2}]
    assert "replicas:one-more:worker" in state_of(pool).failed


def test_switching_off_takes_the_replica_back() -> None:
    job = grown()
    pool = until_asked(Pool(job)).run(3)
    pool.core.tuning = TuningMode.OFF
    pool.run(30)
    assert pool.sizes == [({"worker": 3}, UP), ({"worker": 2}, BACK)]
    assert job.job.granted == {"worker": 2}


def test_of_two_jobs_that_would_grow_one_is_tried_at_a_time_in_a_review() -> None:
    jobs = [grown(job_id=f"j-{number}", noise=0.0) for number in (1, 2)]
    pool = until_asked(Pool(*jobs))
    assert len(pool.scales) == 1


def test_the_planner_leaves_a_job_under_trial_as_it_is() -> None:
    job = grown(Shared(roles={"worker": Kindred(count=2, seconds=0.3, cpus=0.5, most=8)}))
    pool = until_asked(Pool(job))
    assert pool.core.under_trial == {"j-1"}
    planner = SizePlanner(Plans(mode=TuningMode.ON), weft)
    now = pool.now + 1000.0
    running = structs.replace(job.job, placed_at=0.0)
    for under_trial, plans in ((pool.core.under_trial, False), (frozenset[str](), True)):
        planned = planner.plan(
            holding=[running], queued=[], nodes=[pool.node], curves={}, now=now, under_trial=under_trial
        )
        assert bool(planned.sizes) is plans


def test_servers_are_tried_where_the_planner_sizes_the_workers() -> None:
    roles = {
        "ps": Kindred(count=1, seconds=0.3, cpus=1.02, most=2),
        "worker": Kindred(count=2, seconds=0.02, cpus=1.02, most=8),
    }
    job = grown(Shared(roles=roles))
    pool = Pool(job, plans_sizes=True).run(300)
    assert [size for size, _ in pool.sizes] == [{"ps": 2}]


# jobs that restart


def restarting(**fields: Any) -> Trained:
    return grown(resize=RESTART, checkpoints={"on_stop": True}, **fields)


def run_on(pool: Pool, job: Trained, seconds: int, *, down: int = 30) -> None:
    """Run; a job that stops for another size is back after so many seconds."""
    stopped = 0
    for _ in range(seconds):
        pool.second()
        stopped = stopped + 1 if job.job.state is JobState.STOPPING else 0
        if stopped >= down:
            job.restarted(pool.now)


@pytest.mark.parametrize(("model", "codes"), [(None, [UP]), (Crowded(roles=STARVED), [UP, BACK])])
@pytest.mark.parametrize("dies", [False, True])
def test_the_trial_of_a_job_that_restarts_goes_on_in_its_next_epoch(
    model: Model | None, codes: list[CauseCode], dies: bool
) -> None:
    job = restarting(model=model) if model else restarting()
    pool = until_asked(Pool(job, restart_cost=lambda _: 40.0))
    assert job.job.state is JobState.STOPPING
    run_on(pool, job, 10)
    assert pool.core.under_trial == {"j-1"}, "it does not run, and nobody else shall change its size"
    if dies:
        pool.restart()
    run_on(pool, job, 330)
    assert [code for _, code in pool.sizes] == codes
    assert job.job.granted == {"worker": 3 if codes == [UP] else 2}
    assert job.job.epoch == 1 + len(codes)
    state = state_of(pool)
    assert (state.epoch, state.kept, state.undone) == (job.job.epoch, 2 - len(codes), len(codes) - 1)


@pytest.mark.parametrize(
    ("cost", "fields", "asked"),
    [
        (40.0, {}, True),
        (400.0, {}, False),
        (40.0, {"time_limit": "400s"}, True),
        (40.0, {"time_limit": "150s"}, False),
    ],
)
def test_a_restart_has_to_pay_by_the_end_of_the_job(cost: float, fields: Any, asked: bool) -> None:
    """A third worker is expected to make it 1.41 times as fast."""
    pool = Pool(restarting(**fields), restart_cost=lambda _: cost).run(120)
    assert bool(pool.scales) is asked


def test_a_size_that_fails_is_not_tried_again() -> None:
    job = restarting()
    pool = until_asked(Pool(job, restart_cost=lambda _: 10.0))
    pool.run(20)
    job.scale({"worker": 2})  # the scheduler, because the job ended with three
    job.restarted(pool.now)
    pool.run(600)
    assert [size for size, _ in pool.sizes] == [{"worker": 3}]
    assert state_of(pool).failed["replicas:one-more:worker"].times == 1


def test_a_job_that_is_requeued_mid_trial_of_its_limits_begins_anew_and_one_of_its_size_goes_on() -> None:
    job = grown()
    pool = until_asked(Pool(job)).run(3)
    state = state_of(pool)
    later = decode(encode(state), epoch=5, now=9.0)
    assert (later.epoch, later.phase, later.trial and later.trial.proposal) == (5, state.phase, state.trial.proposal)
    assert decode(encode(state), epoch=0, now=9.0).trial is None
    assert decode(encode(structs.replace(state, trial=None)), epoch=5, now=9.0).kept == 0


# laws


EVENTS = ["does", "waits", "user", "lost", "dies", "epoch", "off", "on", "time"]


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(1, 40)), min_size=4, max_size=14), st.booleans())
def test_whatever_happens_sizes_stay_in_their_range_and_only_its_own_replica_is_taken_back(
    events: list[tuple[str, int]], pays: bool
) -> None:
    job = grown(None if pays else Crowded(roles=STARVED), tuning={"mode": None})
    pool = Pool(job)
    tried: dict[str, int] | None = None
    for event, seconds in [("time", 45), *events]:
        _happen(pool, job, event)
        for _ in range(seconds):
            had, known = job.job, len(pool.scales)
            pool.second()
            for _, scale in pool.scales[known:]:
                assert scale.cause is not None
                if scale.cause.code is BACK:
                    assert scale.size == tried, "as it was before this trial"
                    assert had.wanted["worker"] in (scale.size["worker"], scale.size["worker"] + 1)
                else:
                    assert pool.core.tuning is TuningMode.ON
                    assert scale.size == {"worker": had.granted["worker"] + 1}
                    assert had.granted == had.wanted
                    tried = dict(had.granted)
                assert 1 <= scale.size["worker"] <= 4
    assert len(pool.core.under_trial) <= 1


def _happen(pool: Pool, job: Trained, event: str) -> None:
    match event:
        case "does":
            pool.refuses = pool.full = False
            job.resize(pool.now)
        case "waits":
            pool.full = True
        case "user":
            job.scale({"worker": 1 + job.job.version % 4})
            job.resize(pool.now)
        case "lost" if len(job.held) > 1:
            assert job.job.placement is not None
            placement = structs.replace(job.job.placement, allocations=job.held[:-1])
            job.job = structs.replace(job.job, placement=placement)
        case "dies":
            pool.settings["tuning"] = pool.core.tuning
            pool.restart()
        case "epoch":
            job.restarted(pool.now)
        case "off" | "on":
            pool.core.tuning = TuningMode(event)
        case _:
            pass
