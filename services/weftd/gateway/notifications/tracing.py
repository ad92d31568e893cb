"""Sends a trace of each job that is over to a collector, by OTLP over HTTP.

Bounded, and lossy by design: a trace that cannot be sent is dropped, and jobs that end while no gateway has the duty
are not sent later.
"""

import asyncio
import logging

import msgspec

from weft.domain.job import FINAL
from weft.messages.events import Event, place_of
from weft.store import GatewayStore, StoreUnavailableError, is_full
from weftd.gateway.notifications.posting import Poster, PostError
from weftd.gateway.readmodel.event_history import story_pages
from weftd.gateway.thinking.notifications.spans import Trace

logger = logging.getLogger(__name__)

PAGE = 200
PAGES_MAX = 50  # in one go
_FINAL = frozenset(state.value for state in FINAL)
_HEADERS = {"Content-Type": "application/json"}


class Tracing:
    def __init__(self, store: GatewayStore, poster: Poster, url: str) -> None:
        self._store = store
        self._poster = poster
        self._url = f"{url.rstrip('/')}/v1/traces"
        self._after: str | None = None
        self.sent = 0
        self.lost = 0

    async def go_on(self, newest: str) -> None:
        """Send the traces of the jobs that ended since the last call; the first call sends none."""
        if self._after is None or place_of(self._after) > place_of(newest):  # the store came back as an older copy
            self._after = newest
            return
        try:
            for _ in range(PAGES_MAX):
                page = await self._store.events(after=self._after, limit=PAGE)
                for event in page:
                    if event.topic == "jobs" and event.event in _FINAL:
                        await self._send(event.subject_id)
                    self._after = event.cursor
                if not is_full(page, PAGE):
                    return
            self._after = newest  # too far behind
        except StoreUnavailableError as error:
            logger.info("traces wait for the store: %s", error)

    async def _send(self, job_id: str) -> None:
        trace: Trace | None = None
        async for page in story_pages(self._store, job_id):
            trace = await asyncio.to_thread(_taken, trace, page)
        if trace is None:
            return
        body = await asyncio.to_thread(lambda: msgspec.json.encode(trace.body()))
        try:
            status = await self._poster.post(self._url, body, _HEADERS)
            why = "" if 200 <= status < 300 else f"it answered {status}"
        except PostError as error:
            why = str(error)
        if why:
            self.lost += 1
            if self.lost & (self.lost - 1) == 0:  # the first, the second, the fourth, …
                logger.warning("%d traces were not sent, the last because: %s", self.lost, why)
        else:
            self.sent += 1


def _taken(trace: Trace | None, page: list[Event]) -> Trace:
    trace = trace or Trace(page[0])
    for event in page:
        trace.take(event)
    return trace
