"""The partition planner in the reallocator: when it plans, of what, and which sizes it asks for."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from tests.support.builders import GIB, job, node
from tests.support.doubles.bus import MemoryBus
from tests.support.doubles.store import MemoryStore
from weft.domain.classes import workload_of
from weft.domain.health import HealthRecord, HealthState
from weft.domain.job import Allocation, CauseCode, Job, JobState, Loan, Placement
from weft.domain.quotas import ALL, Quota
from weft.domain.shares import WHOLE
from weft.domain.sizes import RESTART_SECONDS_MAX, RestartCost
from weft.domain.spec import TuningMode
from weft.messages.nodes import ProgressSeen, RunProgressed
from weft.messages.signals import Curve, CurvePoint, GpuScore
from weft.planning.locality import Locality
from weft.planning.partition import Change, ElasticJob, Partition, Rules, Server
from weft.planning.partition.weft import weft
from weft.store import StoreUnavailableError
from weftd.reallocator.settings import ReallocatorSettings
from weftd.reallocator.sizes import COSTS_KEPT_SECONDS, RECALL_SECONDS, Sizes
from weftd.reallocator.thinking.kinds import Kinds, speeds_of
from weftd.reallocator.thinking.partitioning import RESTARTS_KEPT, Plans, SizePlanner, without

NOW = 10_000.0
ON = Plans(mode=TuningMode.ON)


def elastic(job_id: str, *, has: int = 0, least: int = 1, want: int = 2, most: int = 4, **fields: Any) -> Job:
    spec = {"role": {"replicas": {"min": least, "want": want, "max": most}}, "resize": {"how": "live"}}
    spec |= fields.pop("spec", {})
    held = tuple(
        Allocation(rank=rank, role="worker", node_id="node-1", gpus=(rank,), cpus=1.0, memory=GIB, extra=rank >= least)
        for rank in range(has)
    )
    if has:
        fields = {
            "state": JobState.RUNNING,
            "placement": Placement(allocations=held),
            "placed_at": 0.0,
            "started_at": 0.0,
            "size": {"worker": has},
            **fields,
        }
    return job(job_id, spec=spec, **fields)


def plan(holding: list[Job], queued: list[Job], *, gpus: int = 8, plans: Plans = ON) -> dict[str, dict[str, int]]:
    planned = SizePlanner(plans, weft).plan(holding=holding, queued=queued, nodes=[node(gpus=gpus)], curves={}, now=NOW)
    return {job_id: scale.size for job_id, scale in planned.sizes.items()}


def test_a_plan_keeps_a_job_from_no_gpu_that_comes_free_unless_another_is_to_have_it() -> None:
    rigid = elastic("j-0", has=2, least=2, want=2, most=2)
    alone = replace(elastic("j-1", has=2, want=4), size={})
    assert (alone.wanted, alone.granted) == ({"worker": 4}, {"worker": 2})
    assert plan([rigid, alone], [], gpus=4) == {}
    assert plan([alone], [elastic("j-2", least=2, want=4)], gpus=4)["j-1"] == {"worker": 2}


def test_no_job_grows_onto_gpus_that_are_out_of_use() -> None:
    sick = tuple(HealthRecord(gpu=gpu, state=HealthState.QUARANTINED) for gpu in (0, 3))
    there = replace(node(gpus=4), health=sick)  # the job runs on in spite of the sign on GPU 0
    planned = SizePlanner(ON, weft).plan(holding=[elastic("j-1", has=2)], queued=[], nodes=[there], curves={}, now=NOW)
    assert planned.sizes["j-1"].size == {"worker": 3}
    out = replace(node(gpus=4), health=(HealthRecord(state=HealthState.QUARANTINED),))
    planned = SizePlanner(ON, weft).plan(holding=[elastic("j-1", has=2)], queued=[], nodes=[out], curves={}, now=NOW)
    assert planned.sizes == {}


def test_a_job_alone_grows_into_free_gpus_and_says_what_it_gains() -> None:
    planned = SizePlanner(ON, weft).plan(
        holding=[elastic("j-1", has=2)], queued=[], nodes=[node(gpus=8)], curves={}, now=NOW
    )
    scale = planned.sizes["j-1"]
    assert (scale.size, scale.epoch) == ({"worker": 4}, 0)
    assert scale.cause is not None
    assert scale.cause.code is CauseCode.PARTITIONED
    assert scale.cause.sentence.startswith("worker 2 → 4, by the partition planner: +")
    assert [finding.code for finding in planned.findings] == ["partition"]


def test_a_job_gives_gpus_back_to_one_that_waits() -> None:
    sizes = plan([elastic("j-1", has=4)], [elastic("j-2", least=2, want=4, spec={}, since=0.0)], gpus=4)
    assert sizes["j-1"] == {"worker": 2}
    assert sizes["j-2"] == {"worker": 2}


def test_what_rigid_jobs_hold_is_not_given_away() -> None:
    rigid = job(
        "j-0",
        gpus=1,
        state=JobState.RUNNING,
        placement=Placement(
            allocations=tuple(
                Allocation(rank=rank, role="worker", node_id="node-1", gpus=(7 - rank,), cpus=1.0, memory=GIB)
                for rank in range(5)
            )
        ),
    )
    assert plan([rigid, elastic("j-1", has=2)], [], gpus=8) == {"j-1": {"worker": 3}}


def test_a_job_does_not_grow_onto_gpus_so_slow_that_all_of_it_would_wait_for_them() -> None:
    def planned(slow: float) -> dict[str, dict[str, int]]:
        scores = [
            GpuScore(node_id="node-1", gpu_index=gpu, job_class="compute", score=1.0 if gpu < 2 else slow)
            for gpu in range(4)
        ]
        found = SizePlanner(ON, weft).plan(
            holding=[elastic("j-1", has=2)], queued=[], nodes=[node(gpus=4)], curves={}, now=NOW, scores=scores
        )
        return {job_id: scale.size for job_id, scale in found.sizes.items()}

    assert planned(1.01) == {"j-1": {"worker": 4}}
    assert planned(3.0) == {}


def test_a_pool_left_at_its_defaults_plans_sizes() -> None:
    assert ReallocatorSettings().plans.mode is TuningMode.ON


def test_a_waiting_job_that_keeps_the_size_with_which_it_starts_is_given_none() -> None:
    """A smaller one would be its size for as long as it runs."""
    never = {"resize": {"how": "never"}}
    holding = [elastic("j-1", has=4)]
    assert plan(holding, [elastic("j-2", want=4, since=0.0)], gpus=4)["j-2"] == {"worker": 2}
    sizes = plan(holding, [elastic("j-2", want=4, spec=never, since=0.0)], gpus=4)
    assert sizes == {"j-1": {"worker": 2}}, "room is made for it all the same"


@pytest.mark.parametrize(
    "fields",
    [
        {"sized_at": NOW - 60.0},
        {"spec": {"resize": {"how": "never"}}},
        {"state": JobState.STARTING},
    ],
)
def test_a_job_in_its_cool_down_or_that_cannot_resize_keeps_its_size(fields: dict[str, Any]) -> None:
    assert plan([elastic("j-1", has=2, **fields)], []) == {}


def test_a_job_that_restarts_does_so_again_soon_only_for_a_gain_that_is_large_beside_the_restart() -> None:
    def planned(gain: float, *, sized_s_ago: float) -> dict[str, dict[str, int]]:
        spec = {"resize": {"how": "restart"}, "checkpoints": {"on_stop": True}}
        points = tuple(
            CurvePoint(replicas=count, cpus=float(count), speed=1.0 + gain * (count - 2) / 2, windows=99, at=NOW)
            for count in (1, 2, 3, 4)
        )
        curves = {"job:j-1": Curve(subject="job:j-1", pool="default", points=points)}
        job = elastic("j-1", has=2, spec=spec, sized_at=NOW - sized_s_ago)
        found = SizePlanner(ON, weft).plan(holding=[job], queued=[], nodes=[node(gpus=4)], curves=curves, now=NOW)
        return {job_id: scale.size for job_id, scale in found.sizes.items()}

    ten_restarts, grown = 600.0, {"j-1": {"worker": 4}}
    assert planned(0.5, sized_s_ago=30.0) == grown, "the other GPUs are idle"
    assert planned(0.03, sized_s_ago=ten_restarts - 1.0) == {}
    assert planned(0.03, sized_s_ago=ten_restarts) == grown


def test_jobs_on_a_drained_node_are_left_as_they_are() -> None:
    drained = node(gpus=8, drained=True)
    planned = SizePlanner(ON, weft).plan(
        holding=[elastic("j-1", has=2)], queued=[], nodes=[drained, node("node-2")], curves={}, now=NOW
    )
    assert planned.sizes == {}


def test_it_plans_once_a_minute() -> None:
    partitioning = SizePlanner(ON, weft)
    assert partitioning.due(NOW)
    partitioning.plan(holding=[elastic("j-1", has=2)], queued=[], nodes=[node()], curves={}, now=NOW)
    assert not partitioning.due(NOW + 59)
    assert partitioning.due(NOW + 60)
    assert not SizePlanner(Plans(mode=TuningMode.OFF), weft).due(NOW)


def test_growth_counts_as_far_as_it_is_sure() -> None:
    running = elastic("j-1", has=2)
    unknown = speeds_of(running, "worker", {})
    assert unknown[1] == 1.0
    assert unknown[3] == pytest.approx(2**0.5)
    points = tuple(
        CurvePoint(replicas=count, cpus=float(count), speed=10.0 * count, spread=0.01, windows=50, at=NOW)
        for count in (1, 2, 4)
    )
    curve = Curve(subject="job:j-1", pool="default", points=points, at=NOW)
    assert 1.8 < speeds_of(running, "worker", {"job:j-1": curve})[3] <= 2.0
    flat = replace(curve, points=tuple(replace(point, speed=10.0) for point in points))
    assert speeds_of(running, "worker", {"job:j-1": flat})[3] == pytest.approx(1.0)


def test_a_size_that_no_node_holds_is_slower_by_the_penalty_of_its_workload_unless_it_was_measured() -> None:
    running, nodes = elastic("j-1", has=2), [node(gpus=2), node("node-2", gpus=2)]

    def speeds(penalty: float, curves: dict[str, Curve]) -> tuple[float, ...]:
        locality = Locality(by_workload={workload_of(running.spec): penalty})
        (found,) = Kinds(nodes, curves, [running], locality).speeds(running, "worker", here="Emulated GPU").values()
        return found

    free, costly = speeds(1.0, {}), speeds(3.0, {})
    (unknown,) = Kinds(nodes, {}, [running]).speeds(running, "worker", here="Emulated GPU").values()
    assert unknown == free, "nothing keeps a workload that has shown nothing from idle GPUs"
    assert costly[:2] == free[:2], "both fit one node"
    assert costly[3] == pytest.approx(free[3] / 3.0)
    points = tuple(
        CurvePoint(replicas=count, cpus=float(count), speed=10.0 * count, windows=5000, at=NOW) for count in (1, 2, 4)
    )
    curves = {"job:j-1": Curve(subject="job:j-1", pool="default", points=points, at=NOW)}
    assert speeds(3.0, curves)[3] == pytest.approx(speeds(1.0, curves)[3], rel=0.02), "it is in what was measured"


def test_the_cost_of_a_restart_is_measured_and_used() -> None:
    seen: list[ElasticJob] = []

    def keep(jobs: list[ElasticJob], servers: list[Server], rules: Rules) -> Partition:
        seen.extend(jobs)
        return Partition(sizes={each.job_id: each.now for each in jobs})

    spec = {"resize": {}, "checkpoints": {"on_stop": True}}
    partitioning = SizePlanner(ON, keep)  # type: ignore[arg-type]
    running = elastic("j-1", has=2, spec=spec)
    partitioning.plan(holding=[running], queued=[], nodes=[node()], curves={}, now=NOW)
    assert seen[-1].restart_s == 60.0  # half a minute and its grace
    assert running.placement is not None
    stopping = elastic("j-1", has=2, spec=spec, state=JobState.STOPPING, next_placement=running.placement, since=NOW)
    partitioning.watch([stopping])
    partitioning.watch([elastic("j-1", has=2, spec=spec, epoch=1, started_at=NOW + 12.5)])
    partitioning.plan(holding=[running], queued=[], nodes=[node()], curves={}, now=NOW)
    assert seen[-1].restart_s == 12.5


BY_RESTART = {"resize": {}, "checkpoints": {"on_stop": True}}
UNKNOWN = 60.0  # half a minute and its grace


def restarting(job_id: str = "j-1", *, since: float = NOW, epoch: int = 0, workload: str = "w") -> Job:
    spec = {**BY_RESTART, "labels": {"weft/workload": workload}}
    running = elastic(job_id, has=2, spec=spec)
    fields: dict[str, Any] = {"next_placement": running.placement, "since": since, "epoch": epoch}
    return elastic(job_id, has=2, spec=spec, state=JobState.STOPPING, **fields)


def began(job: Job, at: float, *, epoch: int = 1, state: JobState = JobState.RUNNING) -> Job:
    started_at = at if state is JobState.RUNNING else None
    return replace(job, state=state, next_placement=None, since=at, epoch=epoch, started_at=started_at)


def test_what_a_restart_was_measured_to_cost_is_to_be_stored_once() -> None:
    partitioning = SizePlanner(ON, weft)
    one, two = restarting(), restarting("j-2", since=NOW + 1.0)
    partitioning.watch([one, two])
    partitioning.watch([began(one, NOW + 5.0, state=JobState.STARTING), two])
    assert partitioning.unsaved == ()
    partitioning.watch([began(one, NOW + 12.5), began(two, NOW + 9.0)])
    both = RestartCost(workload="w", seconds=12.5, at=NOW + 12.5, measured=2)
    assert partitioning.unsaved == (both,)
    partitioning.watch([began(one, NOW + 12.5), began(two, NOW + 9.0)])
    assert partitioning.unsaved == (both,), "they are the same restarts"
    partitioning.saved([replace(both, measured=1)])
    assert partitioning.unsaved == (both,), "another was stored"
    partitioning.saved([both])
    assert partitioning.unsaved == ()
    assert partitioning.restart_cost(one) == 12.5


def test_a_recalled_cost_is_used_and_the_newer_one_wins() -> None:
    partitioning, one = SizePlanner(ON, weft), restarting()
    assert partitioning.restart_cost(one) == UNKNOWN
    partitioning.recall(
        [RestartCost(workload="w", seconds=7.0, at=NOW), RestartCost(workload="x", seconds=9.0, at=NOW)]
    )
    assert partitioning.restart_cost(one) == 7.0
    assert partitioning.unsaved == ()
    partitioning.recall([RestartCost(workload="w", seconds=8.0, at=NOW - 1.0)])
    assert partitioning.restart_cost(one) == 7.0
    partitioning.watch([one])
    partitioning.watch([began(one, NOW + 4.0)])
    assert partitioning.restart_cost(one) == 4.0
    partitioning.recall([RestartCost(workload="w", seconds=5.0, at=NOW + 9.0)])
    assert partitioning.restart_cost(one) == 5.0
    assert partitioning.restart_cost(restarting(workload="never-seen")) == UNKNOWN


def test_no_cost_is_below_nothing_or_above_a_day() -> None:
    for at, seconds in ((NOW - 5.0, 0.0), (NOW + 1e9, RESTART_SECONDS_MAX), (float("inf"), RESTART_SECONDS_MAX)):
        partitioning, one = SizePlanner(ON, weft), restarting()
        partitioning.watch([one])
        partitioning.watch([began(one, at)])
        assert [cost.seconds for cost in partitioning.unsaved] == [seconds]


def heard(
    partitioning: SizePlanner, at: float, *, epoch: int = 1, read_at: float | None = None, **progress: float
) -> None:
    run = RunProgressed(job_id="j-1", epoch=epoch, rank=0, progress=progress, at=at if read_at is None else read_at)
    partitioning.hear(ProgressSeen(node_id="n-1", runs=(run,)), now=at)


def test_a_restart_of_a_job_that_reports_steps_lasts_until_its_first_step() -> None:
    partitioning, one = SizePlanner(ON, weft), replace(restarting(), progress={"step": 100.0})
    heard(partitioning, NOW - 1.0, epoch=0, step=99.0)
    partitioning.watch([one])
    heard(partitioning, NOW + 1.0, epoch=0, step=100.0)  # what it still did before it stopped
    partitioning.watch([began(one, NOW + 5.0)])
    heard(partitioning, NOW + 9.0, loss=0.5)
    partitioning.watch([began(one, NOW + 5.0)])
    assert partitioning.unsaved == (), "it runs, and loads its checkpoint"
    heard(partitioning, NOW + 47.5, read_at=NOW + 47.0, step=101.0)
    heard(partitioning, NOW + 48.0, step=102.0)
    partitioning.watch([began(one, NOW + 5.0)])
    assert partitioning.unsaved == (RestartCost(workload="w", seconds=47.0, at=NOW + 47.0),)
    heard(partitioning, NOW + 60.0, step=110.0)
    partitioning.watch([began(one, NOW + 5.0)])
    assert [cost.measured for cost in partitioning.unsaved] == [1]


def test_a_job_that_stops_again_before_its_first_step_is_measured_from_its_second_stop() -> None:
    partitioning, one = SizePlanner(ON, weft), replace(restarting(), progress={"step": 100.0})
    partitioning.watch([one])
    partitioning.watch([began(one, NOW + 5.0)])
    partitioning.watch([replace(one, since=NOW + 20.0, epoch=1)])
    heard(partitioning, NOW + 21.0, epoch=1, step=101.0)
    partitioning.watch([began(one, NOW + 25.0, epoch=2)])
    assert partitioning.unsaved == ()
    heard(partitioning, NOW + 30.0, epoch=2, step=101.0)
    partitioning.watch([began(one, NOW + 25.0, epoch=2)])
    assert [cost.seconds for cost in partitioning.unsaved] == [10.0]


@pytest.mark.parametrize(
    ("read_at", "seconds"), [(0.0, 30.0), (NOW + 1e9, 30.0), (NOW - 1e6, 5.0)], ids=["none", "ahead", "behind"]
)
def test_a_node_with_a_wrong_clock_makes_a_restart_no_shorter_than_its_start_and_no_longer_than_it_was(
    read_at: float, seconds: float
) -> None:
    partitioning, one = SizePlanner(ON, weft), replace(restarting(), progress={"step": 100.0})
    partitioning.watch([one])
    heard(partitioning, NOW + 30.0, read_at=read_at, step=1.0)
    partitioning.watch([began(one, NOW + 5.0)])
    assert [cost.seconds for cost in partitioning.unsaved] == [seconds]


def test_the_wait_in_the_queue_of_a_job_that_lost_its_place_is_no_cost_of_a_restart() -> None:
    partitioning, one = SizePlanner(ON, weft), restarting()
    partitioning.watch([one])
    partitioning.watch([])  # a node of its next place was lost: it waits
    partitioning.watch([began(one, NOW + 5000.0)])
    partitioning.watch([one])
    partitioning.watch([began(one, NOW + 5000.0, epoch=2)])
    assert partitioning.unsaved == ()
    assert partitioning.restart_cost(one) == UNKNOWN


def test_costs_are_known_of_so_many_workloads_and_the_oldest_go_first() -> None:
    partitioning = SizePlanner(ON, weft)
    many = [restarting(f"j-{n}", workload=f"w-{n}") for n in range(RESTARTS_KEPT + 2)]
    partitioning.watch(many)
    partitioning.watch([began(one, NOW + 1.0 + n) for n, one in enumerate(many)])
    assert len(partitioning.unsaved) == RESTARTS_KEPT
    assert [partitioning.restart_cost(one) for one in many[:3]] == [UNKNOWN, UNKNOWN, 3.0]
    partitioning.recall([RestartCost(workload="old", seconds=1.0, at=0.0)])
    assert partitioning.restart_cost(restarting(workload="old")) == UNKNOWN
    partitioning.recall([RestartCost(workload="new", seconds=1.0, at=2 * NOW)])
    assert [partitioning.restart_cost(one) for one in many[2:4]] == [UNKNOWN, 4.0]


def sizes(partitioning: SizePlanner, store: MemoryStore, pool: str = "default") -> Sizes:
    registry = CollectorRegistry()
    return Sizes(
        partitioning,
        pool=pool,
        mode=TuningMode.OFF,
        bus=MemoryBus(),
        store=store,
        registry=registry,
        decided_about=list,
    )


async def test_a_reallocator_that_starts_and_a_second_one_know_what_another_measured() -> None:
    store, one = MemoryStore(), restarting()
    first, second, later = SizePlanner(ON, weft), SizePlanner(ON, weft), SizePlanner(ON, weft)
    measures, reads = sizes(first, store), sizes(second, store)
    await measures.review([one], [], NOW)
    await reads.review([], [], NOW)
    again = began(one, NOW + 12.5)
    await measures.review([again], [], NOW + 15.0)
    assert first.unsaved == ()
    await reads.review([again], [], NOW + RECALL_SECONDS - 1.0)
    assert second.restart_cost(one) == UNKNOWN
    await reads.review([again], [], NOW + RECALL_SECONDS)
    await sizes(later, store).review([again], [], NOW + 20.0)
    assert second.restart_cost(one) == later.restart_cost(one) == 12.5
    elsewhere = SizePlanner(ON, weft)
    await sizes(elsewhere, store, "other").review([], [], NOW + 20.0)
    assert elsewhere.restart_cost(one) == UNKNOWN


async def test_two_reallocators_that_see_one_restart_count_it_once() -> None:
    store, one = MemoryStore(), restarting()
    for each in (sizes(SizePlanner(ON, weft), store), sizes(SizePlanner(ON, weft), store)):
        await each.review([one], [], NOW)
        await each.review([began(one, NOW + 3.0)], [], NOW + 5.0)
    assert await store.restart_costs(pool="default", limit=10) == [RestartCost(workload="w", seconds=3.0, at=NOW + 3.0)]


async def test_a_cost_that_no_store_could_take_is_stored_later() -> None:
    class Failing(MemoryStore):
        fails = True

        async def save_restart_costs(self, costs: Sequence[RestartCost], *, pool: str) -> None:
            if self.fails:
                raise StoreUnavailableError("gone")
            await super().save_restart_costs(costs, pool=pool)

    store, one = Failing(), restarting()
    measures = sizes(SizePlanner(ON, weft), store)
    await measures.review([one], [], NOW)
    with pytest.raises(StoreUnavailableError):
        await measures.review([began(one, NOW + 3.0)], [], NOW + 5.0)
    store.fails = False
    await measures.review([], [], NOW + 6.0)
    assert [cost.measured for cost in await store.restart_costs(pool="default", limit=10)] == [1]


async def test_costs_of_long_ago_are_deleted() -> None:
    store = MemoryStore()
    costs = [RestartCost(workload=f"w-{at}", seconds=1.0, at=float(at)) for at in (0, 1)]
    await store.save_restart_costs(costs, pool="default")
    await sizes(SizePlanner(ON, weft), store).clean(COSTS_KEPT_SECONDS + 1.0)
    assert await store.restart_costs(pool="default", limit=10) == costs[1:]


def test_what_a_change_costs_stands_in_its_sentence() -> None:
    def grow(jobs: list[ElasticJob], servers: list[Server], rules: Rules) -> Partition:
        change = Change(job_id="j-1", was=2, becomes=4, gain=0.38, cost_s=90.0)
        return Partition(sizes={"j-1": 4}, changes=(change,))

    spec = {"resize": {}, "checkpoints": {"on_stop": True}}
    planned = SizePlanner(ON, grow).plan(  # type: ignore[arg-type]
        holding=[elastic("j-1", has=2, spec=spec)], queued=[], nodes=[node()], curves={}, now=NOW
    )
    cause = planned.sizes["j-1"].cause
    assert cause is not None
    assert cause.sentence == (
        "worker 2 → 4, by the partition planner: +38% of its speed at its fair share, for 1m30s without progress"
    )
    assert cause.numbers == {"was": 2.0, "becomes": 4.0, "gain": 0.38, "cost_seconds": 90.0}


@pytest.mark.parametrize(
    ("fields", "named"),
    [({"partition_minutes": 5.0}, "partition_minutes")],
)
def test_a_setting_that_does_not_exist_is_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(TypeError, match=named):
        ReallocatorSettings(**fields)


def service(job_id: str, *, has: int, wants: int, **fields: Any) -> Job:
    held = tuple(
        Allocation(rank=rank, role="worker", node_id="node-1", gpus=(7 - rank,), cpus=1.0, memory=GIB, extra=True)
        for rank in range(has)
    )
    spec = {"kind": "inference", "service": {"port": 8080}, "role": {"replicas": {"min": 0, "want": 1, "max": 8}}}
    state = JobState.RUNNING if has else JobState.QUEUED
    placement = Placement(allocations=held) if has else None
    return job(job_id, spec=spec, state=state, placement=placement, size={"worker": wants}, **fields)


def test_a_service_is_never_given_a_size_and_what_it_has_and_wants_is_not_divided() -> None:
    assert plan([service("j-0", has=2, wants=2), elastic("j-1", has=2)], [], gpus=5) == {"j-1": {"worker": 3}}
    assert plan([service("j-0", has=2, wants=4), elastic("j-1", has=4)], [], gpus=6) == {"j-1": {"worker": 2}}
    assert plan([elastic("j-1", has=2)], [service("j-0", has=0, wants=3)], gpus=6) == {"j-1": {"worker": 3}}
    assert plan([elastic("j-1", has=2)], [service("j-0", has=0, wants=0)], gpus=8) == {"j-1": {"worker": 4}}


def test_what_a_job_lent_to_a_service_stays_a_part_of_its_size() -> None:
    loans = tuple(Loan(lender="j-1", rank=rank, gpus=1.0, ranks=1) for rank in (1, 2))
    borrower, lender = service("j-0", has=3, wants=3, loans=loans), elastic("j-1", has=2, size={"worker": 4})
    assert plan([borrower, lender], [], gpus=5) == {}
    assert plan([replace(borrower, loans=loans[:1]), lender], [], gpus=5) == {"j-1": {"worker": 3}}
    assert plan([replace(borrower, loans=()), lender], [], gpus=5) == {}, "it may grow into what comes free"
    waits = elastic("j-2", least=1, want=1, most=1, spec={})
    assert plan([borrower, lender], [waits], gpus=5)["j-1"] == {"worker": 1}, "it should give up a rank more"


def test_replicas_that_fit_nowhere_take_nothing_off() -> None:
    servers = [Server(id="n1", amounts=(2.0, 8.0, 8.0)), Server(id="n2", amounts=(4.0, 8.0, 8.0), bins=((1.0, 4),))]
    assert without(servers, [(5.0, 1.0, 1.0)]) == servers
    n1, n2 = without(servers, [(3.0, 1.0, 1.0), (0.5, 1.0, 1.0), (2.0, 9.0, 1.0)])
    assert (n1.amounts, n2.amounts, n2.bins) == ((1.5, 7.0, 7.0), (1.0, 7.0, 7.0), ((1.0, 1),))


def plan_under(*quotas: Quota, holding: list[Job], gpus: int = 8) -> dict[str, dict[str, int]]:
    planned = SizePlanner(ON, weft).plan(
        holding=holding, queued=[], nodes=[node(gpus=gpus)], curves={}, now=NOW, quotas=quotas
    )
    return {job_id: scale.size for job_id, scale in planned.sizes.items()}


def test_a_tenant_grows_as_far_as_its_limit_with_all_its_jobs_together() -> None:
    mine = elastic("j-1", has=2)
    assert plan_under(holding=[mine]) == {"j-1": {"worker": 4}}
    assert plan_under(Quota(name=mine.tenant, limit={ALL: 3 * WHOLE}), holding=[mine]) == {"j-1": {"worker": 3}}
    assert plan_under(Quota(name=mine.tenant, limit={ALL: WHOLE}), holding=[mine]) == {}
    other = shifted(elastic("j-2", has=1, most=4), 2)
    sizes = plan_under(Quota(name=mine.tenant, limit={ALL: 5 * WHOLE}), holding=[mine, other])
    granted = {"j-1": 2, "j-2": 1} | {job_id: size["worker"] for job_id, size in sizes.items()}
    assert sum(granted.values()) == 5


def test_what_a_tenant_is_due_by_its_quota_weighs_in_the_fair_share_of_its_jobs() -> None:
    seen: list[ElasticJob] = []

    def look(jobs: Sequence[ElasticJob], servers: Sequence[Server], rules: Rules) -> Partition:
        seen[:] = jobs
        return Partition(sizes={}, on={})

    jobs = [elastic("j-1", has=1, tenant="a"), elastic("j-2", has=1, tenant="b"), elastic("j-3", has=1, tenant="b")]
    quotas = [Quota(name="a", guaranteed={ALL: 4 * WHOLE}, weight=3), Quota(name="b")]
    SizePlanner(ON, look).plan(holding=jobs, queued=[], nodes=[node(gpus=8)], curves={}, now=NOW)
    assert [one.weight for one in seen] == [1.0, 1.0, 1.0]
    SizePlanner(ON, look).plan(holding=jobs, queued=[], nodes=[node(gpus=8)], curves={}, now=NOW, quotas=quotas)
    assert [round(one.weight * 8 / 3, 9) for one in seen] == [7.0, 0.5, 0.5]  # GPUs that each is due


def shifted(one: Job, by: int) -> Job:
    """The same on other GPUs of its node."""
    assert one.placement is not None
    held = tuple(replace(each, gpus=tuple(gpu + by for gpu in each.gpus)) for each in one.placement.allocations)
    return replace(one, placement=Placement(allocations=held))


def test_what_may_not_be_preempted_is_not_planned_beyond_its_guarantee_nor_a_job_beyond_the_limit_of_its_model() -> (
    None
):
    keeps = elastic("j-1", has=2, spec={"preemptible": False})
    guaranteed = Quota(name=keeps.tenant, guaranteed={ALL: 3 * WHOLE})
    assert plan_under(guaranteed, holding=[keeps]) == {"j-1": {"worker": 3}}
    model = node().capacity.gpus[0].model
    named = elastic("j-1", has=2, spec={"gpu_model": model})
    assert plan_under(Quota(name=named.tenant, limit={model: 3 * WHOLE}), holding=[named]) == {"j-1": {"worker": 3}}
