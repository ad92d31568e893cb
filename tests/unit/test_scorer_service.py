"""Whole scorers on a bus in memory, in virtual time: several of them do what one would, and one may die."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import pytest

from tests.support.benchmarks import bench_job, gpu, measurement
from tests.support.doubles.bus import MemoryBus
from tests.support.doubles.store import MemoryStore
from tests.support.fleet import Fleet
from tests.support.virtual_time import run_virtually
from tests.unit.test_scorer_interference import share_all, told
from weft.domain.cluster import Node
from weft.domain.job import Job
from weft.messages.signals import (
    ClassesLearnt,
    GpuScore,
    GpusScored,
    NodeSampled,
    PacesSeen,
    ScorerPresent,
    SpeedsMeasured,
)
from weft.store import StoreUnavailableError
from weftd.scorer import service
from weftd.scorer.measuring import Measuring
from weftd.scorer.settings import ScorerSettings

SLOW = {("node-1", 1): 4 / 3, ("node-4", 2): 1.5}


class FleetStore(MemoryStore):
    """A store in which the nodes and the running jobs are those of a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self._fleet = fleet
        self.saved: list[tuple[float, GpuScore]] = []
        self.broken = False

    async def nodes(self, *, pool: str | None = None) -> list[Node]:
        return list(self._fleet.nodes)

    async def holding_jobs(self, *, pool: str) -> list[Job]:
        return self._fleet.jobs

    async def save_scores(self, scores: Iterable[GpuScore], *, at: float) -> None:
        if self.broken:
            raise StoreUnavailableError("it does not answer")
        kept = list(scores)
        self.saved += [(at, score) for score in kept]
        await super().save_scores(kept, at=at)


class World:
    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.bus = MemoryBus()
        self.store = FleetStore(fleet)
        self.living: dict[str, asyncio.Task[None]] = {}
        self.heard: dict[type, list[object]] = {
            kind: [] for kind in (ScorerPresent, PacesSeen, GpusScored, ClassesLearnt, SpeedsMeasured)
        }

    def clock(self) -> float:
        return 1000.0 + asyncio.get_running_loop().time()

    async def listen(self) -> None:
        for kind, found in self.heard.items():

            async def hear(message: object, found: list[object] = found) -> None:
                found.append(message)

            await self.bus.subscribe(kind, hear)  # type: ignore[type-var]

    async def begin(self, *names: str, measuring: Measuring | None = None) -> None:
        for name in names:
            running = service.run(
                ScorerSettings(),
                bus=self.bus,
                store=self.store,
                stop=asyncio.Event(),
                clock=self.clock,
                name=name,
                measuring=measuring,
            )
            self.living[name] = asyncio.create_task(running)
            await asyncio.sleep(0.1)

    async def kill(self, name: str) -> None:
        task = self.living.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def pass_seconds(self, seconds: int) -> None:
        for _ in range(seconds):
            for message in self.fleet.tick():
                await self.bus.publish(message)
            await asyncio.sleep(1.0)
            for task in self.living.values():
                assert not task.done() or task.result() is None

    async def scores(self) -> dict[tuple[str, int], GpuScore]:
        found = await self.store.scores(pool="default")
        return {(score.node_id, score.gpu_index): score for score in found if score.job_class == "compute"}


def lived(program: Callable[[World], Awaitable[None]], fleet: Fleet) -> World:
    world = World(fleet)

    async def live() -> None:
        await world.listen()
        await program(world)
        for name in list(world.living):
            await world.kill(name)

    run_virtually(live())
    return world


def working(seed: int = 3) -> Fleet:
    fleet = Fleet(nodes=6, gpus=4, seed=seed)
    fleet.run_one_each()
    return fleet


async def slow_and_well_again(world: World, *names: str) -> tuple[dict[tuple[str, int], GpuScore], ...]:
    await world.begin(*names)
    await world.pass_seconds(120)
    world.fleet.slow = dict(SLOW)
    await world.pass_seconds(240)
    slow = await world.scores()
    world.fleet.slow = {}
    await world.pass_seconds(180)
    return slow, await world.scores()


def scored_by(*names: str) -> tuple[World, tuple[dict[tuple[str, int], GpuScore], ...]]:
    found: list[tuple[dict[tuple[str, int], GpuScore], ...]] = []

    async def program(world: World) -> None:
        found.append(await slow_and_well_again(world, *names))

    return lived(program, working()), found[0]


