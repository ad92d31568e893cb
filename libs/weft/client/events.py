"""Requests for events: the story of one job, or what happens in the cluster."""

from collections.abc import AsyncGenerator

import msgspec

from weft.client.errors import Refused
from weft.client.http import data_of
from weft.client.paths import job_path, without_empty
from weft.client.wire import Wire, worth_another
from weft.domain.job import FINAL
from weft.messages.http import EventView

PAGE_MAX = 1000
FINAL_EVENTS = frozenset(f"weft.jobs.{state}" for state in FINAL)


class EventRequests:
    """The part of a client that reads events."""

    _wire: Wire

    async def story(self, job: str, *, limit: int | None = None) -> tuple[EventView, ...]:
        """Every event of a job so far, or the newest `limit`, in order."""
        newest = {} if limit is None else {"before": "now", "limit": str(min(limit, PAGE_MAX))}
        return await self._pages(job_path(job, "/events"), newest, newest=limit is not None, limit=limit)

    async def events(self, *, after: str = "", limit: int = 100) -> tuple[EventView, ...]:
        """The newest events, or the first behind the cursor `after`, in order."""
        query = without_empty({"after": after, "limit": str(min(limit, PAGE_MAX))})
        return await self._pages("/v1/events", query, newest=not after, limit=limit)

    async def _pages(
        self, path: str, query: dict[str, str], *, newest: bool, limit: int | None
    ) -> tuple[EventView, ...]:
        """The events of each page, up to `limit`. The gateway ends a page early where its events are large. `newest`:
        each page lies before the last one."""
        found: list[EventView] = []
        while True:
            page, query = await self._wire.page(path, tuple[EventView, ...], query=query)
            found = [*page, *found] if newest else [*found, *page]
            if not query or (limit is not None and len(found) >= limit):
                break
        if limit is None or len(found) <= limit:
            return tuple(found)
        return tuple(found[-limit:] if newest else found[:limit])

    async def follow_events(self, *, job: str = "", after: str = "") -> AsyncGenerator[EventView, None]:
        """Events as they happen, of one job (from its first; ends after it is over) or of all (from now).

        `after` is the cursor of an event to go on from. Survives a restart of the gateway without loss or repeat.
        """
        path = job_path(job, "/events") if job else "/v1/events"
        retrying = self._wire.retrying()
        over = False
        while True:
            broken: BaseException = ConnectionError("the stream ended")
            try:
                headers = {"Accept": "text/event-stream", **({"Last-Event-ID": after} if after else {})}
                async with self._wire.stream(path, query={}, headers=headers) as response:
                    if response.status == 204:
                        return
                    retrying.connected()
                    async for data in data_of(response.pieces()):
                        event = msgspec.json.decode(data, type=EventView)
                        after = event.cursor
                        retrying.succeeded()
                        over = bool(job) and event.type in FINAL_EVENTS
                        yield event
                if over:
                    return  # The stream of a job that is put back into the queue after its end goes on.
            except OSError as error:
                broken = error
            except Refused as error:
                broken = worth_another(error)
            await retrying.pause(broken)
