"""Events: a list of CloudEvents, or a stream of them in which each event has its cursor."""

import re
from collections.abc import Callable
from contextlib import aclosing
from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from libs.domain.job import FINAL
from libs.messages.events import Event
from libs.store import StoreUnavailableError
from services.gateway.errors import RejectedError
from services.gateway.feed import Item, told
from services.gateway.revalidation import next_page
from services.gateway.route import Call, answer
from services.gateway.streams import gone, write

CURSOR = re.compile(r"[0-9]{1,18}-[0-9]{1,18}")
NOW = "now"
FIRST = "0-0"  # before all events
SSE = "text/event-stream"
FINAL_EVENTS = frozenset(state.value for state in FINAL)
OPENING = b"retry: 1000\n\n"
HEARTBEAT = b": beat\n\n"

Cursor = Annotated[str, Meta(description="Only events behind this one: its `cursor`; or `now`.")]
Follow = Annotated[bool, Meta(description="Stream them as they happen; `Accept: text/event-stream` says the same.")]
Limit = Annotated[int, Meta(ge=1, le=1000)]


class EventsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    after: Cursor = ""
    follow: Follow = False
    limit: Limit = 100


class StoryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    after: Cursor = ""
    follow: Follow = False


async def all_events(call: Call[EventsQuery]) -> web.StreamResponse:
    """The newest events, or those behind `after`; as a stream: from now, or from behind `after`."""
    tenant = None if call.who.admin else call.who.tenant
    after = await _after(call, call.query.after, tenant=tenant)
    if not _is_stream(call.request, follow=call.query.follow):
        async with call.gateway.reading.one(call.who.tenant):
            events = await call.gateway.store.events(
                after=after, tenant=tenant, newest=not after, limit=call.query.limit
            )
        behind = events[-1].cursor if after and len(events) == call.query.limit else None
        return answer([told(event) for event in events], headers=next_page(call.request, after=behind))
    return await _stream(call, after=after, wants=lambda event: tenant is None or event.tenant == tenant)


async def job_events(call: Call[StoryQuery]) -> web.StreamResponse:
    """A job's story. As a stream it goes on with new events, and ends after the job is over."""
    after = await _after(call, call.query.after, tenant=None if call.who.admin else call.who.tenant)
    job = await call.gateway.job(call.who, call.path("job"))
    if not _is_stream(call.request, follow=call.query.follow):
        async with call.gateway.reading.one(call.who.tenant):
            story = await call.gateway.store.story(job.id)
        return answer([told(event) for event in story if not after or _place(event.cursor) > _place(after)])
    if job.state in FINAL and after:
        story = await call.gateway.store.story(job.id)
        if story and _place(after) >= _place(story[-1].cursor):
            return web.Response(status=204)  # so that an EventSource does not reconnect
    return await _stream(
        call, after=after, job_id=job.id, wants=lambda event: event.subject_id == job.id and event.topic == "jobs"
    )


async def _stream(
    call: Call[EventsQuery] | Call[StoryQuery], *, after: str, wants: Callable[[Event], bool], job_id: str = ""
) -> web.StreamResponse:
    gateway, request = call.gateway, call.request
    response = web.StreamResponse(headers={"Content-Type": SSE, "Cache-Control": "no-store", "X-Accel-Buffering": "no"})
    events = gateway.feed.follow(
        after=after,
        wants=wants,
        tenant=None if call.who.admin else call.who.tenant,
        job_id=job_id,
        beat=gateway.heartbeat_seconds,
    )
    call.turn.end()
    with gateway.streams.one(call.who.tenant, request):
        try:
            await response.prepare(request)
            await write(response, OPENING)
            async with aclosing(events):
                async for items in events:
                    await gateway.lanes.write(call.who.tenant)
                    await write(response, _frames(items))
                    if (job_id and items and _is_over(items[-1])) or gone(request):
                        break
        except (ConnectionError, StoreUnavailableError):
            if request.transport is not None:
                request.transport.abort()
    return response


def _frames(items: list[Item]) -> bytes:
    return b"".join(item.frame for item in items) if items else HEARTBEAT


def _is_over(item: Item) -> bool:
    return item.event.event in FINAL_EVENTS


def _is_stream(request: web.Request, *, follow: bool) -> bool:
    return follow or SSE in request.headers.get("Accept", "")


async def _after(call: Call[EventsQuery] | Call[StoryQuery], asked: str, *, tenant: str | None) -> str:
    """The cursor to go on from: `Last-Event-ID`, which a reconnecting reader sends, is newer than the URL. `now` is
    that of the newest event which the caller may see."""
    given = call.request.headers.get("Last-Event-ID")
    cursor = given if given is not None else asked
    if cursor == NOW:
        newest = await call.gateway.store.events(tenant=tenant, newest=True, limit=1)
        return newest[-1].cursor if newest else FIRST
    if cursor and not CURSOR.fullmatch(cursor):
        raise RejectedError(400, "after" if given is None else "Last-Event-ID", "not the cursor of an event")
    return cursor


def _place(cursor: str) -> tuple[int, int]:
    xid, _, event_id = cursor.partition("-")
    return int(xid), int(event_id)
