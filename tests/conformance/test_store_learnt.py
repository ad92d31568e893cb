"""What every store keeps of what is learnt: scores of GPUs, classes and curves of workloads, what the tuner knows."""

import json

import pytest
from msgspec import structs

from tests.support.builders import node
from tests.support.steps import go, placement, step
from tests.support.stores import AT, World, told
from weft.domain.job import Cause, CauseCode, Job, JobEvent, JobState
from weft.domain.lease import Lease
from weft.domain.sizes import RESTART_SECONDS_MAX, RestartCost
from weft.messages.asks import AskKind, RankTuning, Reshare, Scale, Tune
from weft.messages.signals import Curve, CurvePoint, GangPoint, GpuScore, PairSlowdown, WorkloadClass, WorkloadPenalty
from weft.store import DoubleAllocationError
from weft.store.tuning import Envelope

_E, _S = JobEvent, JobState

# scores


async def test_the_newest_score_of_a_gpu_and_class_wins(world: World) -> None:
    lease = await world.lead()
    await world.scheduler.save_node(lease, node(), event="", cause="")

    def score(value: float, *, node_id: str = "node-1", gpu: int = 0, job_class: str = "a") -> GpuScore:
        return GpuScore(node_id=node_id, gpu_index=gpu, job_class=job_class, score=value)

    await world.scorer.save_scores([score(1.5, gpu=1), score(1.0), score(2.0, job_class="b")], at=AT + 10)
    await world.scorer.save_scores([score(9.0), score(1.1, node_id="node-9")], at=AT)
    assert await world.scheduler.scores(pool="default") == [score(1.0), score(2.0, job_class="b"), score(1.5, gpu=1)]
    await world.scorer.save_scores([score(1.25)], at=AT + 10)
    assert (await world.scheduler.scores(pool="default"))[0] == score(1.25)
    assert await world.scheduler.scores(pool="other") == []
    await world.scorer.save_scores([], at=AT)


async def test_scores_are_found_by_when_they_were_stored_or_by_their_node(world: World) -> None:
    lease = await world.lead()
    await world.scheduler.save_node(lease, node(), event="", cause="")

    def score(value: float, *, gpu: int) -> GpuScore:
        return GpuScore(node_id="node-1", gpu_index=gpu, job_class="a", score=value)

    await world.scorer.save_scores([score(1.0, gpu=0)], at=AT)
    await world.scorer.save_scores([score(2.0, gpu=1)], at=AT + 10)
    assert await world.scheduler.scores(pool="default", since=AT + 10) == [score(2.0, gpu=1)]
    assert await world.scheduler.scores(pool="default", since=AT + 11) == []
    everything = await world.scheduler.scores(pool="default", since=AT + 11, nodes=["node-1", "node-9"])
    assert everything == [score(1.0, gpu=0), score(2.0, gpu=1)]


async def test_a_score_is_kept_with_how_sure_it_is_where_it_is_from_and_when_it_was_measured(world: World) -> None:
    lease = await world.lead()
    await world.scheduler.save_node(lease, node(), event="", cause="")
    measured = GpuScore(node_id="node-1", gpu_index=0, job_class="a", score=1.2, confidence=0.4, source="profile")
    measured = structs.replace(measured, measured_at=AT - 3600.5)
    await world.scorer.save_scores([measured], at=AT)
    assert await world.scheduler.scores(pool="default") == [measured]
    plain = GpuScore(node_id="node-1", gpu_index=0, job_class="a", score=1.0)
    await world.scorer.save_scores([plain], at=AT + 1)
    assert await world.scheduler.scores(pool="default") == [plain]


async def test_a_score_is_kept_with_its_samples_and_until_when_it_counts_as_slow(world: World) -> None:
    lease = await world.lead()
    await world.scheduler.save_node(lease, node(), event="", cause="")
    slow = GpuScore(
        node_id="node-1", gpu_index=0, job_class="a", score=1.5, source="jobs", samples=40, quarantined_until=AT + 60.25
    )
    await world.scorer.save_scores([slow], at=AT)
    for store in (world.scheduler, world.gateway, world.scorer):
        assert await store.scores(pool="default") == [slow]
    forgiven = structs.replace(slow, score=1.0, samples=41, quarantined_until=None)
    await world.scorer.save_scores([forgiven], at=AT + 1)
    assert await world.scheduler.scores(pool="default") == [forgiven]


# what is learnt of workloads