def test_several_scorers_end_with_the_scores_that_one_has() -> None:
    alone, of_one = scored_by("a")
    several, of_three = scored_by("a", "b", "c")
    for one, three in zip(of_one, of_three, strict=True):
        assert one.keys() == three.keys()
        assert len(one) == 24
        for place, score in one.items():
            assert three[place].score == pytest.approx(score.score, abs=0.025)
            assert three[place].confidence == pytest.approx(score.confidence, abs=0.15)
    slow, well = of_three
    assert all(slow[place].score > 1.2 for place in SLOW)
    assert all(score.score < 1.1 for place, score in slow.items() if place not in SLOW)
    assert all(score.score < 1.1 for score in well.values())
    assert not alone.heard[PacesSeen], "who is alone has nobody to tell"
    assert several.heard[PacesSeen]
    said = [
        score for message in several.heard[GpusScored] if isinstance(message, GpusScored) for score in message.scores
    ]
    assert len(said) == len(several.store.saved)


def test_each_node_is_listened_to_by_one_of_them() -> None:
    async def program(world: World) -> None:
        await world.begin("a", "b", "c")
        await world.pass_seconds(20)
        patterns = [one.pattern for one in world.bus._subscriptions if one.pattern.startswith("weft.telemetry.")]
        assert sorted(patterns) == [f"weft.telemetry.node-{number}" for number in range(1, 7)]

    lived(program, working())


def test_the_nodes_of_one_that_dies_are_taken_over_within_six_seconds_and_its_scores_are_kept() -> None:
    async def program(world: World) -> None:
        await world.begin("a", "b")
        world.fleet.slow = dict(SLOW)
        await world.pass_seconds(180)
        before = await world.scores()
        world.store.saved.clear()
        dead_at = world.clock()
        await world.kill("a")
        heard: list[float] = []

        def telemetry() -> set[str]:
            return {one.pattern for one in world.bus._subscriptions if one.pattern.startswith("weft.telemetry.")}

        assert len(telemetry()) < 6
        while len(telemetry()) < 6:
            await world.pass_seconds(1)
            heard.append(world.clock())
            assert world.clock() - dead_at < 8
        assert world.clock() - dead_at <= 6.5
        await world.pass_seconds(60)
        after = await world.scores()
        for place, score in before.items():
            assert after[place].score == pytest.approx(score.score, abs=0.03)
            assert after[place].samples > 0
        forgotten = [score for _, score in world.store.saved if score.source in ("assumed", "")]
        assert forgotten == [], "what was measured is never thrown away"

    lived(program, working())


def test_one_that_comes_later_takes_its_part_and_keeps_what_was_measured() -> None:
    async def program(world: World) -> None:
        world.fleet.slow = dict(SLOW)
        await world.begin("a")
        await world.pass_seconds(180)
        before = await world.scores()
        await world.begin("b")
        await world.pass_seconds(90)
        after = await world.scores()
        assert all(after[place].score == pytest.approx(score.score, abs=0.03) for place, score in before.items())
        assert all(after[place].confidence > score.confidence - 0.15 for place, score in before.items())

    lived(program, working())


def test_one_scorer_that_begins_anew_goes_on_with_the_scores_that_are_stored() -> None:
    async def program(world: World) -> None:
        world.fleet.slow = dict(SLOW)
        await world.begin("a")
        await world.pass_seconds(180)
        await world.kill("a")
        world.store.saved.clear()
        await world.begin("a-again")
        await world.pass_seconds(25)  # before any job is thought to have settled
        assert world.store.saved == []
        world.fleet.slow = {}
        await world.pass_seconds(90)
        assert all(score.score < 1.1 for score in (await world.scores()).values())

    lived(program, working())


def test_what_cannot_be_stored_for_a_while_is_stored_afterwards() -> None:
    async def program(world: World) -> None:
        await world.begin("a")
        await world.pass_seconds(90)
        world.fleet.slow = dict(SLOW)
        world.store.broken = True
        await world.pass_seconds(120)
        assert all(score.score < 1.1 for score in (await world.scores()).values())
        world.store.broken = False
        await world.pass_seconds(75)
        scores = await world.scores()
        assert all(scores[place].score > 1.2 for place in SLOW)

    lived(program, working())


def test_little_is_written_of_gpus_that_stay_as_they_are() -> None:
    async def program(world: World) -> None:
        await world.begin("a")
        await world.pass_seconds(300)
        world.store.saved.clear()
        await world.pass_seconds(600)
        assert len(world.store.saved) <= 24 * 3, "each GPU every few minutes"
        assert len(world.store.saved) >= 24

    lived(program, working())


