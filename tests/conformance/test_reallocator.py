"""The reallocator's review on the store in memory and on a real one: trials and rollbacks outlive whoever asked."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Struct, structs
from prometheus_client import CollectorRegistry

from tests.support import postgres
from tests.support.builders import spec
from tests.support.doubles.bus import MemoryBus
from tests.support.doubles.store import MemoryStore
from tests.support.steps import go
from tests.support.trained import Kindred, Model, Trained, node_of
from weft.domain.job import STEPS, Allocation, Cause, CauseCode, Job, JobEvent, Placement, Step, changed
from weft.domain.lease import Lease
from weft.domain.spec import TuningMode
from weft.messages.asks import AskKind, AskStored
from weft.messages.http import EventData
from weft.messages.signals import PoolReviewed
from weft.store import GatewayStore, ReviewStore, SchedulerStore
from weftd.reallocator.quarantine import Quarantine
from weftd.reallocator.service import Review
from weftd.reallocator.thinking.core import Reallocator

STARVED = {"ps": Kindred(count=1, seconds=0.5, cpus=0.4), "worker": Kindred(count=3, seconds=0.05, cpus=0.4)}
IN_VAIN = {"worker": Kindred(count=2, seconds=0.1, threads=8, cpus=0.5)}


class Stubborn(Model, frozen=True, kw_only=True):
    """Seems held back by its CPU, and gains nothing by more."""

    def step_seconds(self, held: object) -> float:
        return 0.21


class Crowded(Model, frozen=True, kw_only=True):
    """Another worker makes each slower by as much: together they are as fast as before."""

    def step_seconds(self, held: Sequence[Allocation]) -> float:
        return 0.3 * len(held)


class World(Struct, frozen=True, kw_only=True):
    gateway: GatewayStore
    scheduler: SchedulerStore
    reallocator: ReviewStore


@pytest.fixture(params=["memory", "embedded"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    if request.param == "memory":
        store = MemoryStore()
        yield World(gateway=store, scheduler=store, reallocator=store)
        return
    async with postgres.embedded(tmp_path) as server, postgres.stores(server) as stores:
        yield World(gateway=stores.gateway, scheduler=stores.scheduler, reallocator=stores.reallocator)


class Pool:
    """One job that runs, and a scheduler of a few lines."""

    def __init__(self, world: World, trained: Trained, lease: Lease, job: Job) -> None:
        self.world, self.trained, self.lease, self.job = world, trained, lease, job
        self.now = 2000.0
        self.asked: list[CauseCode] = []
        self.bus = MemoryBus()
        self.nudged = 0
        self.reviewed: list[PoolReviewed] = []

    @classmethod
    async def of(cls, world: World, trained: Trained) -> "Pool":
        lease = await world.scheduler.take_lease("default", holder="me", seen=None)
        assert lease is not None
        await world.scheduler.save_node(lease, node_of(), event="joined", cause="joined")  # type: ignore[arg-type]
        spec = trained.job.spec
        await world.gateway.submit(spec, job_id=trained.job.id, tenant="alice", key=None, at=1000.0)
        (job,) = await world.scheduler.admit(lease, load=0, pool="default", limit=10)
        placement = Placement(allocations=trained.held, master_port=20000)
        job = await go(world.scheduler, lease, job, JobEvent.PLACED, at=1001.0, placement=placement)
        job = await go(world.scheduler, lease, job, JobEvent.STARTING, at=1002.0)
        job = await go(world.scheduler, lease, job, JobEvent.STARTED, at=1003.0)
        pool = cls(world, trained, lease, job)
        trained.job = job
        await pool.bus.subscribe(AskStored, pool._nudge)
        await pool.bus.subscribe(PoolReviewed, pool._review)
        return pool

    async def _nudge(self, _: AskStored) -> None:
        self.nudged += 1

    async def _review(self, reviewed: PoolReviewed) -> None:
        self.reviewed.append(reviewed)

    def reviewer(self, *, growth: float = 4.0) -> tuple[Reallocator, Review]:
        core = Reallocator(tuning=TuningMode.ON, growth=growth)
        registry = CollectorRegistry()
        quarantine = Quarantine(clock=lambda: self.now, registry=registry)
        review = Review(
            core, self.bus, self.world.reallocator, lambda: self.now, 5.0, registry=registry, quarantine=quarantine
        )
        return core, review

    async def run(self, seconds: int, *reviewers: tuple[Reallocator, Review]) -> None:
        for _ in range(seconds):
            self.now += 1.0
            for core, review in reviewers:
                core.observe(self.trained.sampled(self.now), now=self.now)
                core.observe(self.trained.progressed(self.now), now=self.now)
                await review.beat()
            await self._schedule()
            await asyncio.sleep(0)  # what was said arrives

    async def _schedule(self) -> None:
        for ask in await self.world.scheduler.asks(pool="default", limit=10):
            if ask.scale is not None and ask.scale.cause is not None:
                self.asked.append(ask.scale.cause.code)
                size = {**self.job.wanted, **ask.scale.size}
                await self._step(JobEvent.SCALED, ask.scale.cause, size=size, ask=ask.id)
                self.trained.resize(self.now)
                assert self.trained.job.placement is not None
                placement = structs.replace(self.trained.job.placement, master_port=20000)
                await self._step(JobEvent.RESIZED, Cause(code=CauseCode.GREW), placement=placement)
                continue
            assert ask.kind is AskKind.TUNE
            assert ask.tune is not None
            self.asked.append(ask.tune.cause.code)
            self.trained.take(ask.tune, self.now)
            tuned = Step(
                job_id=self.job.id,
                version=self.job.version,
                event=JobEvent.TUNED,
                to=STEPS[self.job.state, JobEvent.TUNED],
                at=self.now,
                cause=ask.tune.cause,
                epoch=self.job.epoch,
                placement=Placement(allocations=self.trained.held, master_port=20000),
                ask=ask.id,
            )
            assert await self.world.scheduler.take(self.lease, [changed(self.job, tuned)]) == [True]
            found = await self.world.scheduler.job(self.job.id)
            assert found is not None
            self.job = self.trained.job = found

    async def _step(self, event: JobEvent, cause: Cause, **fields: Any) -> None:
        self.job = await go(self.world.scheduler, self.lease, self.job, event, at=self.now, cause=cause, **fields)
        self.trained.job = self.job


@pytest.mark.parametrize("pays", [True, False])
async def test_one_more_replica_is_asked_for_and_kept_or_taken_back_by_whichever_process_is_there(
    world: World, pays: bool
) -> None:
    roles = {"worker": Kindred(count=2, seconds=0.3, cpus=0.5, most=3)}
    model = Model(roles=roles) if pays else Crowded(roles=roles)
    pool = await Pool.of(world, Trained(model, resize={"how": "live"}, noise=0.003))
    dying = pool.reviewer(growth=1.0)
    for _ in range(120):
        if CauseCode.OUTSCALED not in pool.asked:
            await pool.run(1, dying)
    assert pool.job.granted == {"worker": 3}
    another = pool.reviewer(growth=1.0)
    await pool.run(100, another)
    asked = [code for code in pool.asked if code in (CauseCode.OUTSCALED, CauseCode.ROLLED_BACK)]
    assert asked[-1] is (CauseCode.OUTSCALED if pays else CauseCode.ROLLED_BACK)
    assert pool.job.granted == {"worker": 3 if pays else 2}
    told = [event.event for event in await world.gateway.story(pool.job.id)]
    assert told.count("scaled") == told.count("resized") == (1 if pays else 2)
    state = another[0].state_of(pool.job.id)
    assert state is not None
    assert (state.trial, state.kept > 0) == (None, pays)


async def test_a_change_is_asked_for_done_verified_and_told(world: World) -> None:
    pool = await Pool.of(world, Trained(Model(roles=STARVED), tuning={"mode": "on", "cpus": 1.6}))
    first = pool.trained.speed
    await pool.run(150, pool.reviewer())
    assert pool.asked == [CauseCode.REBALANCED, CauseCode.KEPT]
    assert pool.trained.speed > 1.5 * first
    assert pool.nudged == 2
    story = await world.gateway.story(pool.job.id)
    tuned = [event for event in story if event.event == "tuned"]
    assert len(tuned) == 2
    changed_, kept = (msgspec.json.decode(event.data, type=EventData).cause for event in tuned)
    assert changed_ is not None
    assert kept is not None
    assert kept.numbers["speed_before"] == pytest.approx(changed_.numbers["speed"])
    assert kept.numbers["gain"] == pytest.approx(kept.numbers["speed"] / kept.numbers["speed_before"] - 1, abs=1e-5)
    assert kept.numbers["gain"] > 0.5
    assert changed_.sentence.partition(":")[0] in kept.sentence
    assert f"({kept.numbers['gain']:+.1%})" in kept.sentence
    (envelope,) = await world.reallocator.envelopes(pool="default")
    assert envelope.epoch == pool.job.epoch
    assert {one.code for one in pool.reviewed[-1].verdicts if one.rank == -1} == {"cpu-quota-bound"}


async def test_another_process_undoes_what_the_first_had_under_trial(world: World) -> None:
    pool = await Pool.of(world, Trained(Stubborn(roles=IN_VAIN), noise=0.003))
    before = pool.trained.held
    dying = pool.reviewer()
    while not pool.asked:
        await pool.run(1, dying)
    assert pool.trained.held != before
    another = pool.reviewer()
    while len(pool.asked) < 2:
        await pool.run(1, another)
    assert pool.asked == [CauseCode.UPSCALED, CauseCode.ROLLED_BACK]
    assert pool.trained.held == before


async def test_two_at_once_try_each_thing_once(world: World) -> None:
    """Both hear all. Nothing is asked twice, and who comes second goes by what the first has stored."""
    pool = await Pool.of(world, Trained(Stubborn(roles=IN_VAIN), noise=0.003))
    before = pool.trained.held
    await pool.run(600, pool.reviewer(), pool.reviewer())
    ups, downs = pool.asked.count(CauseCode.UPSCALED), pool.asked.count(CauseCode.ROLLED_BACK)
    assert 3 <= ups <= 4
    assert ups == downs
    assert pool.asked == [CauseCode.UPSCALED, CauseCode.ROLLED_BACK] * ups
    assert pool.trained.held == before


async def test_what_is_known_of_ended_jobs_is_dropped(world: World) -> None:
    pool = await Pool.of(world, Trained(Model(roles=STARVED)))
    core, review = pool.reviewer()
    await pool.run(60, (core, review))
    assert core.state_of(pool.job.id) is not None
    pool.job = await go(world.scheduler, pool.lease, pool.job, JobEvent.SUCCEEDED, at=pool.now, exit_code=0)
    await review.clean()
    assert await world.reallocator.envelopes(pool="default") == []
    for _ in range(6):
        pool.now += 1.0
        await review.beat()
    assert core.state_of(pool.job.id) is None


class CountingStore(MemoryStore):
    """Counts the jobs that were read from it."""

    read = 0

    async def open_jobs(self, *, pool: str) -> list[Job]:
        found = await super().open_jobs(pool=pool)
        self.read += len(found)
        return found

    async def holding_jobs(self, *, pool: str) -> list[Job]:
        found = await super().holding_jobs(pool=pool)
        self.read += len(found)
        return found


async def test_a_review_reads_no_job_that_holds_nothing() -> None:
    store = CountingStore()
    pool = await Pool.of(World(gateway=store, scheduler=store, reallocator=store), Trained(Model(roles=STARVED)))
    for number in range(50):
        await store.submit(spec(), job_id=f"j-waits-{number}", tenant="alice", key=None, at=1000.0)
    await store.admit(pool.lease, load=0, pool="default", limit=100)
    _, review = pool.reviewer()
    await review.beat()
    assert store.read == 1