def learnt(workload: str, job_class: str, *, at: float = AT) -> WorkloadClass:
    return WorkloadClass(workload=workload, job_class=job_class, compute=0.75, memory=0.25, samples=12, at=at)


async def test_the_newest_class_of_a_workload_wins_in_its_pool(world: World) -> None:
    await world.scorer.save_classes([learnt("b", "memory", at=AT + 5.5), learnt("a", "compute")], pool="default")
    await world.scorer.save_classes([learnt("b", "mixed", at=AT + 5)], pool="default")
    await world.scorer.save_classes([learnt("a", "mixed")], pool="other")
    for store in (world.scheduler, world.scorer, world.gateway):
        assert await store.classes(pool="default") == [learnt("a", "compute"), learnt("b", "memory", at=AT + 5.5)]
        assert await store.classes(pool="default", since=AT + 1) == [learnt("b", "memory", at=AT + 5.5)]
        assert await store.classes(pool="other") == [learnt("a", "mixed")]
    await world.scorer.save_classes([learnt("a", "memory")], pool="default")
    assert (await world.scheduler.classes(pool="default"))[0] == learnt("a", "memory")
    await world.scorer.save_classes([], pool="default")


async def test_classes_stored_before_then_are_forgotten(world: World) -> None:
    old, new = learnt("a", "compute"), learnt("b", "memory", at=AT + 1)
    for pool in ("default", "other"):
        await world.scorer.save_classes([old, new], pool=pool)
    await world.scorer.forget_classes(pool="default", before=AT + 1)
    assert await world.gateway.classes(pool="default") == [new]
    assert await world.gateway.classes(pool="other") == [old, new]


async def test_curves_are_found_by_whose_they_are_and_the_newest_wins(world: World) -> None:
    def curve(subject: str, *speeds: float, pool: str = "default", at: float = AT) -> Curve:
        points = tuple(
            CurvePoint(replicas=number, cpus=2.0 * number, speed=speed, spread=0.125, windows=3, at=at)
            for number, speed in enumerate(speeds, 1)
        )
        return Curve(subject=subject, pool=pool, points=points, at=at)

    await world.scorer.save_curves([curve("job:j-1", 10.0, 18.0, at=AT + 1), curve("workload:w", 9.0)])
    await world.scorer.save_curves([curve("job:j-1", 1.0), curve("job:j-2", 7.0, pool="other"), curve("job:j-3")])
    for store in (world.gateway, world.scorer):
        found = await store.curves(pool="default", subjects=["workload:w", "job:j-1", "job:j-1", "job:j-2"])
        assert found == [curve("job:j-1", 10.0, 18.0, at=AT + 1), curve("workload:w", 9.0)]
        assert await store.curves(pool="default", subjects=["job:j-3"]) == [curve("job:j-3")]
        assert await store.curves(pool="default", subjects=[]) == []
    await world.scorer.save_curves([])


async def test_curves_of_several_models_are_those_of_workloads_and_the_newest_of_them(world: World) -> None:
    def curve(subject: str, *models: str, pool: str = "default", at: float = AT) -> Curve:
        points = tuple(CurvePoint(replicas=1, cpus=4.0, speed=1.0, model=model) for model in models)
        return Curve(subject=subject, pool=pool, points=points, at=at)

    both = [curve(f"workload:{name}", "T4", "A100", at=AT + late) for name, late in (("b", 0), ("a", 1), ("c", 1))]
    others = [
        curve("workload:one", "T4", "T4"),
        curve("workload:unknown", "T4", ""),
        curve("job:j-1", "T4", "A100"),
        curve("workload:w", "T4", "A100", pool="other"),
        curve("workload:none"),
    ]
    await world.scorer.save_curves([*others, *both])
    for store in (world.scheduler, world.gateway):
        assert await store.curves_of_models(pool="default", limit=10) == both
        assert await store.curves_of_models(pool="default", limit=2) == both[1:]
        assert await store.curves_of_models(pool="default", since=AT + 1, limit=10) == both[1:]


