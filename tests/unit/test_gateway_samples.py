"""The history of sampled figures: what it says of each step, and that nothing that is told makes it large."""

import asyncio
import random
import tracemalloc
from collections.abc import Sequence
from math import inf, isnan, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.support.builders import GIB, job, node
from tests.support.steps import placement
from tests.support.tier import examples
from weft.domain.cluster import Node
from weft.domain.job import Job, JobState, Placement
from weft.domain.shares import Share
from weft.messages.nodes import Pace, ProgressSeen, RunProgressed
from weft.messages.signals import GpuSample, HostSample, NodeSampled, RunSample, ShareSample
from weftd.gateway.api.samples import view_of
from weftd.gateway.readmodel.cluster import LiveCluster
from weftd.gateway.readmodel.sampling import (
    CLUSTER,
    GPUS_PER_NODE_MAX,
    JOB_SERIES_MAX,
    NodeTold,
    Samples,
    enter,
)
from weftd.gateway.thinking.accounting.used import UsedLedger
from weftd.gateway.thinking.rings import COARSE_STEPS, FINE_STEPS, Ring, Series, Shelf

MIB = 1 << 20
DAY = 86_400.0
AT = 1_767_225_600.0


def known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None and not isnan(value)]


# rings


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(-1000, 1000)), min_size=1, max_size=60))
def test_a_ring_has_the_mean_of_each_of_its_newest_steps(told: list[tuple[int, int]]) -> None:
    told.sort(key=lambda one: one[0])
    ring = Ring(5, 20)
    for at, value in told:
        ring.put(float(at), float(value))
    last = told[-1][0] // 5
    found = ring.read(last - 19, 20)
    for place, step in enumerate(range(last - 19, last + 1)):
        came = [value for at, value in told if at // 5 == step]
        if came:
            assert found[place] == pytest.approx(sum(came) / len(came), rel=1e-5, abs=1e-4)
        else:
            assert isnan(found[place])
    assert all(isnan(value) for value in ring.read(last + 1, 7))
    assert all(isnan(value) for value in ring.read(last - 100, 80))


@pytest.mark.parametrize("jump", [-1e9, -3600.0, -7.0, 3600.0, 1e9])
def test_a_clock_that_is_set_ends_nothing(jump: float) -> None:
    ring = Ring(5, 20)
    for second in range(200):
        ring.put(AT + second, 1.0)
    for second in range(200):
        ring.put(AT + jump + second, 2.0)
    found = ring.read(int((AT + jump + 199) // 5) - 19, 20)
    assert known(found)[-1] == 2.0
    assert len(known(found)) == 20


def test_a_day_is_read_in_wider_steps_by_their_mean() -> None:
    series = Series()
    for minute in range(2000):
        series.put(AT + 60 * minute, float(minute))
    begins = int(AT) + 60 * 1990
    assert series.read(begins, 2, 300) == [pytest.approx(1992.0), pytest.approx(1997.0)]
    view = view_of({"pace": series}, seconds=86_400, now=AT + 60 * 1999)
    assert (view.step_seconds, len(view.series["pace"])) == (300, 288)
    assert len(known(view_of({"pace": series}, seconds=3600, now=AT + 60 * 1999).series["pace"])) == 60
    assert len(view_of({"pace": series}, seconds=900, now=AT).series["pace"]) == 180


# what is kept has a bound


def fill(shelf: Shelf, subject: str, names: Sequence[str]) -> None:
    """So that every step of these figures is there."""
    for at in (AT, AT + 60 * (COARSE_STEPS - 1) - 5 * (FINE_STEPS - 1), AT + 60 * (COARSE_STEPS - 1)):
        shelf.put(subject, at, dict.fromkeys(names, 1.5))


@pytest.mark.timeout(300)  # memory is traced, which is slow
def test_all_figures_of_1024_gpus_and_as_many_jobs_as_are_kept_take_less_than_64_mib() -> None:
    samples = Samples()
    gpus = [f"gpu.{index}.{what}" for index in range(8) for what in ("used", "memory_used")]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(128):
        fill(samples.nodes, f"node-{number}", ["cpu", "memory", *gpus])
    for number in range(JOB_SERIES_MAX // 3 + 500):
        fill(samples.jobs, f"j-{number}", ["pace", "progress", "replicas"])
    fill(samples.cluster, CLUSTER, ["held", "used", "queued"])
    took = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert 40 * MIB < took <= 64 * MIB, took / MIB  # so many figures are there, and no more
    values = samples.nodes.get("node-0")["gpu.7.used"].read(int(AT), COARSE_STEPS, 60)
    assert (values[0], values[-1]) == (1.5, 1.5)


def test_a_new_subject_takes_the_place_of_the_one_that_was_told_of_longest_ago() -> None:
    shelf = Shelf(4, 2)
    for number in range(4):
        shelf.put(f"j-{number}", AT + number, {"pace": 1.0})
    shelf.put("j-0", AT + 100, {"pace": 1.0})
    shelf.put("j-4", AT + 101, {"pace": 1.0})
    assert sorted(shelf.subjects()) == ["j-0", "j-2", "j-3", "j-4"]


def test_endless_new_subjects_drive_out_none_that_goes_on() -> None:
    shelf = Shelf(100, 3)
    for number in range(50):
        shelf.put(f"mine-{number}", AT, {"pace": 1.0})
    for cycle in range(20):
        for number in range(50):
            shelf.put(f"mine-{number}", AT + 5 * cycle, {"pace": float(cycle)})
        for number in range(1000):
            shelf.put(f"made-up-{cycle}-{number}", AT + 5 * cycle, {"pace": 1.0, "progress": 2.0})
    assert len([name for name in shelf.subjects() if name.startswith("mine")]) == 50
    assert sum(len(shelf.get(name)) for name in shelf.subjects()) <= 100


def test_a_subject_has_no_more_names_than_it_may_have() -> None:
    shelf = Shelf(100, 3)
    for number in range(50):
        shelf.put("j-1", AT, {f"name-{number}": 1.0})
    assert len(shelf.get("j-1")) == 3


@pytest.mark.parametrize("value", [nan, inf, -inf, 1e16, -1e300, None])
def test_what_is_no_figure_is_not_kept(value: float | None) -> None:
    shelf = Shelf(10, 10)
    shelf.put("node-1", AT, {"cpu": value, "memory": 0.5})
    assert set(shelf.get("node-1")) == {"memory"}
    shelf.put("node-2", AT, {"cpu": value})
    assert shelf.subjects() == ["node-1"]


# what is sampled


class Known:
    """The snapshots of a store that has these nodes and jobs."""

    def __init__(self, nodes: list[Node], holding: list[Job], queued: int = 0) -> None:
        self.all, self._holding, self._queued = nodes, holding, queued
        self.nodes = self

    async def aside(self) -> "Known":
        return self

    def pools_of(self, nodes: "Known") -> list[str]:
        return ["default"]

    async def holding(self, pool: str, *, aside: bool) -> list[Job]:
        return self._holding

    async def queued(self, pool: str, *, aside: bool) -> list[Any]:
        return [None] * self._queued


def host(**fields: Any) -> HostSample:
    return HostSample(**{"cpus": 64, "cpus_used": 16.0, "memory_total": 4 * GIB, "memory_used": GIB, **fields})


def told(node_id: str = "node-1", *gpus: GpuSample, runs: tuple[RunSample, ...] = (), **fields: Any) -> NodeSampled:
    return NodeSampled(node_id=node_id, pool="default", at=AT, host=host(**fields), gpus=gpus, runs=runs)


def gpu(index: int, part: float | None) -> GpuSample:
    return GpuSample(index=index, uuid="x", model="Emulated GPU", utilisation=part, memory_used=GIB)


RUNNING = job("j-1", state=JobState.RUNNING, placement=placement(("node-1", 0), ("node-1", 1)))


async def taken(known: Known, *messages: Any) -> tuple[Samples, LiveCluster]:
    live, samples = LiveCluster(clock=lambda: 0.0), Samples()
    for message in messages:
        await (live.hear_sample if isinstance(message, NodeSampled) else live.hear_progress)(message)
    await samples.take(known, live, now=lambda: AT)  # type: ignore[arg-type]
    return samples, live


def now_of(shelf: Shelf, subject: str) -> dict[str, float | None]:
    return {name: of.read(int(AT), 1, 5)[0] for name, of in shelf.get(subject).items()}


async def test_a_rogue_node_fills_nothing_but_its_own_figures() -> None:
    """It names endless jobs and GPUs, and values that are none."""
    drawn = random.Random(1)
    gpus = tuple(gpu(index, drawn.choice([2.0, -1.0, 1e308, None])) for index in range(1024))
    pace = Pace(window_seconds=1, steps=1, steps_rate=1e308, step_seconds=1)
    runs = tuple(
        RunProgressed(job_id=f"j-{number}", epoch=0, rank=0, progress={"step": 1e300}, pace=pace)
        for number in range(5000)
    )
    rogue = told("node-9", *gpus, cpus=0.0, cpus_used=1e308, memory_total=0)
    fair = told("node-1", gpu(0, 0.5), gpu(1, 0.25))
    there = Known([node("node-1", gpus=2), node("node-9", gpus=4)], [RUNNING])
    samples, _ = await taken(there, rogue, ProgressSeen(node_id="node-9", runs=runs), fair)
    assert samples.jobs.subjects() == ["j-1"]
    assert now_of(samples.jobs, "j-1") == {"replicas": 2.0}
    real = {f"gpu.{index}.memory_used": pytest.approx(float(GIB), rel=1e-6) for index in range(4)}
    assert now_of(samples.nodes, "node-9") == real
    assert now_of(samples.cluster, CLUSTER) == {"held": 2.0, "used": 0.75, "queued": 0.0}
    unknown, _ = await taken(Known([node("node-1", gpus=2)], []), rogue)
    assert unknown.nodes.subjects() == []


async def test_a_node_that_says_it_has_endless_gpus_has_figures_of_the_first_ones() -> None:
    there = Known([node("node-9", gpus=1024)], [])
    samples, _ = await taken(there, told("node-9", *(gpu(index, 0.5) for index in range(1024))))
    assert len(samples.nodes.get("node-9")) == 2 + 2 * GPUS_PER_NODE_MAX


async def test_a_job_is_as_far_and_as_fast_as_the_rank_that_is_furthest_behind() -> None:
    def run(rank: int, step: float, rate: float) -> RunProgressed:
        pace = Pace(window_seconds=1, steps=1, steps_rate=rate, step_seconds=1)
        return RunProgressed(job_id="j-1", epoch=0, rank=rank, progress={"step": step}, pace=pace)

    seen = ProgressSeen(node_id="node-1", runs=(run(0, 10, 2.0), run(1, 9, 3.0)))
    samples, _ = await taken(Known([node(gpus=2)], [RUNNING]), seen)
    assert now_of(samples.jobs, "j-1") == {"pace": 2.0, "progress": 9.0, "replicas": 2.0}


async def test_a_job_uses_what_its_ranks_use_together_and_no_word_of_another_node_counts() -> None:
    def run(rank: int, cpus: float | None, memory: int, *, epoch: int = 0) -> RunSample:
        return RunSample(job_id="j-1", epoch=epoch, rank=rank, source="cgroup2", cpus_used=cpus, memory_used=memory)

    mine = told("node-1", runs=(run(0, 1.5, GIB), run(1, 0.5, 2 * GIB), run(0, 9.0, 9, epoch=7), run(5, 9.0, 9)))
    rogue = told("node-9", runs=(run(0, 100.0, 100 * GIB),))
    there = Known([node("node-1", gpus=2), node("node-9", gpus=1)], [RUNNING])
    samples, _ = await taken(there, mine, rogue)
    used = {"cpus_used": 2.0, "memory_used": pytest.approx(3.0 * GIB, rel=1e-6)}
    assert now_of(samples.jobs, "j-1") == {"replicas": 2.0, **used}
    samples, _ = await taken(there, told("node-1", runs=(run(0, None, GIB), run(1, -1.0, GIB))))
    assert now_of(samples.jobs, "j-1") == {"replicas": 2.0, "memory_used": pytest.approx(2.0 * GIB, rel=1e-6)}


async def test_what_the_cluster_uses_is_not_known_while_no_gpu_is_heard_of() -> None:
    both = Known([node(gpus=2)], [RUNNING], queued=3)
    samples, _ = await taken(both, told("node-1", gpu(0, 0.5)))
    assert now_of(samples.cluster, CLUSTER) == {"held": 2.0, "used": 0.5, "queued": 3.0}
    samples, _ = await taken(both)
    assert now_of(samples.cluster, CLUSTER) == {"held": 2.0, "queued": 3.0}


async def test_a_share_counts_what_its_run_used_of_the_gpu() -> None:
    (one, _) = RUNNING.placement.allocations if RUNNING.placement is not None else ()
    shared = structs.replace(one, share=Share(request=250, memory=GIB))
    held = structs.replace(RUNNING, placement=Placement(allocations=(shared,)))
    share = ShareSample(gpu_uuid="x", request=0.25, limit=1.0, used=0.2)
    runs = (RunSample(job_id="j-1", epoch=0, rank=0, source="processes", share=share),)
    sampled = told("node-1", gpu(0, 0.9), runs=runs)
    samples, _ = await taken(Known([node(gpus=2)], [held]), sampled)
    assert now_of(samples.cluster, CLUSTER)["held"] == 0.25
    ledger, seen = UsedLedger(), {"node-1": NodeTold(node("node-1", gpus=2), sampled)}
    enter(ledger, held, seen, at=100.0, lasted=5.0)
    (model,) = {model for _, _, model in ledger._hours}
    known = ledger.of(("j-1", 0, model), 0, 200_000_000)
    assert (known.sampled, known.used) == (250 * 5_000_000, 200 * 5_000_000)


async def test_sampling_a_large_cluster_lets_other_work_go_on() -> None:
    nodes = [node(f"node-{number}", gpus=8) for number in range(1024)]
    live, samples = LiveCluster(clock=lambda: 0.0), Samples()
    for each in nodes:
        await live.hear_sample(told(each.id, *(gpu(index, 0.5) for index in range(8))))
    cycles = 0

    async def count() -> None:
        nonlocal cycles
        while True:
            cycles += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await samples.take(Known(nodes, []), live, now=lambda: AT)  # type: ignore[arg-type]
    counting.cancel()
    assert cycles >= 1024 // 32
    assert len(samples.nodes.subjects()) == 1024
