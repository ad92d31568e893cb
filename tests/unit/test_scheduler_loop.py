"""The scheduler's turns: what comes in is decided, stored, and only then said; nothing given to it stops it."""

import asyncio
import contextlib
import zlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest

from tests.support.builders import capacity, spec
from tests.support.doubles.bus import MemoryBus
from tests.support.doubles.store import MemoryStore
from tests.support.nodes import ScriptedNode
from tests.support.steps import go, placement
from weft.domain.cluster import Node
from weft.domain.job import CauseCode, Job, JobChange, JobEvent, JobState, Step
from weft.domain.lease import Lease
from weft.messages.asks import Ask, AskKind, Update
from weft.messages.history import Record
from weft.messages.nodes import NodeDesired
from weft.messages.signals import GpuScore, GpusScored
from weft.store import StoreError, StoreUnavailableError, UnlawfulError
from weftd.scheduler.counters import Counters
from weftd.scheduler.leadership import Leadership
from weftd.scheduler.refreshing import SCORES_SECONDS
from weftd.scheduler.scheduler_loop import SchedulerLoop
from weftd.scheduler.thinking.core import Scheduler
from weftd.scheduler.thinking.core_settings import Settings
from weftd.scheduler.thinking.record.replay import Replay


class FailingStore(MemoryStore):
    """Refuses the next writes as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.away = 0
        self.unlawful = ""  # a job of which every step is refused
        self.refuses: Callable[[Step], bool] = lambda step: False  # as a column does that cannot hold it
        self.takes: Callable[[int], None] = lambda born: None  # how long it takes to admit so many
        self.most = 10**9  # steps that are stored in time
        self.reads = 0
        self.late = ""  # the next call of this name has no answer in time, and lands once the pool was read anew
        self._landing: Callable[[], Awaitable[object]] | None = None

    async def admit(self, lease: Lease, *, load: int, pool: str, limit: int) -> list[Job]:
        if self.late != "admit":
            born = await super().admit(lease, load=load, pool=pool, limit=limit)
            self.takes(len(born))
            return born
        self.late = ""
        self._landing = partial(super().admit, lease, load=load, pool=pool, limit=limit)
        raise StoreUnavailableError("on purpose")

    async def save_node(self, lease: Lease, node: Node, **named: Any) -> None:
        if self.late != "save_node":
            await super().save_node(lease, node, **named)
            return
        self.late = ""
        self._landing = partial(super().save_node, lease, node, **named)
        raise StoreUnavailableError("on purpose")

    async def take(self, lease: Lease, changes: Sequence[JobChange], *, record: Record | None = None) -> list[bool]:
        if self.away or len(changes) > self.most:
            self.away = max(0, self.away - 1)
            raise StoreUnavailableError("on purpose")
        if any(step.job_id == self.unlawful or self.refuses(step) for step in (change.step for change in changes)):
            raise UnlawfulError("on purpose")
        return await super().take(lease, changes, record=record)

    async def open_jobs(self, *, pool: str) -> list[Job]:
        self.reads += 1
        found = await super().open_jobs(pool=pool)
        if self._landing is not None:
            landing, self._landing = self._landing, None
            with contextlib.suppress(StoreError):  # nobody waits for its answer
                await landing()
        return found


class World:
    def __init__(self) -> None:
        self.now = 1000.0
        self.store = FailingStore()
        leadership = Leadership(
            name="default", holder="me", store=self.store, clock=lambda: self.now, leader_seconds=1e9
        )
        self.leadership = leadership
        self.scheduler_loop = SchedulerLoop(
            core=Scheduler(pool="default", settings=Settings()),
            store=self.store,
            bus=MemoryBus(),
            leadership=leadership,
            clock=lambda: self.now,
            counters=Counters(),
        )
        self.node = ScriptedNode("node-1", capacity(gpus=4))

    async def submit(self, job_id: str, *, gpus: int = 1) -> None:
        await self.store.submit(spec(gpus=gpus), job_id=job_id, tenant="alice", key=None, at=self.now)

    async def ask(self, kind: AskKind, job_id: str, priority: int = 0) -> None:
        await self.store.ask(kind, subject_id=job_id, pool="default", tenant="alice", at=self.now, priority=priority)

    async def cycles(self, count: int = 1) -> None:
        for _ in range(count):
            self.now += 1.0
            await self.leadership.beat()
            self.scheduler_loop.asked()
            await self.scheduler_loop.cycle()

    async def sync(self) -> NodeDesired | None:
        answer = asyncio.ensure_future(self.scheduler_loop.report(self.node.report()))
        await asyncio.sleep(0)
        await self.cycles()
        answered = await answer
        if answered is not None:
            self.node.take(answered)
        return answered

    async def state(self, job_id: str) -> JobState:
        job = await self.store.job(job_id)
        assert job is not None
        return job.state


async def test_a_job_goes_all_its_way_through_turns() -> None:
    w = World()
    await w.submit("j-1")
    for _ in range(4):
        await w.sync()
    assert await w.state("j-1") is JobState.RUNNING
    w.node.end(("j-1", 0, 0), 0)
    await w.sync()
    assert await w.state("j-1") is JobState.SUCCEEDED


@pytest.mark.parametrize(
    "asked",
    [
        [AskKind.CANCEL, AskKind.CANCEL],
        [AskKind.CANCEL, AskKind.PRIORITISE, AskKind.CANCEL, AskKind.PRIORITISE],
        [AskKind.PRIORITISE, AskKind.CANCEL],
        [AskKind.CANCEL, AskKind.CANCEL, AskKind.PRIORITISE],
    ],
)
async def test_many_asks_about_one_queued_job_at_once_cancel_it_once(asked: list[AskKind]) -> None:
    w = World()
    await w.sync()
    await w.submit("j-big", gpus=8)
    await w.cycles(2)
    for kind in asked:
        await w.ask(kind, "j-big", priority=3)
    lease = w.leadership.lease
    await w.cycles(6)
    assert await w.state("j-big") is JobState.CANCELLED
    assert await w.store.asks(pool="default", limit=10) == []
    assert w.leadership.lease is not None
    assert lease is not None
    assert w.leadership.lease.epoch == lease.epoch


async def test_a_cancel_and_a_requeue_asked_together_both_happen() -> None:
    w = World()
    await w.sync()
    await w.submit("j-big", gpus=8)
    await w.cycles(2)
    await w.ask(AskKind.CANCEL, "j-big")
    await w.ask(AskKind.REQUEUE, "j-big")
    await w.cycles(4)
    job = await w.store.job("j-big")
    assert job is not None
    assert (job.state, job.epoch) == (JobState.QUEUED, 1)


async def test_one_turn_takes_several_asks_about_one_job_in_their_order() -> None:
    """A tenant that asks much about one job would otherwise wait a turn for each."""
    w = World()
    await w.submit("j-1", gpus=4)
    await w.cycles()
    for priority in (5, 7, 3):
        await w.ask(AskKind.PRIORITISE, "j-1", priority)
    await w.cycles()
    assert await w.store.asks(pool="default", limit=10) == []
    assert [job.priority for job in await w.store.open_jobs(pool="default")] == [3]
    assert [event.event for event in await w.store.story("j-1")].count(JobEvent.REPRIORITISED) == 3
    await w.ask(AskKind.PRIORITISE, "j-1", 9)
    await w.ask(AskKind.CANCEL, "j-1")
    await w.ask(AskKind.REQUEUE, "j-1")  # of what is over by then, and read from the store in the next turn
    await w.cycles()
    assert await w.state("j-1") is JobState.CANCELLED
    await w.cycles()
    assert await w.state("j-1") is JobState.QUEUED


async def test_hundreds_of_asks_of_one_tenant_delay_another_by_no_turn() -> None:
    w = World()
    for number in range(300):
        await w.submit(f"j-{number}")
    await w.store.submit(spec(gpus=1), job_id="j-of-bob", tenant="bob", key=None, at=w.now)
    await w.cycles()
    for number in range(300):
        await w.ask(AskKind.CANCEL, f"j-{number}")
    await w.store.ask(AskKind.CANCEL, subject_id="j-of-bob", pool="default", tenant="bob", at=w.now)
    await w.cycles()
    assert await w.state("j-of-bob") is JobState.CANCELLED
    assert await w.state("j-299") is JobState.QUEUED


async def test_a_turn_admits_as_many_as_it_has_time_for_and_one_of_each_tenant_first() -> None:
    w = World()
    await w.cycles()
    w.store.takes = lambda born: setattr(w, "now", w.now + 0.001 * born)
    for number in range(700):
        await w.submit(f"j-{number}")
    await w.cycles()
    await w.store.submit(spec(gpus=1), job_id="j-of-bob", tenant="bob", key=None, at=w.now)
    before = len(await w.store.open_jobs(pool="default"))
    await w.cycles()
    assert before == 500
    assert len(await w.store.open_jobs(pool="default")) == before + 50
    assert "j-of-bob" in {job.id for job in await w.store.open_jobs(pool="default")}


async def test_nothing_is_said_that_could_not_be_stored_and_it_is_decided_again() -> None:
    w = World()
    await w.sync()
    await w.submit("j-1")
    w.store.away = 1
    answer = asyncio.ensure_future(w.scheduler_loop.report(w.node.report()))
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailableError):
        await w.cycles()
    assert await answer is None
    assert await w.state("j-1") is JobState.QUEUED
    await w.sync()  # loaded anew: the next report is surely not one from before
    answered = await w.sync()
    assert answered is not None
    assert [run.job_id for run in w.node.desired] == ["j-1"]


async def test_a_step_that_the_store_calls_unlawful_stops_no_other_job() -> None:
    w = World()
    await w.sync()
    w.store.unlawful = "j-1"
    await w.submit("j-1")
    await w.submit("j-2")
    for _ in range(3):
        await w.sync()
    assert await w.state("j-1") is JobState.QUEUED
    assert await w.state("j-2") in (JobState.PLACED, JobState.STARTING, JobState.RUNNING)


OF_A_LIFE = [JobEvent.WAITING, JobEvent.PLACED, JobEvent.STARTING, JobEvent.STARTED, JobEvent.STOPPING]
ENDS = [JobEvent.SUCCEEDED, JobEvent.FAILED, JobEvent.REQUEUED, JobEvent.CANCELLED]


@pytest.mark.parametrize("event", [*OF_A_LIFE, *ENDS], ids=str)
async def test_a_job_whose_step_no_column_holds_fails_by_itself_and_nothing_is_loaded_anew(event: JobEvent) -> None:
    """Its picture was loaded anew every 2.5 s, for as long as the step was decided: nobody's job began any more."""
    w = World()
    await w.sync()
    loads = w.store.reads

    def refuses(step: Step) -> bool:
        return step.job_id == "j-bad" and step.event is event and step.cause.code is not CauseCode.NOT_STORED

    w.store.refuses = refuses
    await w.submit("j-bad", gpus=8 if event is JobEvent.WAITING else 1)
    for _ in range(4):
        await w.sync()
    if event in (JobEvent.STOPPING, JobEvent.CANCELLED):
        await w.ask(AskKind.CANCEL, "j-bad")
    elif event is JobEvent.REQUEUED:
        await w.ask(AskKind.REQUEUE, "j-bad")
    elif w.node.live:
        w.node.end(w.node.live[0], 0 if event is JobEvent.SUCCEEDED else 1)
    await w.submit("j-good")
    for _ in range(5):
        await w.sync()
    assert await w.state("j-good") is JobState.RUNNING
    assert await w.state("j-bad") is JobState.FAILED
    assert w.store.reads == loads
    story = await w.store.story("j-bad")
    assert any(b"the store refused its next step" in bytes(told.data) for told in story)
    w.scheduler_loop.core.cluster_state.check()
    assert not w.node.live or [key[0] for key in w.node.live] == ["j-good"]
    assert await w.store.asks(pool="default", limit=10) == []
    records = await w.store.history(pool="default", limit=100_000, bytes_max=1 << 40)
    replay = Replay()
    assert [replay.feed(record) for record in records] == [None] * len(records)


