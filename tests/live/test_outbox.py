"""The relay on a real NATS: every event of the store is in the stream, also after the stream was lost."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import nats
import pytest
from msgspec import structs

from tests.support.builders import node, spec
from tests.support.doubles.store import MemoryStore
from tests.support.nats_server import NatsServer
from tests.support.proxy import Proxy
from tests.support.steps import go, placement
from weft.bus import NoAnswerError
from weft.bus.nats import NatsBus
from weft.domain.job import Cause, CauseCode, JobEvent
from weft.messages.asks import OutboxFilled
from weft.store import StoreUnavailableError, Unsent
from weftd.scheduler.outbox import LOOK_SECONDS, OutboxPublisher

NOW = 1000.0


async def stored(url: str) -> list[str]:
    """The ids of what the stream has, in order."""
    client = await nats.connect(url)
    try:
        stream = client.jetstream()
        messages = (await stream.stream_info("WEFT_EVENTS")).state.messages
        found = [await stream.get_msg("WEFT_EVENTS", seq) for seq in range(1, messages + 1)]
        return [(message.headers or {})["Nats-Msg-Id"] for message in found]
    finally:
        await client.close()


async def submit(store: MemoryStore, job_id: str) -> None:
    await store.submit(spec(), job_id=job_id, tenant="alice", key=None, at=NOW)


async def cycle(outbox: OutboxPublisher) -> None:
    """As the scheduler's loop does: what failed is tried again."""
    try:
        await outbox.cycle()
    except NoAnswerError:
        await outbox.cycle()


async def test_events_are_published_once_and_leave_the_outbox(tmp_path: Path) -> None:
    server, store = NatsServer(tmp_path), MemoryStore()
    try:
        async with NatsBus.connect(server.url, name="relay") as bus:
            outbox = OutboxPublisher(store=store, bus=bus, clock=lambda: NOW)
            await submit(store, "j-1")
            await outbox.cycle()
            await outbox.cycle()
            assert await stored(server.url) == ["jobs/j-1/1"]
            assert await store.unsent(limit=10) == []
    finally:
        server.stop()


@pytest.mark.parametrize("how", ["the stream is deleted", "the server loses its storage"])
async def test_a_stream_that_was_lost_is_filled_again_from_the_store(tmp_path: Path, how: str) -> None:
    server, store = NatsServer(tmp_path), MemoryStore()
    try:
        async with NatsBus.connect(server.url, name="relay") as bus:
            outbox = OutboxPublisher(store=store, bus=bus, clock=lambda: NOW)
            await submit(store, "j-1")
            await outbox.cycle()
            if how == "the stream is deleted":
                client = await nats.connect(server.url)
                await client.jetstream().delete_stream("WEFT_EVENTS")
                await client.close()
            else:
                server.kill()
                shutil.rmtree(tmp_path / "jetstream")
                server.start()
            await submit(store, "j-2")
            await cycle(outbox)
            assert sorted(await stored(server.url)) == ["jobs/j-1/1", "jobs/j-2/1"]
    finally:
        server.stop()


@pytest.mark.parametrize("full", ["before there is a stream", "when there is one"])
async def test_while_the_stream_has_no_room_events_wait_in_the_outbox(tmp_path: Path, full: str) -> None:
    """And nothing else suffers: the bus goes on, and they are published once there is room."""
    server, store = NatsServer(tmp_path, file_store="" if full == "when there is one" else "1MB"), MemoryStore()
    heard = asyncio.Event()

    async def hear(_: OutboxFilled) -> None:
        heard.set()

    try:
        async with NatsBus.connect(server.url, name="relay") as bus:
            outbox = OutboxPublisher(store=store, bus=bus, clock=lambda: NOW)
            if full == "when there is one":
                await submit(store, "j-0")
                await outbox.cycle()
                server.kill()
                server.start(file_store="1")
            for number in range(1, 4):
                await submit(store, f"j-{number}")
                with pytest.raises(NoAnswerError):
                    await outbox.cycle()
                assert outbox.waiting == await store.unsent_count() == number
            await bus.subscribe(OutboxFilled, hear)
            await bus.publish(OutboxFilled())
            async with asyncio.timeout(5):
                await heard.wait()
            server.kill()
            server.start()
            await cycle(outbox)
            assert outbox.waiting == await store.unsent_count() == 0
            assert len(await stored(server.url)) == (4 if full == "when there is one" else 3)
    finally:
        server.stop()


async def test_a_stream_is_filled_again_although_that_failed_once(tmp_path: Path) -> None:
    """The store was away between finding that the stream is gone and publishing again: found in virtual time."""

    class Flaky(MemoryStore):
        fails = True

        async def fill_stream(self, stream_id: str, *, since: float) -> int:
            if self.fails:
                self.fails = False
                raise StoreUnavailableError("the store is away")
            return await super().fill_stream(stream_id, since=since)

    server, store = NatsServer(tmp_path), Flaky()
    try:
        async with NatsBus.connect(server.url, name="relay") as bus:
            await submit(store, "j-1")
            await store.sent(await store.unsent(limit=10))  # a stream had it, and is gone
            with pytest.raises(StoreUnavailableError):
                await OutboxPublisher(store=store, bus=bus, clock=lambda: NOW).cycle()
            await OutboxPublisher(store=store, bus=bus, clock=lambda: NOW).cycle()
            assert await stored(server.url) == ["jobs/j-1/1"]
    finally:
        server.stop()