async def test_a_scorer_finds_what_succeeded_of_the_tenants_it_asks_for(world: World) -> None:
    lease = await world.lead()
    jobs = await world.admitted(lease, "j-1", "j-2", "j-3", labels={"wanted": "1"})
    jobs += await world.admitted(lease, "j-4")
    for number, job in enumerate(jobs):
        job = await go(
            world.scheduler, lease, job, _E.PLACED, at=AT + 10, placement=placement(("node-1", number)), progress=None
        )
        job = await go(world.scheduler, lease, job, _E.STARTING, at=AT + 11)
        job = await go(world.scheduler, lease, job, _E.STARTED, at=AT + 12)
        event = _E.FAILED if job.id == "j-3" else _E.SUCCEEDED
        told_last = {"progress": {"score": 1.5}, "exit_code": 0}
        await go(world.scheduler, lease, job, event, at=AT + 30 - number, **told_last)

    async def ended(*tenants: str, since: float = AT, until: float = AT + 31) -> list[Job]:
        return await world.scorer.ended_jobs(tenants=tenants, since=since, until=until, label="wanted")

    found = await ended("alice", "bob")
    assert [(job.id, job.progress) for job in found] == [("j-2", {"score": 1.5}), ("j-1", {"score": 1.5})]
    assert found == [await world.known("j-2"), await world.known("j-1")]
    assert [job.id for job in await ended("alice", since=AT + 30)] == ["j-1"]
    assert [job.id for job in await ended("alice", until=AT + 30)] == ["j-2"]
    assert await ended("bob") == await ended() == []


async def test_the_jobs_of_a_pool_that_ended_last_are_found_the_last_first(world: World) -> None:
    lease = await world.lead()
    jobs = await world.admitted(lease, "j-1", "j-2", "j-3", "j-4")
    for number, job in enumerate(jobs[:3]):
        await go(world.scheduler, lease, job, _E.CANCELLED, at=AT + 30 - number)

    async def ended(*, pool: str = "default", since: float = 0.0, limit: int = 10) -> list[str]:
        return await world.gateway.ended_last(pool=pool, since=since, limit=limit)

    assert await ended() == ["j-1", "j-2", "j-3"]
    assert await ended(since=AT + 29) == ["j-1", "j-2"]
    assert await ended(limit=1) == ["j-1"]
    assert await ended(limit=0) == await ended(pool="other") == []


# tuning


TUNE = Tune(
    epoch=0,
    ranks=(RankTuning(rank=0, cpus=2.5, memory=3 << 30, egress=2_500_000), RankTuning(rank=1, cpus=0.5)),
    cause=Cause(code=CauseCode.REBALANCED, sentence="rank 1 leaves it unused", numbers={"cpu_throttled": 0.5}),
)


def envelope(job_id: str, *, epoch: int = 0, state: bytes = b'{"tried": []}', pool: str = "default") -> Envelope:
    return Envelope(job_id=job_id, pool=pool, epoch=epoch, state=state)


async def running_job(world: World, lease: Lease, job_id: str, gpu: int = 0) -> Job:
    (job,) = await world.admitted(lease, job_id, replicas=2)
    where = placement(("node-1", gpu), ("node-1", gpu + 1))
    job = await go(world.scheduler, lease, job, _E.PLACED, at=AT + 1, placement=where)
    job = await go(world.scheduler, lease, job, _E.STARTING, at=AT + 2)
    return await go(world.scheduler, lease, job, _E.STARTED, at=AT + 3)


async def test_a_tuning_is_asked_once_until_it_is_done_and_what_the_tuner_knows_goes_with_it(world: World) -> None:
    lease = await world.lead()
    await running_job(world, lease, "j-1")
    await running_job(world, lease, "j-2", gpu=2)
    assert await world.reallocator.ask_tune(envelope("j-1"), TUNE, at=AT + 10)
    assert not await world.reallocator.ask_tune(envelope("j-1", state=b'{"tried": [1]}'), TUNE, at=AT + 11)
    assert await world.reallocator.ask_tune(envelope("j-2"), TUNE, at=AT + 12)
    first, second = await world.scheduler.asks(pool="default", limit=10)
    assert (first.kind, first.subject_id, first.tune, first.at) == (AskKind.TUNE, "j-1", TUNE, AT + 10)
    assert second.subject_id == "j-2"
    assert [json.loads(one.state) for one in await world.reallocator.envelopes(pool="default")] == [{"tried": []}] * 2
    await world.scheduler.drop_asks(lease, [first.id])
    assert await world.reallocator.ask_tune(envelope("j-1"), TUNE, at=AT + 13)


