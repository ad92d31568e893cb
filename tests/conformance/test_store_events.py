"""What every store promises of events: told in order to every reader, until a moment, and kept until they are sent."""

import asyncio
import random
from collections import Counter
from functools import partial

import pytest
from msgspec import structs

from tests.support.builders import node, spec
from tests.support.doubles.store import MemoryStore
from tests.support.doubles.store import events as memory_events
from tests.support.steps import go
from tests.support.stores import AT, World, told
from tests.support.story import documents, tell_everything
from weft.domain.job import Cause, CauseCode, Job, JobEvent
from weft.messages.events import Event
from weft.store import is_full
from weft.store.accounts import Moment
from weft.store.postgres import events as postgres_events


async def test_events_are_read_on_from_where_one_was(world: World) -> None:
    lease = await world.lead()
    for number in range(5):
        tenant = "alice" if number % 2 == 0 else "bob"
        await world.gateway.submit(spec(), job_id=f"j-{number}", tenant=tenant, key=None, at=AT)
    await world.scheduler.save_node(lease, node(), event="joined", cause="")
    every = await world.gateway.events()
    assert [event.subject_id for event in every] == ["j-0", "j-1", "j-2", "j-3", "j-4", "node-1"]
    for number, event in enumerate(every):
        assert await world.gateway.events(after=event.cursor) == every[number + 1 :]
    assert await world.gateway.events(limit=2) == every[:2]
    assert await world.gateway.events(newest=True, limit=2) == every[-2:]
    assert await world.gateway.events(newest=True, limit=9, after=every[3].cursor) == every[4:]
    assert await world.gateway.events(tenant="bob") == [every[1], every[3]]
    assert await world.gateway.events(tenant="alice", newest=True, limit=2) == [every[2], every[4]]
    assert await world.gateway.events(tenant="alice", after=every[0].cursor, limit=1) == [every[2]]


async def test_a_page_of_events_is_bounded_in_bytes_and_has_at_least_one_event(world: World) -> None:
    """Forwards and backwards, of all tenants, of one, and of one job; the pages together are all events, each once."""
    lease = await world.lead()
    (job,) = await world.admitted(lease, "j-1")
    for number, letters in enumerate((10, 4000, 10, 9000, 10, 10, 5000)):
        cause = Cause(code=CauseCode.NO_ROOM, sentence="x" * letters, numbers={"number": float(number)})
        job = await go(world.scheduler, lease, job, JobEvent.WAITING, at=AT, cause=cause)
    every = await world.gateway.events()
    assert every == await world.gateway.story("j-1")
    for bytes_max in (1, 1000, 4500, 20_000):
        for read in (
            partial(world.gateway.events),
            partial(world.gateway.events, tenant="alice"),
            partial(world.gateway.story, "j-1"),
        ):
            ways: tuple[list[list[Event]], list[list[Event]]] = ([], [])
            for pages, newest in zip(ways, (False, True), strict=True):
                cursor: dict[str, str] = {}
                while page := await read(**cursor, newest=newest, limit=5, bytes_max=bytes_max):
                    pages.append(page)
                    assert len(page) <= 5
                    last_read = page[0] if newest else page[-1]
                    assert sum(len(event.data) for event in page if event is not last_read) < bytes_max
                    cursor = {"before": page[0].cursor} if newest else {"after": page[-1].cursor}
                    if not is_full(page, 5, bytes_max):
                        assert await read(**cursor, newest=newest) == []
            forwards, backwards = ways
            assert [event for page in forwards for event in page] == every
            assert [event for page in reversed(backwards) for event in page] == every


async def test_of_a_story_only_some_events_are_read(world: World) -> None:
    lease = await world.lead()
    (job,) = await world.admitted(lease, "j-1")
    for _ in range(3):
        job = await go(world.scheduler, lease, job, JobEvent.WAITING, at=AT)
    await go(world.scheduler, lease, job, JobEvent.CANCELLED, at=AT)
    found = await world.gateway.story("j-1", events=[JobEvent.SUBMITTED, JobEvent.CANCELLED])
    assert [event.version for event in found] == [1, 5]
    assert [event.version for event in await world.gateway.story("j-1", newest=True, limit=2)] == [4, 5]


async def test_the_newest_of_some_events_is_told_of_each_subject(world: World) -> None:
    lease = await world.lead()
    one, two = await world.admitted(lease, "j-1", "j-2")
    for job in (one, two):
        cancelled = await go(world.scheduler, lease, job, JobEvent.CANCELLED, at=AT)
    again = await go(world.scheduler, lease, cancelled, JobEvent.REQUEUED, at=AT)
    await go(world.scheduler, lease, again, JobEvent.CANCELLED, at=AT)
    await world.scheduler.save_node(lease, node("node-1"), event="joined", cause="")
    await world.scheduler.save_node(lease, node("node-1", drained=True), event="drained", cause="drained by admin")
    ends = await world.gateway.last_told("jobs", ["j-1", "j-2", "j-3"], events=["cancelled", "failed"])
    assert {event.subject_id: event.version for event in ends} == {"j-1": 2, "j-2": 4}
    (drained,) = await world.gateway.last_told("nodes", ["node-1", "node-2"], events=["drained"])
    assert told(drained)["sentence"] == "drained by admin"
    assert await world.gateway.last_told("jobs", [], events=["failed"]) == []


