"""Publishes the events of the outbox on the stream. An id marks an event published twice; no event is skipped."""

import logging
from collections.abc import Callable

import msgspec

from weft.bus import Bus, NoAnswerError, StreamEvent
from weft.messages.events import Event, cloud_event, in_short
from weft.store import UNSENT_BYTES_MAX, RelayStore

logger = logging.getLogger(__name__)

BATCH = 500
EVENT_BYTES_MAX = 6 << 20  # NATS takes 8 MB; of a larger event the details are left out, so that it delays no other
LOOK_SECONDS = 10.0  # between two checks for the stream: without events to publish its loss would go unnoticed
KEPT_SECONDS = 24 * 3600.0  # as long as the stream keeps events


class OutboxPublisher:
    """`waiting`: how many events the last try could not publish."""

    def __init__(self, *, store: RelayStore, bus: Bus, clock: Callable[[], float]) -> None:
        self._store = store
        self._bus = bus
        self._clock = clock
        self._known_until: float | None = None  # until then the stream is assumed to exist
        self._batch = BATCH
        self.waiting = 0

    async def cycle(self) -> None:
        """Publish waiting events, oldest first. Raises NoAnswerError while the stream takes none: events wait then."""
        try:
            await self._carry()
        except NoAnswerError:
            self.waiting = await self._store.unsent_count()
            raise
        self.waiting = 0

    async def _carry(self) -> None:
        if self._known_until is None or self._clock() >= self._known_until:
            await self._find_stream()
        while waiting := await self._store.unsent(limit=self._batch):
            try:
                await self._bus.emit([_told(unsent.event) for unsent in waiting])
            except NoAnswerError:
                self._known_until = None  # the stream may be gone, and then its events are published again
                self._batch = max(1, len(waiting) // 2)  # or it may be slow: a smaller batch is done in time
                raise
            await self._store.sent(waiting)
            size = sum(len(unsent.event.data) for unsent in waiting)
            is_last = len(waiting) < self._batch and size < UNSENT_BYTES_MAX
            self._batch = min(BATCH, self._batch * 2)
            if is_last:
                return

    async def _find_stream(self) -> None:
        stream_id = await self._bus.ensure_stream()
        again = await self._store.fill_stream(stream_id, since=self._clock() - KEPT_SECONDS)
        if again:
            logger.warning("the stream of events is another: publishing them again", extra={"events": again})
        self._known_until = self._clock() + LOOK_SECONDS


def _told(event: Event) -> StreamEvent:
    payload = msgspec.json.encode(cloud_event(event))
    if len(payload) > EVENT_BYTES_MAX:
        payload = msgspec.json.encode(cloud_event(in_short(event)))
    return StreamEvent(
        subject=event.subject,
        id=event.message_id,
        payload=payload,
        headers={"Content-Type": "application/cloudevents+json"},
    )