async def test_over_a_slow_link_events_get_through_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once would never be done within the time that one try has."""
    monkeypatch.setattr("weft.bus.nats_stream.STORE_SECONDS_MAX", 0.5)
    server, store, events, failed = NatsServer(tmp_path), MemoryStore(), 200, 0
    try:
        async with (
            Proxy(server.port) as link,
            NatsBus.connect(f"nats://127.0.0.1:{link.port}", name="relay") as bus,
        ):
            outbox = OutboxPublisher(store=store, bus=bus, clock=lambda: NOW)
            await outbox.cycle()
            for number in range(events):
                await submit(store, f"j-{number}")
            link.slow(bytes_per_second=100_000)
            async with asyncio.timeout(60):
                while await store.unsent_count():
                    try:
                        await outbox.cycle()
                    except NoAnswerError:
                        failed += 1
            link.mend()
            assert failed, "the link was not slow"
            assert len(set(await stored(server.url))) == len(await stored(server.url)) == events
    finally:
        server.stop()


async def test_a_stream_that_is_lost_while_nothing_happens_is_filled_again(tmp_path: Path) -> None:
    now = NOW
    server, store = NatsServer(tmp_path), MemoryStore()
    try:
        async with NatsBus.connect(server.url, name="relay") as bus:
            outbox = OutboxPublisher(store=store, bus=bus, clock=lambda: now)
            await submit(store, "j-1")
            await outbox.cycle()
            client = await nats.connect(server.url)
            await client.jetstream().delete_stream("WEFT_EVENTS")
            await client.close()
            now += LOOK_SECONDS
            await outbox.cycle()
            assert await stored(server.url) == ["jobs/j-1/1"]
    finally:
        server.stop()


async def test_an_event_that_nats_does_not_take_is_told_in_short_and_holds_up_no_other(tmp_path: Path) -> None:
    """It ended the scheduler that published it, and each that tried after it: no event was told any more."""
    server, store = NatsServer(tmp_path), MemoryStore()
    try:
        async with NatsBus.connect(server.url, name="relay") as bus:
            outbox = OutboxPublisher(store=store, bus=bus, clock=lambda: NOW)
            lease = await store.take_lease("default", holder="me", seen=None)
            assert lease is not None
            await store.save_node(lease, node("node-1"), event="joined", cause="joined")
            await submit(store, "j-large")
            (job,) = await store.admit(lease, load=0, pool="default", limit=10)
            where = structs.replace(placement(("node-1", 0)), why="x" * (9 << 20))
            await go(store, lease, job, JobEvent.PLACED, at=NOW, placement=where)
            await submit(store, "j-after")
            await outbox.cycle()
            assert await stored(server.url) == ["nodes/node-1/1", "jobs/j-large/1", "jobs/j-large/2", "jobs/j-after/1"]
            assert await store.unsent(limit=10) == []
            client = await nats.connect(server.url)
            message = await client.jetstream().get_msg("WEFT_EVENTS", 3)
            await client.close()
            told = msgspec.json.decode(message.data or b"")
            assert told["type"] == "weft.jobs.placed"
            assert "placement" not in told["data"]
            assert told["data"]["state"] == "placed"
    finally:
        server.stop()


async def test_another_tenants_event_is_published_with_the_first_batch_of_one_tenants_large_events(
    tmp_path: Path,
) -> None:
    """40 events of 900 KB filled the client, which refused the rest: the relay took that for a stream that is away, and
    paused again and again while the events of all tenants waited."""
    server, batches = NatsServer(tmp_path), list[list[str]]()

    class Watched(MemoryStore):
        async def sent(self, published: Sequence[Unsent]) -> None:
            batches.append([unsent.event.message_id for unsent in published])
            await super().sent(published)

    store = Watched()
    try:
        async with NatsBus.connect(server.url, name="relay") as bus:
            lease = await store.take_lease("default", holder="me", seen=None)
            assert lease is not None
            await submit(store, "j-large")
            (job,) = await store.admit(lease, load=0, pool="default", limit=10)
            for number in range(40):
                cause = Cause(code=CauseCode.NO_ROOM, sentence=f"{number}" + "x" * 900_000)
                job = await go(store, lease, job, JobEvent.WAITING, at=NOW, cause=cause)
            await store.submit(spec(), job_id="j-bob", tenant="bob", key=None, at=NOW)
            await OutboxPublisher(store=store, bus=bus, clock=lambda: NOW).cycle()
            assert not bus.counts
            assert "jobs/j-bob/1" in batches[0]
            large = [one for batch in batches for one in batch if one != "jobs/j-bob/1"]
            assert large == [f"jobs/j-large/{version}" for version in range(1, 42)]
            assert len(set(await stored(server.url))) == 42
    finally:
        server.stop()
