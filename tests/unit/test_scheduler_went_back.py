"""A whole scheduler over a store that is put back to an older state, stays away, or changes its leader."""

import asyncio
import copy
from itertools import pairwise
from typing import Any

import pytest
from msgspec import structs

from tests.support.builders import capacity, spec
from tests.support.doubles.bus import MemoryBus
from tests.support.doubles.store import MemoryStore
from tests.support.nodes import ScriptedNode
from weft.domain.job import CauseCode, JobState
from weft.domain.lease import Lease, Pledge
from weft.messages.nodes import Leader, NodeDesired
from weft.store import ASKS_BYTES_MAX, StoreUnavailableError
from weftd.executor.thinking.core import Reconciler, ReconcilerTimings
from weftd.scheduler.counters import Counters
from weftd.scheduler.leadership import Leadership
from weftd.scheduler.scheduler_loop import SchedulerLoop
from weftd.scheduler.thinking.core import Scheduler
from weftd.scheduler.thinking.core_settings import Settings

LEADER_SECONDS, LEASE_SECONDS = 6.0, 150.0


class Store(MemoryStore):
    """Can be copied, put back, and away; and it may give its lease to nobody, as one that takes no writes."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.gives_lease = True

    def backup(self) -> dict[str, Any]:
        return copy.deepcopy(self.__dict__)

    def restore(self, backup: dict[str, Any]) -> None:
        self.__dict__.update(copy.deepcopy(backup))

    async def take_lease(self, name: str, *, holder: str, seen: Lease | None) -> Lease | None:
        return await super().take_lease(name, holder=holder, seen=seen) if self.gives_lease else None

    async def renew_lease(self, lease: Lease, *, pledge: Pledge | None = None) -> Lease | None:
        self._must_be_there()
        return await super().renew_lease(lease, pledge=pledge)

    async def asks(self, *, pool: str, limit: int, bytes_max: int = ASKS_BYTES_MAX) -> Any:
        self._must_be_there()
        return await super().asks(pool=pool, limit=limit, bytes_max=bytes_max)

    def _must_be_there(self) -> None:
        if self.away:
            raise StoreUnavailableError("on purpose")


class Node(ScriptedNode):
    """Remembers who answered it, as an executor does."""

    def __init__(self, node_id: str) -> None:
        super().__init__(node_id, capacity(gpus=4))
        self.core = Reconciler(ReconcilerTimings())

    def listen(self, answer: NodeDesired, now: float) -> None:
        self.core.observe(answer, reported=(), sent_at=now)
        self.take(answer, now=now)


class Process:
    """One scheduler."""

    def __init__(self, world: "World", holder: str) -> None:
        self.leadership = Leadership(
            name="default", holder=holder, store=world.store, clock=world.clock, leader_seconds=LEADER_SECONDS
        )
        self.scheduler_loop = SchedulerLoop(
            core=Scheduler(pool="default", settings=Settings(lease_seconds=LEASE_SECONDS)),
            store=world.store,
            bus=MemoryBus(),
            leadership=self.leadership,
            clock=world.clock,
            counters=Counters(),
        )


class World:
    def __init__(self, *, nodes: int = 1) -> None:
        self.now = 1000.0
        self.store = Store()
        self.nodes = [Node(f"node-{n}") for n in range(1, nodes + 1)]
        self.process = Process(self, "first")

    def clock(self) -> float:
        return self.now

    async def cycle(self, seconds: float = 1.0) -> None:
        self.now += seconds
        try:
            await self.process.leadership.beat()
            self.process.scheduler_loop.asked()
            await self.process.scheduler_loop.cycle()
        except StoreUnavailableError:
            pass

    async def sync(self, node: Node, *, leader: Leader | None = None) -> NodeDesired | None:
        report = structs.replace(node.report(), leader=leader or node.core.leader)
        answer = asyncio.ensure_future(self.process.scheduler_loop.report(report))
        await asyncio.sleep(0)
        await self.cycle()
        answered = await answer
        if answered is not None:
            node.listen(answered, self.now)
        return answered

    async def rounds(self, count: int = 4) -> None:
        for _ in range(count):
            for node in self.nodes:
                await self.sync(node)

    async def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            await self.cycle()
            await self.rounds(1)

    async def submit(self, job_id: str, *, gpus: int = 4) -> None:
        await self.store.submit(spec(gpus=gpus), job_id=job_id, tenant="alice", key=None, at=self.now)

    async def lead_from(self, holder: str) -> None:
        """Another process leads, once it has seen that the one before is gone."""
        self.process = Process(self, holder)
        for _ in range(10):
            await self.cycle()
        assert self.process.leadership.lease is not None

    async def job(self, job_id: str) -> tuple[JobState, CauseCode | None]:
        job = await self.store.job(job_id)
        assert job is not None
        return job.state, job.waiting_for.code if job.waiting_for else None

    @property
    def lease(self) -> Lease:
        return self.process.leadership.require()


async def test_whoever_leads_from_an_older_store_hears_it_of_a_node_and_waits(caplog: pytest.LogCaptureFixture) -> None:
    """The usual way: everything but the nodes is stopped, the backup is restored, everything is started again."""
    w = World(nodes=2)
    await w.rounds()
    backup = w.store.backup()
    await w.submit("j-1")
    await w.rounds()
    before = w.nodes[0].core.leader
    assert await w.job("j-1") == (JobState.RUNNING, None)

    w.store.restore(backup)
    await w.submit("j-2")
    await w.lead_from("second")
    assert not w.lease.went_back  # nobody can know yet
    await w.rounds(2)
    assert "the store went back in time" in caplog.text
    assert w.lease.went_back
    assert before is not None
    assert w.lease.epoch > before.epoch
    assert w.nodes[0].core.leader is not None
    assert w.nodes[0].core.leader.epoch == w.lease.epoch
    assert await w.job("j-2") == (JobState.QUEUED, CauseCode.STORE_RESTORED)
    assert not any(node.live for node in w.nodes)

    await w.wait(LEASE_SECONDS - 20)
    assert await w.job("j-2") == (JobState.QUEUED, CauseCode.STORE_RESTORED)
    await w.store.sent(await w.store.unsent(limit=1000))
    await w.wait(30)
    told_again = {(one.event.subject_id, one.event.event) for one in await w.store.unsent(limit=1000)}
    assert ("j-2", "waiting") in told_again  # a stream may have taken it for one of the lost time
    assert await w.job("j-2") == (JobState.RUNNING, None)
    assert not w.lease.went_back
    stored = await w.store.lease("default")
    assert stored is not None
    assert not stored.went_back
    assert caplog.text.count("the store went back in time") == 1


async def test_a_leader_that_goes_on_through_it_knows_by_its_own_lease() -> None:
    w = World()
    await w.rounds()
    backup = w.store.backup()
    await w.rounds()
    epoch = w.lease.epoch
    w.store.restore(backup)
    await w.submit("j-1")
    await w.cycle()
    await w.cycle()
    assert w.lease.went_back
    assert w.lease.epoch > epoch
    assert await w.job("j-1") == (JobState.QUEUED, CauseCode.STORE_RESTORED)


async def test_what_was_decided_from_a_lost_time_is_refused_before_any_renewal_tells_of_it() -> None:
    """The store is back so soon that the scheduler loop asks nothing of it meanwhile. Its records leave no gap."""
    w = World()
    await w.rounds()
    backup = w.store.backup()
    await w.submit("j-1")
    await w.rounds()
    w.store.restore(backup)
    await w.submit("j-2")
    w.process.scheduler_loop.asked()
    await w.process.scheduler_loop.cycle()
    stored = await w.store.job("j-2")
    assert stored is not None
    assert stored.placement is None
    await w.rounds()
    assert w.lease.went_back
    records = await w.store.history(pool="default", limit=1000, bytes_max=1 << 30)
    follows = [(one.epoch, one.number) == (last.epoch, last.number + 1) for last, one in pairwise(records)]
    assert all(follows or one.begins for follows, one in zip(follows, records[1:], strict=True))
    assert await w.job("j-2") == (JobState.QUEUED, CauseCode.STORE_RESTORED)


async def test_an_epoch_that_was_given_twice_is_told_apart_by_its_holder() -> None:
    w = World()
    await w.rounds()
    backup = w.store.backup()
    await w.lead_from("second")
    await w.rounds()
    lost = w.nodes[0].core.leader
    w.store.restore(backup)
    await w.lead_from("third")
    assert lost is not None
    assert (lost.epoch, lost.holder) == (w.lease.epoch, "second")
    await w.sync(w.nodes[0])
    assert w.lease.went_back
    assert w.lease.epoch > lost.epoch


async def test_a_leader_that_begins_while_another_waited_waits_anew() -> None:
    w = World()
    await w.rounds()
    backup = w.store.backup()
    await w.rounds()
    w.store.restore(backup)
    await w.lead_from("second")
    await w.rounds()
    await w.submit("j-1")
    await w.wait(LEASE_SECONDS - 20)
    await w.lead_from("third")
    assert w.lease.went_back
    await w.wait(LEASE_SECONDS - 30)
    assert await w.job("j-1") == (JobState.QUEUED, CauseCode.STORE_RESTORED)
    await w.wait(40)
    assert await w.job("j-1") == (JobState.RUNNING, None)


async def test_a_store_that_was_away_while_it_is_waited_makes_nobody_wait_anew() -> None:
    w = World()
    await w.rounds()
    backup = w.store.backup()
    await w.rounds()
    w.store.restore(backup)
    await w.submit("j-1")
    await w.wait(LEASE_SECONDS - 20)
    w.store.away = True
    await w.cycle()
    w.store.away = False
    await w.wait(40)
    assert await w.job("j-1") == (JobState.RUNNING, None)


async def test_leaders_that_follow_each_other_are_no_sign_of_it() -> None:
    w = World(nodes=2)
    await w.submit("j-1")
    await w.rounds()
    for holder in ("second", "third"):
        await w.lead_from(holder)
        await w.rounds()
    await w.process.leadership.resign()
    await w.lead_from("fourth")
    await w.rounds()
    assert w.lease.epoch == 4
    assert not w.lease.went_back
    assert await w.job("j-1") == (JobState.RUNNING, None)


async def test_a_node_that_comes_back_late_from_the_lost_time_starts_nothing_over() -> None:
    w = World(nodes=2)
    await w.rounds()
    backup = w.store.backup()
    await w.rounds()
    late = w.nodes.pop()
    w.store.restore(backup)
    await w.lead_from("second")
    await w.rounds()
    await w.wait(LEASE_SECONDS + 10)
    assert not w.lease.went_back
    await w.sync(late)
    await w.cycle()
    assert not w.lease.went_back


async def test_a_node_that_tells_stories_holds_its_pool_up_once() -> None:
    w = World()
    await w.rounds()
    story = Leader(pool="default", epoch=1000, holder="nobody", seq=0)
    await w.sync(w.nodes[0], leader=story)
    assert w.lease.epoch == 1001
    await w.sync(w.nodes[0], leader=Leader(pool="default", epoch=5000, holder="nobody", seq=0))
    assert w.lease.epoch == 1001
    await w.sync(w.nodes[0], leader=Leader(pool="other", epoch=10_000, holder="nobody", seq=0))
    assert w.lease.epoch == 1001


async def test_no_node_is_lost_because_the_store_was_away() -> None:
    """Nothing was heard while it was: silence counts from when it came back."""
    w = World()
    await w.submit("j-1")
    await w.rounds()
    w.store.away = True
    for _ in range(40):
        await w.cycle(10)
    w.store.away = False
    await w.cycle()
    await w.cycle(100)
    (node,) = await w.store.nodes()
    assert node.ready
    await w.rounds()
    assert await w.job("j-1") == (JobState.RUNNING, None)
    assert w.nodes[0].live == [("j-1", 0, 0)]


async def test_who_stands_in_for_a_leader_lets_run_what_runs_and_starts_nothing() -> None:
    w = World(nodes=2)
    await w.submit("j-1")
    await w.submit("j-2")
    await w.sync(w.nodes[0])
    await w.rounds()
    await w.submit("j-3", gpus=0)
    await w.cycle()  # placed, and not told yet
    assert await w.job("j-3") == (JobState.PLACED, None)
    running = {node.node_id: list(node.live) for node in w.nodes}
    w.process = Process(w, "second")
    w.store.gives_lease = False
    await w.process.leadership.beat()
    w.now += LEADER_SECONDS + 1
    await w.process.leadership.beat()
    for node in w.nodes:
        answer = await w.process.scheduler_loop.report(node.report())
        assert answer is not None
        assert answer.leader is None
        node.listen(answer, w.now)
    assert {node.node_id: list(node.live) for node in w.nodes} == running
    w.store.gives_lease = True
    await w.lead_from("third")
    await w.rounds()
    assert await w.job("j-3") == (JobState.RUNNING, None)
