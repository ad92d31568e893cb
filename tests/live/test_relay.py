"""The relay on a real NATS: every event of the store is in the stream, also after the stream was lost."""

import shutil
from pathlib import Path

import nats
import pytest

from libs.bus import NoAnswerError
from libs.bus.nats import NatsBus
from libs.store.memory import MemoryStore
from services.scheduler.relay import Relay
from tests.support.builders import spec
from tests.support.nats_server import NatsServer

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


async def turn(relay: Relay) -> None:
    """As the scheduler's loop does: what failed is tried again."""
    try:
        await relay.turn()
    except NoAnswerError:
        await relay.turn()


async def test_events_are_published_once_and_leave_the_outbox(tmp_path: Path) -> None:
    server, store = NatsServer(tmp_path), MemoryStore()
    try:
        async with NatsBus.connect(server.url, name="relay") as bus:
            relay = Relay(store=store, bus=bus, clock=lambda: NOW)
            await submit(store, "j-1")
            await relay.turn()
            await relay.turn()
            assert await stored(server.url) == ["jobs/j-1/1"]
            assert await store.unsent(limit=10) == []
    finally:
        server.stop()


@pytest.mark.parametrize("how", ["the stream is deleted", "the server loses its storage"])
async def test_a_stream_that_was_lost_is_filled_again_from_the_store(tmp_path: Path, how: str) -> None:
    server, store = NatsServer(tmp_path), MemoryStore()
    try:
        async with NatsBus.connect(server.url, name="relay") as bus:
            relay = Relay(store=store, bus=bus, clock=lambda: NOW)
            await submit(store, "j-1")
            await relay.turn()
            if how == "the stream is deleted":
                client = await nats.connect(server.url)
                await client.jetstream().delete_stream("WEFT_EVENTS")
                await client.close()
            else:
                server.kill()
                shutil.rmtree(tmp_path / "jetstream")
                server.start()
            await submit(store, "j-2")
            await turn(relay)
            assert sorted(await stored(server.url)) == ["jobs/j-1/1", "jobs/j-2/1"]
    finally:
        server.stop()
