"""Carries events from the outbox to the stream. One published twice is recognised by its id; none is skipped."""

import logging
from collections.abc import Callable

import msgspec

from libs.bus import Bus, NoAnswerError
from libs.bus import Event as Told
from libs.messages.events import Event, cloud_event
from libs.store import RelayStore

logger = logging.getLogger(__name__)

BATCH = 500
KEPT_SECONDS = 24 * 3600.0  # as long as the stream keeps events


class Relay:
    def __init__(self, *, store: RelayStore, bus: Bus, clock: Callable[[], float]) -> None:
        self._store = store
        self._bus = bus
        self._clock = clock
        self._stream_known = False

    async def turn(self) -> None:
        """Publish what waits, oldest first. Raises NoAnswerError while the stream cannot be reached."""
        if not self._stream_known:
            await self._find_stream()
        while events := await self._store.unsent(limit=BATCH):
            try:
                await self._bus.emit([_told(event) for event in events])
            except NoAnswerError:
                self._stream_known = False  # it may be gone, and then what it had is published again
                raise
            await self._store.sent([event.id for event in events])
            if len(events) < BATCH:
                return

    async def _find_stream(self) -> None:
        if await self._bus.ensure_stream():
            again = await self._store.resend(since=self._clock() - KEPT_SECONDS)
            if again:
                logger.warning("the stream of events was empty: publishing them again", extra={"events": again})
        self._stream_known = True


def _told(event: Event) -> Told:
    return Told(
        subject=event.subject,
        id=event.message_id,
        payload=msgspec.json.encode(cloud_event(event)),
        headers={"Content-Type": "application/cloudevents+json"},
    )