RESHARE = Reshare(
    request=600,
    role="worker",
    epoch=0,
    instead_of=300,
    cause=Cause(code=CauseCode.SHARE_USED, sentence="it uses all of it"),
)
SCALE = Scale(
    size={"worker": 3}, epoch=0, cause=Cause(code=CauseCode.OUTSCALED, sentence="one more worker", numbers={"had": 2.0})
)


async def test_a_size_is_asked_with_what_the_tuner_knows_and_once_until_it_is_done_whoever_asks(world: World) -> None:
    lease = await world.lead()
    await running_job(world, lease, "j-1")
    await running_job(world, lease, "j-2", gpu=2)
    assert await world.reallocator.ask_scale(envelope("j-1"), SCALE, at=AT + 10)
    assert not await world.reallocator.ask_scale(envelope("j-1", state=b'{"tried": [1]}'), SCALE, at=AT + 11)
    assert await world.reallocator.ask_sizes({"j-1": SCALE, "j-2": SCALE}, pool="default", at=AT + 12) == ["j-2"]
    assert not await world.reallocator.ask_scale(envelope("j-2"), SCALE, at=AT + 13)
    assert await world.reallocator.ask_tune(envelope("j-2", state=b'{"tried": [2]}'), TUNE, at=AT + 14)
    first, second, third = await world.scheduler.asks(pool="default", limit=10)
    assert (first.kind, first.subject_id, first.tenant, first.scale) == (AskKind.SCALE, "j-1", "weft", SCALE)
    assert (second.subject_id, third.kind) == ("j-2", AskKind.TUNE)
    stored = {each.job_id: json.loads(each.state) for each in await world.reallocator.envelopes(pool="default")}
    assert stored == {"j-1": {"tried": []}, "j-2": {"tried": [2]}}
    await world.scheduler.drop_asks(lease, [first.id])
    assert await world.reallocator.ask_scale(envelope("j-1"), SCALE, at=AT + 15)


async def test_shares_are_asked_for_of_running_jobs_of_the_pool_once_until_it_is_done(world: World) -> None:
    lease = await world.lead()
    await running_job(world, lease, "j-1")
    await world.admitted(lease, "j-0")
    shares = dict.fromkeys(("j-0", "j-1", "j-9"), RESHARE)
    assert await world.reallocator.ask_shares(shares, pool="other", at=AT) == []
    assert await world.reallocator.ask_shares(shares, pool="default", at=AT) == ["j-1"]
    assert await world.reallocator.ask_shares(shares, pool="default", at=AT) == []
    [ask] = await world.scheduler.asks(pool="default", limit=10)
    assert (ask.kind, ask.subject_id, ask.tenant, ask.share) == (AskKind.SHARE, "j-1", "weft", RESHARE)
    await world.scheduler.drop_asks(lease, [ask.id])
    assert await world.reallocator.ask_shares(shares, pool="default", at=AT) == ["j-1"]


async def test_a_tuner_asks_for_a_size_only_of_a_job_that_runs_in_that_epoch_and_pool(world: World) -> None:
    lease = await world.lead()
    (waiting,) = await world.admitted(lease, "j-0")
    job = await running_job(world, lease, "j-1")
    for refused in (envelope(waiting.id), envelope("j-9"), envelope("j-1", epoch=1), envelope("j-1", pool="other")):
        assert not await world.reallocator.ask_scale(refused, SCALE, at=AT)
    await go(world.scheduler, lease, job, _E.STOPPING, at=AT + 4)
    assert not await world.reallocator.ask_scale(envelope("j-1"), SCALE, at=AT)
    assert await world.scheduler.asks(pool="default", limit=10) == []
    assert await world.reallocator.envelopes(pool="default") == []


