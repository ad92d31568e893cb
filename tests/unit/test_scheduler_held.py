"""A store that is away or hangs: the loop's answers, and how long a new leader leaves silent nodes their jobs."""

import asyncio
import contextlib

from msgspec import structs

from tests.support.builders import capacity
from tests.support.doubles.bus import MemoryBus
from tests.support.doubles.store import MemoryStore
from tests.support.nodes import ScriptedNode
from tests.support.scheduler import world
from weft.domain.job import JobState
from weft.domain.lease import Lease, Pledge
from weft.messages import Connection
from weft.messages.nodes import NodeDesired, NodeReported
from weft.store import StoreUnavailableError
from weftd.scheduler.counters import Counters
from weftd.scheduler.leadership import Leadership
from weftd.scheduler.scheduler_loop import SchedulerLoop
from weftd.scheduler.thinking.core import Scheduler
from weftd.scheduler.thinking.core_settings import Settings


class Store(MemoryStore):
    away = False
    hangs = False

    async def renew_lease(self, lease: Lease, *, pledge: Pledge | None = None) -> Lease | None:
        await self._must_answer()
        return await super().renew_lease(lease, pledge=pledge)

    async def lease(self, name: str) -> Lease | None:
        await self._must_answer()
        return await super().lease(name)

    async def admit(self, lease: Lease, *, load: int, pool: str, limit: int) -> list:  # type: ignore[type-arg]
        await self._must_answer()
        return await super().admit(lease, load=load, pool=pool, limit=limit)

    async def _must_answer(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.away:
            raise StoreUnavailableError("on purpose")


class Process:
    def __init__(self, *, holds_seconds: float = 3600.0) -> None:
        self.now = 1000.0
        self.store = Store()
        self.leadership = Leadership(
            name="default",
            holder="scheduler-1",
            store=self.store,
            clock=lambda: self.now,
            leader_seconds=6.0,
            holds_seconds=holds_seconds,
            connection=lambda: Connection(server="nats", number=1),
        )
        self.scheduler_loop = SchedulerLoop(
            core=Scheduler(pool="default", settings=Settings()),
            store=self.store,
            bus=MemoryBus(),
            leadership=self.leadership,
            clock=lambda: self.now,
            counters=Counters(),
        )
        self.node = ScriptedNode("node-1", capacity(gpus=1))

    def speak(self) -> None:
        self.leadership.hear_told(self.leadership.tell())

    async def lead(self) -> None:
        await self.leadership.beat()
        await self.sync()
        self.speak()
        self.now += 1.0
        await self.leadership.beat()
        await self.sync()

    async def sync(self) -> NodeDesired | None:
        asking = asyncio.ensure_future(self.scheduler_loop.report(self.report()))
        await asyncio.sleep(0)
        with contextlib.suppress(StoreUnavailableError):
            await self.scheduler_loop.cycle()
        answer = await asking
        if answer is not None and answer.leader is not None:
            self.node.leader = answer.leader
        return answer

    def report(self) -> NodeReported:
        return self.node.report()

    async def pass_away(self, seconds: float) -> None:
        """The store is away for so long."""
        self.store.away = True
        for _ in range(int(seconds)):
            self.now += 1.0
            self.speak()
            with contextlib.suppress(StoreUnavailableError):
                await self.leadership.beat()


async def test_the_last_leader_holds_its_nodes_while_the_store_is_away_and_goes_on_when_it_is_back() -> None:
    process = Process()
    await process.lead()
    await process.pass_away(600)
    held = await process.sync()
    assert held is not None
    assert held.hold
    process.store.away = False
    await process.leadership.beat()
    answer = await process.sync()
    assert answer is not None
    assert not answer.hold
    assert answer.leader is not None
    assert answer.leader.epoch == 1


async def test_a_node_that_another_leader_answered_last_is_not_held() -> None:
    process = Process()
    await process.lead()
    await process.pass_away(30)
    other = structs.replace(process.report(), leader=None)
    assert await process.scheduler_loop.report(other) is None


async def test_nothing_is_held_where_that_is_switched_off() -> None:
    process = Process(holds_seconds=0.0)
    await process.lead()
    await process.pass_away(30)
    assert await process.sync() is None


async def test_a_turn_that_waits_for_the_store_keeps_no_report_waiting_longer_than_a_node_does() -> None:
    process = Process()
    await process.lead()
    process.store.hangs = True
    process.now += 1.0
    turning = asyncio.ensure_future(process.scheduler_loop.cycle())
    await asyncio.sleep(0)
    async with asyncio.timeout(3.0):
        held = await process.scheduler_loop.report(process.report())
    assert held is not None
    assert held.hold
    turning.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await turning


# a new leader


def test_a_silent_node_that_an_earlier_leader_may_hold_keeps_its_jobs_until_a_lease_after_that() -> None:
    w = world(nodes=2)
    w.submit("j-1", gpus=4)
    w.round()
    jobs, nodes = w.open_jobs(), list(w.core.cluster_state.pool.nodes.values())
    (at,) = {allocation.node_id for job in jobs if job.placement for allocation in job.placement.allocations}
    (other,) = set(w.nodes) - {at}
    lease = w.core.settings.lease_seconds
    w.core = Scheduler(pool="default", settings=w.core.settings)
    w.leader = structs.replace(w.leader, epoch=2)
    w.core.load(jobs=jobs, nodes=nodes, now=w.now, held_until=w.now + 1000.0)
    assert set(w.core.unfollowing) == {at, other}
    until = w.now + 1000.0 + lease
    while w.now < until - 1.0:
        w.sync(other)
        w.tick()
    assert w.core.unfollowing == [at]
    assert w.state("j-1") is JobState.RUNNING
    for _ in range(5):
        w.sync(other)
        w.tick()
    assert w.stored["j-1"].epoch == 1