async def test_what_no_column_holds_of_a_final_job_leaves_it_final() -> None:
    w = World()
    await w.sync()
    await w.submit("j-1")
    await w.ask(AskKind.CANCEL, "j-1")
    await w.cycles(2)
    loads = w.store.reads
    w.store.refuses = lambda step: step.event is JobEvent.REQUEUED
    await w.ask(AskKind.REQUEUE, "j-1")
    await w.cycles(3)
    assert await w.state("j-1") is JobState.CANCELLED
    assert await w.store.asks(pool="default", limit=10) == []
    assert w.store.reads == loads
    w.scheduler_loop.core.cluster_state.check()


async def test_a_job_that_another_leader_has_since_admitted_is_not_decided_on() -> None:
    """A leader that hung in mid-turn and was replaced: an ask it then reads may be about a job it never knew."""
    w = World()
    await w.sync()
    lease = w.leadership.lease
    assert lease is not None
    await w.submit("j-1")
    (job,) = await w.store.admit(lease, load=1, pool="default", limit=10)  # as another leader would
    await go(w.store, lease, job, JobEvent.PLACED, at=w.now, placement=placement(("node-1", 0)))
    await w.ask(AskKind.REQUEUE, "j-1")
    await w.cycles()
    w.scheduler_loop.core.cluster_state.check()
    await w.cycles(3)  # it has loaded anew by now, and goes on
    w.scheduler_loop.core.cluster_state.check()
    assert await w.store.asks(pool="default", limit=10) == []


