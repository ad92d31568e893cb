"""Whole jobs by a model, tuned in virtual time: near the optimum in few steps; left alone where nothing is wrong."""

import pytest
from msgspec import structs

from tests.support.builders import GIB
from tests.support.tier import of_tier, some
from tests.support.trained import Kindred, Model, Pool, Trained
from weft.domain.decoding.spec_decoder import SpecError, decode_spec
from weft.domain.job import CauseCode, JobState
from weft.domain.quantity import size_bytes
from weft.domain.spec import TuningMode
from weft.messages.signals import NOT_TUNED, NodeSampled
from weftd.reallocator.settings import ReallocatorSettings

SERVER_STARVED = {"ps": Kindred(count=1, seconds=0.5, cpus=0.4), "worker": Kindred(count=3, seconds=0.05, cpus=0.4)}
MOST_STARVED = {"ps": Kindred(count=1, seconds=0.5, cpus=0.27), "worker": Kindred(count=5, seconds=0.04, cpus=0.27)}
WORKERS_STARVED = {"ps": Kindred(count=3, seconds=0.01, cpus=0.32), "worker": Kindred(count=2, seconds=0.5, cpus=0.32)}
THREADED = {
    "ps": Kindred(count=1, seconds=1.0, threads=4, cpus=1.0),
    "worker": Kindred(count=4, seconds=0.3, threads=2, cpus=1.0),
}
# Limits above what threads can use, and most of that used: nothing to gain, nothing to spare.
QUIET = {"ps": Kindred(count=1, seconds=0.3, cpus=1.02), "worker": Kindred(count=2, seconds=0.3, cpus=1.02)}


def total(job: Trained) -> float:
    return sum(one.cpus for one in job.held)


@pytest.mark.parametrize("takes_turns", [True, False], ids=["turns", "overlap"])
@pytest.mark.parametrize("seed", some(2, range(5)))
@pytest.mark.parametrize("roles", [SERVER_STARVED, MOST_STARVED, WORKERS_STARVED, THREADED])
def test_within_a_tenth_of_the_optimum_in_two_steps(roles: dict[str, Kindred], seed: int, takes_turns: bool) -> None:
    model = Model(roles=roles, takes_turns=takes_turns)
    job = Trained(model, seed=seed)
    budget, first = total(job), job.speed
    pool = Pool(job).run(180)
    best = model.samples_per_step / model.best_seconds(budget)
    assert job.speed >= 0.9 * best
    assert job.speed > 1.3 * first
    assert total(job) <= budget + 1e-9
    assert len(pool.tunes) <= 2
    assert pool.tunes[0][0] <= 45.0


def test_healthy_jobs_are_left_alone_for_thirty_minutes() -> None:
    for seed in range(of_tier(4, 40)):
        for takes_turns, roles in ((True, {"worker": QUIET["worker"]}), (False, QUIET)):
            job = Trained(Model(roles=roles, takes_turns=takes_turns), seed=seed, noise=0.02)
            pool = Pool(job, growth=2.0).run(1800)
            assert pool.tunes == [], seed
            assert pool.verdict() == "healthy"


def test_more_is_taken_from_the_node_inside_the_envelope() -> None:
    model = Model(roles=WORKERS_STARVED)
    job = Trained(model)
    asked = total(job)
    pool = Pool(job, growth=2.0).run(300)
    assert pool.codes == [CauseCode.REBALANCED, CauseCode.UPSCALED]
    assert asked < total(job) <= 2 * asked
    assert job.speed >= 0.9 * model.samples_per_step / model.best_seconds(2 * asked)


def test_a_full_node_gives_nothing() -> None:
    job = Trained(Model(roles={"worker": Kindred(count=2, seconds=0.3, cpus=0.5)}))
    assert Pool(job, growth=4.0, cpus=1.0).run(300).tunes == []


def test_what_does_not_pay_is_undone_exactly_and_exhausted() -> None:
    """Most of a step is no CPU's: ten times the cores would gain a few per cent."""
    roles = {"worker": Kindred(count=2, seconds=0.1, threads=8, cpus=0.5)}
    job = Trained(Stubborn(roles=roles), noise=0.003)
    before = job.job.placement
    pool = Pool(job, growth=8.0).run(1800)
    assert pool.codes == [CauseCode.UPSCALED, CauseCode.ROLLED_BACK] * 3
    assert job.job.placement == before
    sizes = [sum(limit.cpus or 0.0 for limit in tune.ranks) for _, tune in pool.tunes[::2]]
    assert sizes == sorted(sizes, reverse=True), "each time less far"
    assert "outscale" in {finding.code for finding in pool.decided.findings}
    state = pool.core.state_of("j-1")
    assert state is not None
    assert (state.kept, state.undone) == (0, 3)


class Stubborn(Model, frozen=True, kw_only=True):
    """Seems held back by its CPU, and gains nothing by more."""

    def step_seconds(self, held: object) -> float:
        return 0.21