async def test_a_tuning_that_is_done_is_stored_with_its_step_and_told(world: World) -> None:
    lease = await world.lead()
    job = await running_job(world, lease, "j-1")
    assert await world.reallocator.ask_tune(envelope("j-1"), TUNE, at=AT + 10)
    (ask,) = await world.scheduler.asks(pool="default", limit=10)
    assert ask.tune is not None
    assert job.placement is not None
    first, other = job.placement.allocations
    has = structs.replace(
        job.placement,
        allocations=(structs.replace(first, cpus=2.5, egress=2_500_000), structs.replace(other, cpus=0.5)),
    )
    fields = {"placement": has, "cause": ask.tune.cause, "ask": ask.id}
    tuned = await go(world.scheduler, lease, job, _E.TUNED, at=AT + 11, **fields)
    assert (tuned.state, tuned.epoch, tuned.version) == (_S.RUNNING, 0, job.version + 1)
    assert tuned.placement == has
    assert (tuned.since, tuned.started_at, tuned.placed_at) == (job.since, job.started_at, job.placed_at)
    assert await world.scheduler.asks(pool="default", limit=10) == []
    last = (await world.gateway.story("j-1"))[-1]
    assert last.subject == "weft.events.jobs.tuned"
    assert told(last)["cause"]["code"] == "rebalanced"
    assert [one["cpus"] for one in told(last)["placement"]["allocations"]] == [2.5, 0.5]
    # It holds its GPUs as before, once.
    (another,) = await world.admitted(lease, "j-2")
    with pytest.raises(DoubleAllocationError):
        await world.take(lease, step(another, _E.PLACED, at=AT + 12, placement=placement(("node-1", 1))))
    ended = await go(world.scheduler, lease, tuned, _E.SUCCEEDED, at=AT + 20)
    assert ended.state is _S.SUCCEEDED
    await go(world.scheduler, lease, another, _E.PLACED, at=AT + 21, placement=placement(("node-1", 1)))


async def test_only_a_job_that_runs_in_that_epoch_and_pool_can_be_asked_to_be_tuned(world: World) -> None:
    lease = await world.lead()
    (waiting,) = await world.admitted(lease, "j-0")
    assert not await world.reallocator.ask_tune(envelope(waiting.id), TUNE, at=AT)
    job = await running_job(world, lease, "j-1")
    assert not await world.reallocator.ask_tune(envelope("j-9"), TUNE, at=AT)
    assert not await world.reallocator.ask_tune(envelope("j-1", epoch=1), TUNE, at=AT)
    assert not await world.reallocator.ask_tune(envelope("j-1", pool="other"), TUNE, at=AT)
    await go(world.scheduler, lease, job, _E.STOPPING, at=AT + 4)
    assert not await world.reallocator.ask_tune(envelope("j-1"), TUNE, at=AT)
    assert await world.scheduler.asks(pool="default", limit=10) == []
    assert await world.reallocator.envelopes(pool="default") == []


async def test_what_a_tuner_knows_is_remembered_until_its_job_is_over(world: World) -> None:
    lease = await world.lead()
    job = await running_job(world, lease, "j-1")
    await running_job(world, lease, "j-2", gpu=2)
    await world.reallocator.save_envelope(envelope("j-2"), at=AT)
    await world.reallocator.save_envelope(envelope("j-1"), at=AT)
    await world.reallocator.save_envelope(envelope("j-1", epoch=3, state=b'{"best": 1.5}'), at=AT + 1)
    first, second = await world.reallocator.envelopes(pool="default")
    assert (first.job_id, first.epoch, json.loads(first.state)) == ("j-1", 3, {"best": 1.5})
    assert second.job_id == "j-2"
    assert await world.reallocator.envelopes(pool="other") == []
    assert await world.reallocator.drop_envelopes(pool="default") == 0
    await go(world.scheduler, lease, job, _E.SUCCEEDED, at=AT + 20)
    assert [one.job_id for one in await world.reallocator.envelopes(pool="default")] == ["j-2"]
    assert await world.reallocator.drop_envelopes(pool="other") == 0
    assert await world.reallocator.drop_envelopes(pool="default") == 1
    assert await world.reallocator.drop_envelopes(pool="default") == 0


async def test_the_surest_slowdown_of_two_classes_wins_until_it_is_old(world: World) -> None:
    def slowdown(value: float, confidence: float, *, at: float = AT, beside: str = "memory") -> PairSlowdown:
        return PairSlowdown(
            job_class="compute", beside=beside, slowdown=value, confidence=confidence, workloads=3, at=at
        )

    sure, other = slowdown(1.25, 0.8), slowdown(1.0, 0.5, beside="compute")
    await world.scorer.save_slowdowns([sure, other])
    await world.scorer.save_slowdowns([])
    await world.scorer.save_slowdowns([slowdown(2.0, 0.5, at=AT + 3600)])
    assert await world.scheduler.slowdowns() == [other, sure]
    await world.scorer.save_slowdowns([slowdown(2.0, 0.9, at=AT - 1)])
    assert (await world.scorer.slowdowns())[1] == sure, "it is older"
    later = slowdown(1.5, 0.45, at=AT + 86_400)
    await world.scorer.save_slowdowns([later])
    assert await world.scheduler.slowdowns() == [other, later]
    assert await world.scorer.forget_slowdowns(before=AT + 1) == 1
    assert await world.scheduler.slowdowns() == [later]


