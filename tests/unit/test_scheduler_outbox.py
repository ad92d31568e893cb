"""The relay, of a store that does late what had no answer in time. On a real NATS: tests/live/test_outbox.py."""

from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from functools import partial

import pytest

from tests.support.builders import spec
from tests.support.doubles.bus import MemoryBus
from tests.support.doubles.store import MemoryStore
from tests.support.doubles.store import events as memory_events
from weft.store import StoreUnavailableError, Unsent
from weftd.scheduler import outbox as relay_module
from weftd.scheduler.outbox import LOOK_SECONDS, OutboxPublisher

NOW = 1000.0


class LateStore(MemoryStore):
    """The first `sent` has no answer in time, and lands once events were put into the outbox again."""

    _landing: Callable[[], Awaitable[None]] | None = None
    landed = False

    async def sent(self, published: Sequence[Unsent]) -> None:
        if self._landing is None:
            self._landing = partial(super().sent, published)
            raise StoreUnavailableError("no answer in time")
        await super().sent(published)

    async def fill_stream(self, stream_id: str, *, since: float) -> int:
        again = await super().fill_stream(stream_id, since=since)
        if self._landing is not None and not self.landed:
            await self._landing()
            self.landed = True
        return again


async def test_events_that_came_back_are_published_although_the_outbox_hears_late_that_they_were() -> None:
    now, store, bus = NOW, LateStore(), MemoryBus()
    await store.submit(spec(), job_id="j-1", tenant="alice", key=None, at=NOW)
    relay = OutboxPublisher(store=store, bus=bus, clock=lambda: now)
    with pytest.raises(StoreUnavailableError):
        await relay.cycle()
    bus.events = None  # the stream is lost, with what it had
    now += LOOK_SECONDS
    await relay.cycle()
    assert store.landed
    assert [event.id for event in bus.events or []] == ["jobs/j-1/1"]
    assert await store.unsent(limit=10) == []


async def test_events_that_are_too_large_to_be_read_at_once_are_all_published_in_one_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (relay_module, memory_events):
        monkeypatch.setattr(module, "UNSENT_BYTES_MAX", 1)
    store, bus = MemoryStore(), MemoryBus()
    for number in range(5):
        await store.submit(spec(), job_id=f"j-{number}", tenant="alice", key=None, at=NOW)
    await OutboxPublisher(store=store, bus=bus, clock=lambda: NOW).cycle()
    assert [event.id for event in bus.events or []] == [f"jobs/j-{number}/1" for number in range(5)]
    assert await store.unsent(limit=10) == []


@pytest.mark.parametrize("copied", ["before the stream was lost", "after the new stream was made, and is not filled"])
async def test_a_stream_is_filled_although_the_store_comes_back_as_an_older_copy(copied: str) -> None:
    """What the copy says of its events holds for the stream that was there then."""
    now, store, bus = NOW, MemoryStore(), MemoryBus()
    relay = OutboxPublisher(store=store, bus=bus, clock=lambda: now)
    await store.submit(spec(), job_id="j-1", tenant="alice", key=None, at=NOW)
    await relay.cycle()
    copy = deepcopy(vars(store))
    bus.events = None
    if copied.startswith("after"):
        await bus.ensure_stream()
        copy = deepcopy(vars(store))
    now += LOOK_SECONDS
    await store.fill_stream(await bus.ensure_stream(), since=0.0)  # as another relay does, which then dies
    vars(store).update(copy)
    await relay.cycle()
    assert [event.id for event in bus.events or []] == ["jobs/j-1/1"]


async def test_a_copy_that_is_newer_than_the_filling_of_the_stream_fills_it_again() -> None:
    """Its stream was another: an older copy was there in between, and the new stream was filled from that."""
    now, store, bus = NOW, MemoryStore(), MemoryBus()
    relay = OutboxPublisher(store=store, bus=bus, clock=lambda: now)
    await relay.cycle()
    older = deepcopy(vars(store))
    await store.submit(spec(), job_id="j-1", tenant="alice", key=None, at=NOW)
    await relay.cycle()
    newer = deepcopy(vars(store))
    vars(store).update(older)
    bus.events = None
    now += LOOK_SECONDS
    await relay.cycle()
    assert bus.events == []
    vars(store).update(newer)
    now += LOOK_SECONDS
    await relay.cycle()
    assert [event.id for event in bus.events or []] == ["jobs/j-1/1"]