def test_a_restart_goes_on_with_the_trial_and_undoes_it() -> None:
    job = Trained(Stubborn(roles={"worker": Kindred(count=2, seconds=0.1, threads=8, cpus=0.5)}), noise=0.003)
    before = job.job.placement
    pool = Pool(job, growth=8.0)
    while not pool.tunes:
        pool.second()
    pool.restart()
    pool.run(60)
    assert pool.codes[:2] == [CauseCode.UPSCALED, CauseCode.ROLLED_BACK]
    assert job.job.placement == before
    pool.restart()
    pool.run(1800)
    assert pool.codes == [CauseCode.UPSCALED, CauseCode.ROLLED_BACK] * 3, "what was in vain is remembered"


def test_a_restart_keeps_what_pays() -> None:
    job = Trained(Model(roles=SERVER_STARVED))
    pool = Pool(job)
    while not pool.tunes:
        pool.second()
    pool.restart()
    pool.run(200)
    assert pool.codes == [CauseCode.REBALANCED]
    state = pool.core.state_of("j-1")
    assert state is not None
    assert (state.kept, state.trial) == (1, None)


def test_a_refused_ask_is_remembered_and_nothing_is_undone() -> None:
    job = Trained(Model(roles=SERVER_STARVED))
    pool = Pool(job)
    pool.refuses = True
    pool.run(600)
    assert pool.codes == [CauseCode.REBALANCED] * 2
    assert total(job) == pytest.approx(1.6)
    assert pool.core.not_done == 2


def test_an_ask_that_is_done_late_is_verified_after_all() -> None:
    job = Trained(Stubborn(roles={"worker": Kindred(count=2, seconds=0.1, threads=8, cpus=0.5)}), noise=0.003)
    before = job.job.placement
    pool = Pool(job, growth=8.0)
    pool.refuses = True
    while not pool.tunes:
        pool.second()
    pool.run(22)
    pool.refuses = False
    job.take(pool.tunes[0][1], pool.now)
    pool.run(60)
    assert pool.codes[:2] == [CauseCode.UPSCALED, CauseCode.ROLLED_BACK]
    assert job.job.placement == before


def test_idle_cores_are_reclaimed_and_kept_above_use() -> None:
    job = Trained(Model(roles={"worker": Kindred(count=2, seconds=0.3, cpus=4.0)}))
    speed = job.speed
    pool = Pool(job).run(300)
    assert pool.codes == [CauseCode.RECLAIMED]
    assert 1.0 <= max(one.cpus for one in job.held) <= 1.35
    assert job.speed == speed


def test_memory_grows_where_pages_are_read_again() -> None:
    job = Trained(
        Model(roles={"worker": Kindred(count=1, seconds=0.3, cpus=1.02, memory=GIB)}, working_set=int(1.5 * GIB))
    )
    pool = Pool(job, growth=1.0).run(400)
    assert set(pool.codes) == {CauseCode.UPSCALED}
    assert 1.5 * GIB <= job.held[0].memory <= 2 * GIB
    assert pool.verdict() != "memory-bound"


def test_a_capped_server_sends_more() -> None:
    roles = {
        "ps": Kindred(count=1, seconds=0.05, cpus=1.02, sends=2.5e6, egress=2_500_000),
        "worker": Kindred(count=2, seconds=0.3, cpus=1.02),
    }
    job = Trained(Model(roles=roles, takes_turns=False))
    pool = Pool(job).run(400)
    assert pool.codes[0] is CauseCode.UPSCALED
    assert 5_000_000 <= (job.held[0].egress or 0) <= 8 * 2_500_000
    assert job.held[1].egress is None


@pytest.mark.parametrize(("most", "codes"), [("10MB", ["rebalanced"]), ("14MB", ["rebalanced", "upscaled"])])
def test_caps_are_shared_anew_and_all_together_stay_in_the_envelope(most: str, codes: list[str]) -> None:
    roles = {
        "ps": Kindred(count=1, seconds=0.05, cpus=1.02, sends=2.5e7, egress=2_500_000),
        "worker": Kindred(count=3, seconds=0.1, cpus=1.02, sends=2.5e5, egress=2_500_000),
    }
    job = Trained(Model(roles=roles), tuning={"mode": "on", "egress_total": most})
    first = job.speed
    pool = Pool(job).run(600)
    assert pool.codes == codes
    assert sum(one.egress or 0 for one in job.held) <= size_bytes(most)
    assert job.speed > 3.0 * first


def test_an_envelope_of_nothing_is_one() -> None:
    roles = {"worker": Kindred(count=2, seconds=0.1, cpus=1.02, sends=2.5e6, egress=2_500_000)}
    job = Trained(Model(roles=roles), tuning={"mode": "on", "egress": "0B"})
    assert Pool(job).run(300).tunes == []
    assert [one.egress for one in job.held] == [2_500_000] * 2


def test_a_sum_of_what_is_sent_needs_a_cap_of_everybody() -> None:
    body = b"name: a\ncommand: [run]\nroles: {ps: {egress: 1MB}, worker: {}}\ntuning: {egress_total: 2MB}\n"
    with pytest.raises(SpecError, match="role worker has no `egress`") as refused:
        decode_spec(body, content="yaml")
    assert refused.value.field == "tuning.egress_total"