async def test_a_reader_among_many_writers_misses_nothing_and_reads_nothing_twice(world: World) -> None:
    lease = await world.lead()
    born = await world.admitted(lease, *(f"j-{number}" for number in range(4)))
    done = asyncio.Event()

    async def write(job: Job) -> None:
        for number in range(12):
            cause = Cause(code=CauseCode.NO_ROOM, numbers={"number": float(number)})
            job = await go(world.scheduler, lease, job, JobEvent.WAITING, at=AT, cause=cause)

    async def submit() -> None:
        for number in range(25):
            await world.gateway.submit(spec(), job_id=f"k-{number}", tenant="bob", key=None, at=AT)

    async def read() -> list[Event]:
        seen: list[Event] = []
        while True:
            last = done.is_set()
            seen += await world.gateway.events(after=seen[-1].cursor if seen else "", limit=7)
            if last and not await world.gateway.events(after=seen[-1].cursor, limit=1):
                return seen
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        readers = [tasks.create_task(read()) for _ in range(3)]
        async with asyncio.TaskGroup() as writers:
            for job in born:
                writers.create_task(write(job))
            writers.create_task(submit())
        done.set()
    every = await world.gateway.events()
    assert len(every) == 4 + 4 * 12 + 25
    for reader in readers:
        assert reader.result() == every


async def test_the_documented_history_is_told_alike_by_every_store(world: World) -> None:
    memory = MemoryStore()
    expected = await tell_everything(memory, memory)
    found = await tell_everything(world.gateway, world.scheduler)
    assert [event.message_id for event in found] == [event.message_id for event in expected]
    assert [(event.at, event.tenant, told(event)) for event in found] == [
        (event.at, event.tenant, told(event)) for event in expected
    ]
    assert documents(found) == documents(expected)
    assert await world.gateway.jobs(tenant=None) == await memory.jobs(tenant=None)


async def test_what_was_told_until_a_moment_is_alike_in_every_store(world: World) -> None:
    """At each event of the documented history, by its time and by its cursor: of open jobs all, of nodes the last."""
    memory = MemoryStore()
    expected = await tell_everything(memory, memory)
    found = await tell_everything(world.gateway, world.scheduler)
    for mine, its in zip(found, expected, strict=True):
        for ours, theirs in (
            (Moment(at=mine.at), Moment(at=its.at)),
            (Moment(cursor=mine.cursor), Moment(cursor=its.cursor)),
        ):
            told_here = await world.gateway.told_until(ours)
            told_there = await memory.told_until(theirs)
            assert [event.message_id for event in told_here] == [event.message_id for event in told_there]
    last = await world.gateway.told_until(Moment())
    assert [event.message_id for event in last] == ["nodes/node-1/8"]  # every job is over, and the node removed
    assert await world.gateway.told_until(Moment(at=1.0)) == []


async def test_a_job_that_was_submitted_by_a_clock_ahead_is_told_of_the_moments_between(world: World) -> None:
    """Its scheduler's clock is ten seconds behind the gateway's, and it has ended since."""
    lease = await world.lead()
    await world.gateway.submit(spec(), job_id="j-1", tenant="alice", key=None, at=AT + 10)
    (job,) = await world.scheduler.admit(lease, load=0, pool="default", limit=1)
    job = await go(world.scheduler, lease, job, JobEvent.CANCELLED, at=AT + 1)
    job = await go(world.scheduler, lease, job, JobEvent.REQUEUED, at=AT + 2)
    await go(world.scheduler, lease, job, JobEvent.CANCELLED, at=AT + 20)
    found = await world.gateway.told_until(Moment(at=AT + 5))
    assert [(event.subject_id, event.version) for event in found] == [("j-1", 1), ("j-1", 2), ("j-1", 3)]


async def test_what_was_sent_leaves_the_outbox_and_comes_back_when_asked(world: World) -> None:
    for number in range(4):
        await world.gateway.submit(spec(), job_id=f"j-{number}", tenant="alice", key=None, at=AT + number)
    every = await world.relay.unsent(limit=10)
    assert [unsent.event for unsent in every] == await world.gateway.events()
    assert await world.relay.unsent(limit=2) == every[:2]
    assert await world.relay.unsent_count() == len(every)
    await world.relay.sent([every[0], every[2], structs.replace(every[1], entry=999)])
    assert await world.relay.unsent(limit=10) == [every[1], every[3]]
    await world.relay.sent(every)
    assert await world.relay.unsent(limit=10) == []
    assert await world.relay.resend(since=AT + 2) == 2
    assert await world.relay.resend(since=AT + 1) == 1  # two are there already
    assert [unsent.event for unsent in await world.relay.unsent(limit=10)] == [unsent.event for unsent in every[1:]]