async def test_a_job_whose_admission_lands_late_is_known_to_its_leader() -> None:
    w = World()
    await w.sync()
    await w.submit("j-1")
    w.store.late = "admit"
    with pytest.raises(StoreUnavailableError):
        await w.cycles()
    loads = w.store.reads
    for _ in range(4):
        await w.sync()
    assert w.store.reads == loads + 1
    assert "j-1" in w.scheduler_loop.core.cluster_state.jobs
    assert await w.state("j-1") is JobState.RUNNING
    w.scheduler_loop.core.cluster_state.check()


async def test_a_node_whose_drain_lands_late_is_drained_for_its_leader_too() -> None:
    w = World()
    await w.sync()
    await w.sync()
    await w.ask(AskKind.DRAIN, "node-1")
    w.store.late = "save_node"
    with pytest.raises(StoreUnavailableError):
        await w.cycles()
    for _ in range(3):
        await w.sync()
    (stored,) = await w.store.nodes(pool="default")
    assert stored.drained
    assert w.scheduler_loop.core.cluster_state.pool.nodes["node-1"].drained
    assert await w.store.asks(pool="default", limit=10) == []
    assert [event.event for event in await w.store.events() if event.topic == "nodes"] == ["joined", "drained"]


async def test_a_beginning_of_a_load_that_lands_late_has_the_pool_loaded_once_more() -> None:
    w = World()
    await w.sync()
    lease = w.leadership.lease
    assert lease is not None
    loads = w.store.reads
    await w.store.lead_by(lease, "")  # of an earlier load, whose answer nobody waits for
    await w.submit("j-1")
    for _ in range(5):
        await w.sync()
    assert w.store.reads == loads + 1
    assert w.leadership.lease is not None
    assert w.leadership.lease.epoch == lease.epoch
    assert await w.state("j-1") is JobState.RUNNING


