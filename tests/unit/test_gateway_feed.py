"""The feed of events: each reader gets each event once, in order, however slow it is."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from libs.messages.events import Event
from libs.store.memory import MemoryStore
from services.gateway.feed import EventTold, Feed
from tests.support.builders import spec

BEAT = 0.2


async def submit(store: MemoryStore, *job_ids: str, tenant: str = "alice") -> None:
    for job_id in job_ids:
        await store.submit(spec(), job_id=job_id, tenant=tenant, key=None, at=1.0)


@asynccontextmanager
async def feeding(store: MemoryStore, *, waiting_max: int = 100) -> AsyncIterator[Feed]:
    feed = Feed(store, waiting_max=waiting_max)
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
        await feed.hear(EventTold(id="jobs/a/1"))
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
                await feed.hear(EventTold(id=name))
                if name.endswith("5"):
                    await asyncio.sleep(0.05)
            while len(found) < len(names):
                found += [item.event.subject_id for item in await anext(batches)]
    assert found == names


async def test_the_feed_rests_while_nobody_reads_and_wakes_again() -> None:
    store = MemoryStore()
    async with feeding(store) as feed:
        for name in ("a", "b"):
            reading = asyncio.create_task(read(feed, 1))
            await asyncio.sleep(0.05)
            await submit(store, name)
            await feed.hear(EventTold(id=name))
            assert await reading == [name]