def test_advise_says_what_on_would_do_and_does_nothing() -> None:
    for pool_mode, job_mode in ((TuningMode.ADVISE, None), (TuningMode.ON, "advise")):
        job = Trained(Model(roles=SERVER_STARVED), tuning={"mode": job_mode} if job_mode else {"cpus": 1.6})
        pool = Pool(job, tuning=pool_mode).run(120)
        assert pool.tunes == []
        assert {finding.code for finding in pool.decided.findings} == {"rebalance"}


def test_off_for_the_pool_is_final() -> None:
    job = Trained(Model(roles=SERVER_STARVED))
    pool = Pool(job, tuning=TuningMode.OFF).run(120)
    assert pool.tunes == []
    assert pool.decided.findings == ()
    assert pool.verdict() == "cpu-quota-bound", "it is judged all the same"


def test_on_a_node_that_enforces_no_limit_nothing_is_tried_and_the_job_says_why() -> None:
    job = Trained(Model(roles=SERVER_STARVED))
    pool = Pool(job)
    pool.node = structs.replace(pool.node, not_enforced=("cpus", "memory"))
    pool.run(300)
    assert pool.tunes == []
    [finding] = pool.decided.findings
    assert (finding.code, finding.job_id, finding.node_id) == (NOT_TUNED, "j-1", "node-1")
    assert finding.sentence.endswith("its CPU, memory and egress are not tuned: node-1 holds jobs to no CPU limit")
    pool.core.tuning = TuningMode.OFF
    assert pool.run(20).decided.findings == (), "nobody asked for it"


def test_a_pool_left_at_its_defaults_tunes() -> None:
    assert ReallocatorSettings().tuning is TuningMode.ON


def test_switching_off_undoes_what_is_under_trial() -> None:
    job = Trained(Model(roles=SERVER_STARVED))
    before = job.job.placement
    pool = Pool(job)
    while not pool.tunes:
        pool.second()
    pool.run(3)
    pool.core.tuning = TuningMode.OFF
    pool.run(10)
    assert pool.codes == [CauseCode.REBALANCED, CauseCode.ROLLED_BACK]
    assert job.job.placement == before


def test_without_speed_nothing_is_tried() -> None:
    class Silent(Trained):
        def progressed(self, now: float, window: float = 10.0) -> object:  # type: ignore[override]
            return structs.replace(super().progressed(now, window), runs=())

    job = Silent(Model(roles=SERVER_STARVED))
    pool = Pool(job).run(300)
    assert pool.tunes == []
    assert pool.verdict() == "cpu-quota-bound"
    assert "rebalance" in {finding.code for finding in pool.decided.findings}


def test_a_job_that_is_requeued_mid_trial_begins_anew() -> None:
    job = Trained(Model(roles=SERVER_STARVED))
    pool = Pool(job)
    while not pool.tunes:
        pool.second()
    placement = job.job.placement
    job.job = structs.replace(job.job, state=JobState.QUEUED, epoch=2, placement=None)
    pool.core.learn(jobs=[job.job], nodes=[pool.node], now=pool.now)
    assert pool.core.state_of("j-1") is None
    job.job = structs.replace(job.job, state=JobState.RUNNING, placement=placement)
    pool.run(1)
    state = pool.core.state_of("j-1")
    assert state is not None
    assert (state.epoch, state.trial) == (2, None)


def test_of_two_that_want_the_same_cores_the_one_that_gains_more_is_first() -> None:
    greedy = Trained(Model(roles={"worker": Kindred(count=1, seconds=0.3, cpus=0.5)}), job_id="j-small", seed=1)
    wasteful = Trained(
        Model(roles={"worker": Kindred(count=1, seconds=0.3, threads=2, cpus=1.0)}, other_seconds=0.2),
        job_id="j-large",
        seed=2,
    )
    pool = Pool(wasteful, greedy, cpus=1.9, growth=2.0).run(120)
    first = pool.tunes[0][1]
    assert first.cause.code is CauseCode.UPSCALED
    assert greedy.held[0].cpus > 0.85
    assert total(greedy) + total(wasteful) <= 1.9 + 1e-9


class HalfSeen(Trained):
    """The telemetry of one of its ranks says nothing, or not what CPU it uses, as where it is away on that node."""

    tells: tuple[str, ...] = ()

    def sampled(self, now: float) -> NodeSampled:
        sampled = super().sampled(now)
        first, *rest = sampled.runs
        unseen = [structs.replace(one, cpus_used=None) for one in rest] if self.tells else []
        return structs.replace(sampled, runs=(first, *unseen))


@pytest.mark.parametrize("tells", [(), ("memory",)], ids=["nothing", "no CPU"])
@pytest.mark.parametrize("roles", [SERVER_STARVED, MOST_STARVED, WORKERS_STARVED])
def test_a_job_of_which_one_rank_is_not_seen_is_left_alone(roles: dict[str, Kindred], tells: tuple[str, ...]) -> None:
    """It ended the reallocator, with each beat anew: nobody's job was tuned any more, and no service scaled."""
    job = HalfSeen(Model(roles=roles))
    job.tells = tells
    pool = Pool(job, growth=4.0).run(300)
    assert CauseCode.UPSCALED not in pool.codes