async def test_a_job_that_is_not_admitted_yet_is_decided_on_in_the_next_turn() -> None:
    w = World()
    await w.sync()
    asks = w.store.asks

    async def submitted_meanwhile(*, pool: str, limit: int, bytes_max: int) -> list[Ask]:
        if await w.store.job("j-1") is None:
            await w.submit("j-1")
            await w.ask(AskKind.CANCEL, "j-1")
        return await asks(pool=pool, limit=limit, bytes_max=bytes_max)

    w.store.asks = submitted_meanwhile  # type: ignore[method-assign]
    await w.cycles()
    assert await w.state("j-1") is JobState.QUEUED
    await w.cycles()
    assert await w.state("j-1") is JobState.CANCELLED


async def test_scores_that_were_told_before_the_node_joined_or_never_are_found_in_the_store() -> None:
    w = World()

    def believed() -> list[float]:
        scores = w.scheduler_loop.core.cluster_state.pool.free_capacity.scores.of("compute")
        return [scores.get(("node-1", gpu), 0.0) for gpu in range(2)]

    first, later = (GpuScore(node_id="node-1", gpu_index=gpu, job_class="compute", score=1.5) for gpu in range(2))
    await w.store.save_scores([first], at=w.now)
    await w.cycles()
    w.scheduler_loop.scored(GpusScored(pool="default", scores=(first,)))
    await w.sync()
    await w.cycles()
    assert believed() == [1.5, 0.0]
    await w.store.save_scores([later], at=w.now)  # and nobody tells
    w.now += SCORES_SECONDS
    await w.cycles()
    assert believed() == [1.5, 1.5]


