"""The feed of events: each reader gets each event once, in order, however slow it is."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, nullcontext
from typing import Any

import msgspec

from tests.support.builders import spec
from tests.support.doubles.bus import MemoryBus
from tests.support.doubles.store import MemoryStore
from weft.messages.events import Event, EventTold
from weft.store import StoreUnavailableError
from weftd.gateway.limits.concurrency import ConcurrencyLimit
from weftd.gateway.readmodel.feed import CATCHING_UP_PER_TENANT, WAITING_BYTES_MAX, Feed, Item, Reader
from weftd.scheduler.outbox import OutboxPublisher

BEAT = 0.2
SUBMITTED = "weft.jobs.submitted"


async def submit(store: MemoryStore, *job_ids: str, tenant: str = "alice") -> None:
    for job_id in job_ids:
        await store.submit(spec(), job_id=job_id, tenant=tenant, key=None, at=1.0)


@asynccontextmanager
async def feeding(store: MemoryStore, *, waiting_max: int = 100) -> AsyncIterator[Feed]:
    feed = Feed(
        store,
        ConcurrencyLimit("reads", at_once=2, per_tenant=2),
        MemoryBus(),
        paying=lambda _: nullcontext(),
        waiting_max=waiting_max,
    )
    yield feed
    await feed.close()


async def read(feed: Feed, count: int, *, after: str = "", tenant: str | None = None, job_id: str = "") -> list[str]:
    """The jobs of the first `count` events."""

    def wants(event: Event) -> bool:
        return tenant is None or event.tenant == tenant

    found: list[str] = []
    async with (
        asyncio.timeout(10),
        aclosing(feed.follow(after=after, wants=wants, tenant=tenant, job_id=job_id, beat=BEAT)) as batches,
    ):
        async for items in batches:
            found += [item.event.subject_id for item in items]
            if len(found) >= count:
                break
    return found


async def test_a_reader_that_was_away_goes_on_behind_its_cursor() -> None:
    store = MemoryStore()
    await submit(store, "a", "b", "c", "d")
    events = await store.events()
    async with feeding(store) as feed:
        assert await read(feed, 2, after=events[1].cursor) == ["c", "d"]


async def test_readers_from_now_hear_what_comes_and_nothing_before() -> None:
    store = MemoryStore()
    await submit(store, "old")
    async with feeding(store) as feed:
        reading = [asyncio.create_task(read(feed, 2)), asyncio.create_task(read(feed, 1, tenant="bob"))]
        await asyncio.sleep(0.05)
        await submit(store, "a")
        await submit(store, "b", tenant="bob")
        await feed.hear(EventTold(id="jobs/a/1", type=SUBMITTED))
        assert await asyncio.gather(*reading) == [["a", "b"], ["b"]]


async def test_a_reader_that_is_too_slow_reads_the_store_and_misses_nothing() -> None:
    store = MemoryStore()
    await submit(store, "old")
    names = [f"j-{number:03}" for number in range(50)]
    async with feeding(store, waiting_max=5) as feed:
        batches = feed.follow(after="", wants=lambda _: True, tenant=None, beat=BEAT)
        async with aclosing(batches), asyncio.timeout(10):
            assert await anext(batches) == []  # It is there, and then takes nothing for a while.
            found: list[str] = []
            for name in names:
                await submit(store, name)
                await feed.hear(EventTold(id=name, type=SUBMITTED))
                if name.endswith("5"):
                    await asyncio.sleep(0.05)
            while len(found) < len(names):
                found += [item.event.subject_id for item in await anext(batches)]
    assert found == names


async def test_few_pages_of_a_tenant_are_in_memory_however_many_of_its_streams_catch_up() -> None:
    """Each slow stream held what it had read of the store: a tenant's 256 streams of large events filled the memory."""
    store = MemoryStore()
    await submit(store, "first", *(f"j-{number}" for number in range(5)))
    first = (await store.events())[0].cursor
    held, full = 0, asyncio.Event()

    async def take_one_page(feed: Feed, job_id: str) -> None:
        nonlocal held
        batches = feed.follow(after=first, wants=lambda _: True, tenant="alice", job_id=job_id, beat=60.0)
        async with aclosing(batches):
            await anext(batches)
            held += 1
            if held == CATCHING_UP_PER_TENANT:
                full.set()
            await asyncio.Event().wait()

    async with feeding(store) as feed, asyncio.timeout(10):
        jobs = ["", "j-0"] * 2 * CATCHING_UP_PER_TENANT
        tasks = [asyncio.create_task(take_one_page(feed, job_id)) for job_id in jobs]
        await full.wait()
        await submit(store, "b-1", tenant="bob")
        assert await read(feed, 1, after=first, tenant="bob") == ["b-1"]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    assert held == CATCHING_UP_PER_TENANT


def test_what_waits_for_a_reader_is_bounded_in_bytes() -> None:
    reader = Reader(lambda _: True, 4096)
    for number in range(100):
        event = Event(id=number, topic="jobs", event="updated", subject_id="j-1", version=number, at=1.0)
        reader.put(Item(msgspec.structs.replace(event, data=msgspec.Raw(b"x" * (WAITING_BYTES_MAX // 3)))))
    assert reader.behind
    assert reader.take() == []


async def test_the_feed_rests_while_nobody_reads_and_wakes_again() -> None:
    store = MemoryStore()
    async with feeding(store) as feed:
        for name in ("a", "b"):
            reading = asyncio.create_task(read(feed, 1))
            await asyncio.sleep(0.05)
            await submit(store, name)
            await feed.hear(EventTold(id=name, type=SUBMITTED))
            assert await reading == [name]


async def test_what_the_relay_tells_is_heard() -> None:
    bus, store = MemoryBus(), MemoryStore()
    heard = asyncio.Event()

    async def hear(_: EventTold) -> None:
        heard.set()

    await bus.subscribe(EventTold, hear)
    await submit(store, "a")
    await OutboxPublisher(store=store, bus=bus, clock=lambda: 1.0).cycle()
    async with asyncio.timeout(10):
        await heard.wait()
    assert not bus.counts


class AwayAndBack(MemoryStore):
    """Fails once, and is an older store then."""

    older: MemoryStore | None = None
    away = False

    async def events(self, **asked: Any) -> list[Event]:
        if self.away:
            self.away = False
            raise StoreUnavailableError("on purpose")
        return await (self.older or super()).events(**asked)


async def test_a_reader_hears_what_is_new_in_a_store_that_went_back_in_time() -> None:
    """One that stayed, and one that comes again with a cursor of the time that is lost."""
    store, older = AwayAndBack(), MemoryStore()
    await submit(store, "a", "b", "c", "d")
    await submit(older, "a")
    ahead = (await store.events())[-1].cursor
    async with feeding(store) as feed, asyncio.timeout(10), AsyncExitStack() as stack:
        readers = []
        for after in ("", ahead):
            batches = feed.follow(after=after, wants=lambda _: True, tenant=None, beat=BEAT)
            readers.append(await stack.enter_async_context(aclosing(batches)))
            assert await anext(readers[-1]) == []  # it is there
            if not after:
                store.older, store.away = older, True
                while store.away:
                    assert await anext(readers[0]) == []
                await feed.hear(EventTold(id="jobs/d/1", type=SUBMITTED))
                assert await anext(readers[0]) == []
        await submit(older, "e")
        await feed.hear(EventTold(id="jobs/e/1", type=SUBMITTED))
        for reader in readers:
            found: list[str] = []
            while not found:
                found = [item.event.subject_id for item in await anext(reader)]
            assert found == ["e"]