def test_curves_and_classes_are_stored() -> None:
    async def program(world: World) -> None:
        await world.begin("a", "b")
        await world.pass_seconds(240)
        (curve,) = await world.store.curves(pool="default", subjects=["workload:resnet"])
        (point,) = curve.points
        assert point.model == "Emulated GPU"
        assert point.replicas == 1
        assert point.speed == pytest.approx(4.0, rel=0.05)
        assert point.windows > 20
        (one,) = await world.store.classes(pool="default")
        assert (one.workload, one.job_class) == ("resnet", "memory")
        assert [type(message) for message in world.heard[ClassesLearnt]] == [ClassesLearnt]

    fleet = working()
    fleet.sample = lambda gpu: {"sm_active": 0.6, "dram_active": 0.8}
    lived(program, fleet)


def test_telemetry_of_a_node_that_nobody_knows_is_no_matter() -> None:
    async def program(world: World) -> None:
        await world.begin("a")
        stranger = Fleet(nodes=9, gpus=1)
        for message in stranger.tick():
            if isinstance(message, NodeSampled) and message.node_id == "node-9":
                await world.bus.publish(message)
        await world.pass_seconds(10)
        assert len(await world.scores()) == 24

    lived(program, working())


def test_nodes_that_come_back_to_one_that_had_them_before_keep_their_scores() -> None:
    async def program(world: World) -> None:
        world.fleet.slow = dict(SLOW)
        await world.begin("a")
        await world.pass_seconds(180)
        before = await world.scores()
        await world.begin("b")
        await world.pass_seconds(20)
        await world.kill("b")
        world.store.saved.clear()
        await world.pass_seconds(30)
        assert [score for _, score in world.store.saved if score.source in ("assumed", "")] == []
        after = await world.scores()
        assert all(after[place].score == pytest.approx(score.score, abs=0.03) for place, score in before.items())

    lived(program, working())


def test_ranks_that_wait_for_each_other_are_told_to_other_scorers_as_one() -> None:
    """Else two jobs, each seen by a scorer of its own, would be compared as if each were many."""
    fleet = Fleet(nodes=6, gpus=4, seed=3)
    for number in range(1, 7):
        fleet.run(f"gang-{number}", [(f"node-{number}", (gpu,)) for gpu in range(4)])

    async def program(world: World) -> None:
        await world.begin("a", "b")
        await world.pass_seconds(120)

    world = lived(program, fleet)
    told = {
        (pace.node_id, pace.gpu_index)
        for said in world.heard[PacesSeen]
        if isinstance(said, PacesSeen)
        for pace in said.paces
        if pace.step_seconds and pace.alike.endswith("together")
    }
    assert told == {(f"node-{number}", 0) for number in range(1, 7)}


def test_how_jobs_slow_each_other_down_is_stored_and_survives_the_scorer() -> None:
    fleet = Fleet(gpus=4)
    fleet.run_one_each()
    fleet.run("j-memory", [("node-1", (0,))], labels={"weft/class": "memory", "weft/workload": "other"})
    share_all(fleet)
    told(fleet, lambda: fleet.now >= 1120.0)

    async def program(world: World) -> None:
        await world.begin("a")
        await world.pass_seconds(300)
        await world.kill("a")
        await world.begin("b")
        await world.pass_seconds(10)
        (pair,) = await world.store.slowdowns()
        assert (pair.job_class, pair.beside) == ("compute", "memory")
        assert pair.slowdown == pytest.approx(1.25, abs=0.04)

    lived(program, fleet)


def test_one_of_several_scorers_tells_nodes_how_fast_gpus_are() -> None:
    async def program(world: World) -> None:
        measuring = Measuring(bus=world.bus, store=world.store, token=None, settings=ScorerSettings())
        for number in range(3):
            job = bench_job(gpu(f"n-{number}"), f"n-{number}", measurement(), at=1.0)
            assert measuring.benchmarks.ended(job) is not None
        await world.begin("a", "b", measuring=measuring)
        await world.pass_seconds(130)
        told = world.heard[SpeedsMeasured]
        assert told
        assert len(told) <= 3, "one of them each minute"
        assert {one.models[0].gpus for one in told} == {3}  # type: ignore[attr-defined]

    lived(program, Fleet(nodes=1, gpus=1))