async def test_scores_that_come_in_the_middle_of_a_turn_wait_for_the_next() -> None:
    w = World()
    await w.sync()
    score = GpuScore(node_id="node-1", gpu_index=0, job_class="compute", score=1.5)
    record, told = w.store.record, []

    async def tell_and_record(lease: Lease, made: Record) -> None:
        w.scheduler_loop.scored(GpusScored(pool="default", scores=(score,)))
        told.append(w.scheduler_loop.core.cluster_state.pool.free_capacity.scores.of("compute").get(("node-1", 0), 1.0))
        await record(lease, made)

    w.store.record = tell_and_record  # type: ignore[method-assign]
    w.now += 60.0
    await w.cycles()
    assert told == [1.0]
    await w.cycles()
    assert w.scheduler_loop.core.cluster_state.pool.free_capacity.scores.of("compute")["node-1", 0] == 1.5


async def test_a_turn_that_is_too_much_to_be_stored_becomes_smaller_until_it_is() -> None:
    w = World()
    for number in range(40):
        await w.submit(f"j-{number}")
    await w.cycles(2)
    for number in range(40):
        await w.ask(AskKind.CANCEL, f"j-{number}")
    w.store.most, failed = 3, 0
    while await w.store.asks(pool="default", limit=1):
        try:
            await w.cycles()
        except StoreUnavailableError:
            failed += 1
        assert failed < 30, "it was tried alike for ever"
    assert {await w.state(f"j-{number}") for number in range(40)} == {JobState.CANCELLED}
    assert failed > 0


async def test_after_an_ask_that_took_long_others_wait_and_submissions_do_not() -> None:
    w = World()
    for name in ("j-1", "j-2"):
        await w.submit(name)
    await w.cycles(2)

    def slow(step: Step) -> bool:
        w.now += 0.2 if step.event is JobEvent.CANCELLED else 0.0
        return False

    w.store.refuses = slow
    await w.ask(AskKind.CANCEL, "j-1")
    await w.cycles()
    assert await w.state("j-1") is JobState.CANCELLED
    await w.ask(AskKind.CANCEL, "j-2")
    await w.submit("j-3")
    w.now += 0.5
    await w.scheduler_loop.cycle()
    assert await w.state("j-2") is not JobState.CANCELLED
    assert "j-3" in w.scheduler_loop.core.cluster_state.jobs
    w.now += 0.2
    await w.scheduler_loop.cycle()
    assert await w.state("j-2") is JobState.CANCELLED


async def test_records_have_no_long_text_of_an_update_and_are_derived_again_all_the_same() -> None:
    w = World()
    role = {"server": {"gpus": 8, "replicas": {"min": 1, "want": 1, "max": 2}}}
    wanted = spec("chat", kind="inference", service={"ready": "/"}, roles=role)
    await w.store.submit(wanted, job_id="j-1", tenant="alice", key=None, at=w.now)
    await w.cycles(2)
    values = ["secret" * 50, "secret" * 50, "é\n" * 5000, "short", ""]
    for number, value in enumerate(values):
        update = Update(env={"A": value, "B": "secret" * (number // 2 + 20)}, command=("serve", "--key", "secret" * 20))
        await w.store.ask(AskKind.UPDATE, subject_id="j-1", pool="default", tenant="alice", at=w.now, update=update)
        await w.cycles()
    w.leadership.lost()
    await w.cycles(2)
    job = await w.store.job("j-1")
    assert job is not None
    assert (job.revision, (job.revisions[-1].env or {})["A"]) == (4, ""), "the second changed nothing"
    replay = Replay()
    for record in await w.store.history(pool="default", limit=1000, bytes_max=1 << 40):
        assert b"secret" not in zlib.decompress(record.body)
        replay.specify(await w.store.specifications(replay.lacks(record), bytes_max=1 << 40))
        assert replay.feed(record) is None
    assert (replay.unread, replay.skipped) == ([], 0)
    assert replay.steps >= 4