async def test_penalties_are_kept_by_pool_and_workload_and_read_without_their_points(world: World) -> None:
    def penalty(workload: str, value: float, *, at: float = AT, confidence: float = 0.8) -> WorkloadPenalty:
        points = (GangPoint(alike="4", spread=1.0, seconds=value, windows=3, at=at),)
        return WorkloadPenalty(workload=workload, penalty=value, confidence=confidence, points=points, at=at)

    def bare(one: WorkloadPenalty) -> WorkloadPenalty:
        return structs.replace(one, points=())

    one, other = penalty("b", 2.5), penalty("a", 1.1, at=AT + 1)
    await world.scorer.save_penalties([one, other, penalty("c", 1.7, confidence=0.0)], pool="default")
    await world.scorer.save_penalties([], pool="default")
    await world.scorer.save_penalties([penalty("b", 3.0, at=AT - 1)], pool="default")
    assert await world.scheduler.penalties(pool="default") == [bare(one), bare(other)]
    assert await world.scheduler.penalties(pool="default", since=AT + 1) == [bare(other)]
    assert await world.gateway.penalties(pool="elsewhere") == []
    assert await world.scorer.penalties_of(pool="default", workloads=["b", "z"]) == [one]
    later = penalty("b", 3.0, at=AT + 2)
    await world.scorer.save_penalties([later], pool="default")
    assert await world.gateway.penalties(pool="default") == [bare(other), bare(later)]
    assert await world.scorer.forget_penalties(before=AT + 2) == 2
    assert await world.scheduler.penalties(pool="default") == [bare(later)]


# what restarts cost


async def test_the_newest_cost_of_a_restart_wins_and_each_restart_is_counted_once(world: World) -> None:
    def cost(workload: str, seconds: float, *, at: float = AT, measured: int = 1) -> RestartCost:
        return RestartCost(workload=workload, seconds=seconds, at=at, measured=measured)

    store = world.reallocator
    await store.save_restart_costs([], pool="default")
    least, most = cost("b", 0.0, at=AT + 0.25), cost("é" * 253, RESTART_SECONDS_MAX, at=AT + 1, measured=2**40)
    await store.save_restart_costs([most, cost("a", 12.5), least], pool="default")
    await store.save_restart_costs([cost("a", 99.0)], pool="other")
    assert await store.restart_costs(pool="default", limit=9) == [most, least, cost("a", 12.5)]
    await store.save_restart_costs([cost("a", 12.5), cost("b", 1.0)], pool="default")
    assert await store.restart_costs(pool="default", limit=2) == [most, least], "both are known already"
    await store.save_restart_costs([cost("a", 7.0, at=AT + 2, measured=3)], pool="default")
    assert (await store.restart_costs(pool="default", limit=1)) == [cost("a", 7.0, at=AT + 2, measured=4)]
    assert await store.restart_costs(pool="other", limit=9) == [cost("a", 99.0)]


async def test_costs_of_restarts_are_forgotten_by_age_and_beyond_so_many(world: World) -> None:
    store = world.reallocator
    costs = [RestartCost(workload=f"w-{number}", seconds=1.0, at=AT + number) for number in range(5)]
    for pool in ("default", "other"):
        await store.save_restart_costs(costs, pool=pool)
    assert await store.forget_restart_costs(pool="default", before=AT, keep=5) == 0
    assert await store.forget_restart_costs(pool="default", before=AT + 1, keep=3) == 2
    assert await store.restart_costs(pool="default", limit=9) == costs[:1:-1]
    assert await store.forget_restart_costs(pool="default", before=AT + 9, keep=9) == 3
    assert len(await store.restart_costs(pool="other", limit=9)) == 5


async def test_no_size_is_asked_for_a_job_that_is_over(world: World) -> None:
    lease = await world.lead()
    job = await running_job(world, lease, "j-1")
    assert await world.reallocator.ask_sizes({"j-1": SCALE}, pool="other", at=AT + 10) == []
    await go(world.scheduler, lease, job, _E.SUCCEEDED, at=AT + 11)
    assert await world.reallocator.ask_sizes({"j-1": SCALE}, pool="default", at=AT + 12) == []
    assert await world.scheduler.asks(pool="default", limit=10) == []
