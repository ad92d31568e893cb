"""The relay, of a store that does late what had no answer in time. On a real NATS: tests/live/test_relay.py."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest

from libs.bus.memory import MemoryBus
from libs.store import StoreUnavailableError, Unsent
from libs.store.memory import MemoryStore
from services.scheduler.relay import LOOK_SECONDS, Relay
from tests.support.builders import spec

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

    async def resend(self, *, since: float) -> int:
        again = await super().resend(since=since)
        if self._landing is not None and not self.landed:
            await self._landing()
            self.landed = True
        return again


async def test_events_that_came_back_are_published_although_the_outbox_hears_late_that_they_were() -> None:
    now, store, bus = NOW, LateStore(), MemoryBus()
    await store.submit(spec(), job_id="j-1", tenant="alice", key=None, at=NOW)
    relay = Relay(store=store, bus=bus, clock=lambda: now)
    with pytest.raises(StoreUnavailableError):
        await relay.turn()
    bus.events = None  # the stream is lost, with what it had
    now += LOOK_SECONDS
    await relay.turn()
    assert store.landed
    assert [event.id for event in bus.events or []] == ["jobs/j-1/1"]
    assert await store.unsent(limit=10) == []