async def test_events_are_read_to_be_published_by_their_bytes_and_at_least_one_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        await world.gateway.submit(spec(), job_id=f"j-{number}", tenant="alice", key=None, at=AT + number)
    every = await world.relay.unsent(limit=10)
    of_two = sum(len(unsent.event.data) for unsent in every[:2])
    for at_most, count in ((1, 1), (of_two - 1, 2), (of_two, 2), (of_two + 1, 3), (10 * of_two, 4)):
        monkeypatch.setattr(memory_events, "UNSENT_BYTES_MAX", at_most)
        monkeypatch.setattr(postgres_events, "UNSENT_BYTES_MAX", at_most)
        assert await world.relay.unsent(limit=10) == every[:count], at_most


@pytest.mark.parametrize("seed", range(4))
async def test_tenants_events_are_published_in_turn_by_their_bytes(
    world: World, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """However large and old another tenant's events are: what has few bytes of its own tenant before it is in the next
    batch, with the oldest event of all. Each tenant's events keep their order."""
    of, bytes_max, tenants = random.Random(seed), 6000, ("alice", "bob", "carol")
    for module in (memory_events, postgres_events):
        monkeypatch.setattr(module, "UNSENT_BYTES_MAX", bytes_max)
    lease, jobs = await world.lead(), {}
    for tenant in tenants:
        await world.gateway.submit(spec(), job_id=f"j-{tenant}", tenant=tenant, key=None, at=AT)
        (jobs[tenant],) = await world.scheduler.admit(lease, load=0, pool="default", limit=10)
    for _ in range(50):
        tenant = of.choice(("alice", *tenants))
        letters = of.choice((4000, 9000, 90_000) if tenant == "alice" else (10, 100, 700))
        cause = Cause(code=CauseCode.NO_ROOM, sentence="x" * letters, numbers={"number": of.random()})
        jobs[tenant] = await go(world.scheduler, lease, jobs[tenant], JobEvent.WAITING, at=AT, cause=cause)
    waiting = await world.gateway.events()
    published: list[Event] = []
    while batch := await world.relay.unsent(limit=of.choice((20, 500))):
        events = [unsent.event for unsent in batch]
        assert waiting[0] in events
        assert sum(sorted(len(event.data) for event in events)[:-2]) < bytes_max
        up_to_it: Counter[str] = Counter()
        for event in waiting:
            up_to_it[event.tenant] += len(event.data)
            if up_to_it[event.tenant] < bytes_max / len(tenants):
                assert event in events
        await world.relay.sent(batch)
        published += events
        waiting = [event for event in waiting if event not in events]
    assert waiting == []
    for tenant in tenants:
        ids = [event.id for event in published if event.tenant == tenant]
        assert ids == sorted(set(ids))


async def test_another_stream_is_filled_once(world: World) -> None:
    for number in range(4):
        await world.gateway.submit(spec(), job_id=f"j-{number}", tenant="alice", key=None, at=AT + number)
    every = await world.relay.unsent(limit=10)
    await world.relay.sent(every[:3])
    assert await world.relay.fill_stream("first", since=AT + 1) == 2
    again = await world.relay.unsent(limit=10)
    assert [unsent.event for unsent in again] == [unsent.event for unsent in every[1:]]
    await world.relay.sent(every)
    assert await world.relay.unsent(limit=10) == again  # each has an entry of its own now
    await world.relay.sent(again)
    assert await world.relay.fill_stream("first", since=AT) == 0
    assert await world.relay.unsent_count() == 0
    assert await world.relay.fill_stream("second", since=AT + 3) == 1
    assert await world.relay.fill_stream("first", since=AT) == 3  # one of them waits already
    assert await world.relay.unsent_count() == 4


async def test_what_is_told_sent_after_events_came_back_takes_none_of_them_out(world: World) -> None:
    """Neither one that came back nor one that waited all along, however old: both are published again."""
    for number in range(3):
        await world.gateway.submit(spec(), job_id=f"j-{number}", tenant="alice", key=None, at=AT + number)
    every = await world.relay.unsent(limit=10)
    await world.relay.sent(every[2:])
    assert await world.relay.resend(since=AT + 1) == 1
    await world.relay.sent(every)
    again = await world.relay.unsent(limit=10)
    assert [unsent.event for unsent in again] == [unsent.event for unsent in every]
    await world.relay.sent(again)
    assert await world.relay.unsent(limit=10) == []
