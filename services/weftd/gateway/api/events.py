"""Events: a list of CloudEvents, or a stream of them in which each event has its cursor."""

import re
from collections.abc import Callable
from contextlib import aclosing
from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from weft.domain.job import FINAL
from weft.messages.events import Event
from weft.messages.http import EventView
from weft.store import StoreUnavailableError, is_full
from weftd.gateway.errors import RejectedError
from weftd.gateway.gateway import Gateway
from weftd.gateway.http.revalidation import next_page
from weftd.gateway.http.route import JSON, Call, Header, RouteAnswer, answer, operation
from weftd.gateway.limits.concurrency import NoSlotError
from weftd.gateway.limits.streams import gone, write
from weftd.gateway.readmodel.feed import Item, told

CURSOR = re.compile(r"[0-9]{1,18}-[0-9]{1,18}")
NOW = "now"
FIRST = "0-0"  # before all events
SSE = "text/event-stream"
LAST_EVENT = Header(name="Last-Event-ID", description="The `id` of the last received event: continue after it.")
EVENTS = {200: RouteAnswer(description="CloudEvents.", type=list[EventView], media=(JSON, SSE))}
FINAL_EVENTS = frozenset(state.value for state in FINAL)
OPENING = b"retry: 1000\n\n"
HEARTBEAT = b": beat\n\n"

Cursor = Annotated[str, Meta(description="Only events after this one: its `cursor`, or `now`.")]
Before = Annotated[
    str, Meta(description="The last events before this one: its `cursor`, or `now`. Not with `after` or a stream.")
]
Follow = Annotated[bool, Meta(description="Stream them as they happen; `Accept: text/event-stream` says the same.")]
Limit = Annotated[
    int,
    Meta(
        ge=1,
        le=1000,
        description="Maximum number of events. A page of large events has fewer, and a `Link` to the next page.",
    ),
]


class EventsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    after: Cursor = ""
    before: Before = ""
    follow: Follow = False
    limit: Limit = 100


class StoryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    after: Cursor = ""
    before: Before = ""
    follow: Follow = False
    limit: Limit = 1000


@operation(
    "GET /v1/events",
    "events",
    "List or stream events",
    description="The newest events, or those after a cursor. If there are more, `Link` has the next page. A stream"
    " begins now, or after a cursor. A tenant gets events of its own jobs, an administrator those of all jobs and"
    " nodes.",
    headers=(LAST_EVENT,),
    answers=EVENTS,
    example="?follow=1",
)
async def all_events(call: Call[EventsQuery]) -> web.StreamResponse:
    """A page of the newest events, or of those after `after`. A stream begins now, or after `after`."""
    tenant = None if call.who.admin else call.who.tenant
    after = await _after(call, tenant=tenant)
    if _is_stream(call.request, follow=call.query.follow):
        return await _stream(call, after=after, wants=lambda event: tenant is None or event.tenant == tenant)
    limit, newest = call.query.limit, not after
    async with call.gateway.reading.one(call.who.tenant):
        with call.gateway.cpu_budgets.elsewhere(call.who.tenant):
            page = await call.gateway.store.events(
                after=after, before=_before(call), tenant=tenant, newest=newest, limit=limit
            )
    return _answer(call, page, newest=newest)


@operation(
    "GET /v1/jobs/{job}/events",
    "jobs",
    "Event history of a job",
    description="Each event with its cause, from the first, or the last ones `before` a cursor. If there are more,"
    " `Link` has the next page. A stream (`Accept: text/event-stream`, or `follow=1`) continues until the job has"
    " ended.",
    headers=(LAST_EVENT,),
    answers={**EVENTS, 204: RouteAnswer(description="The job has ended and all events were sent: do not reconnect.")},
    example="?follow=1",
)
async def job_events(call: Call[StoryQuery]) -> web.StreamResponse:
    """A page of a job's event history. A stream continues with new events and ends after the job has ended."""
    after = await _after(call, tenant=None if call.who.admin else call.who.tenant)
    job = await call.gateway.job(call.who, call.path("job"))
    if not _is_stream(call.request, follow=call.query.follow):
        newest = bool(call.query.before)
        async with call.gateway.reading.one(call.who.tenant):
            with call.gateway.cpu_budgets.elsewhere(call.who.tenant):
                page = await call.gateway.store.story(
                    job.id, after=after, before=_before(call), newest=newest, limit=call.query.limit
                )
        return _answer(call, page, newest=newest)
    if job.state in FINAL and after and not await call.gateway.store.story(job.id, after=after, limit=1):
        return web.Response(status=204)  # so that an EventSource does not reconnect
    return await _stream(
        call, after=after, job_id=job.id, wants=lambda event: event.subject_id == job.id and event.topic == "jobs"
    )


def _answer(call: Call[EventsQuery] | Call[StoryQuery], page: list[Event], *, newest: bool) -> web.StreamResponse:
    """A page in the order of its events; the newest ones are followed by the page before them."""
    headers: dict[str, str] = {}
    if is_full(page, call.query.limit):
        way = {"before": page[0].cursor} if newest else {"after": page[-1].cursor}
        headers = next_page(call.request, **way)
    return answer([told(event) for event in page], headers=headers)


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
    async with gateway.streams.one(call.who.tenant, request):
        try:
            await response.prepare(request)
            await write(response, OPENING)
            async with aclosing(events):
                async for items in events:
                    await gateway.cpu_budgets.write(call.who.tenant)
                    await write(response, _frames(items))
                    if gone(request) or (job_id and items and await _ends(gateway, items[-1])):
                        break
        except (ConnectionError, StoreUnavailableError, NoSlotError):
            if request.transport is not None:
                request.transport.abort()
    return response


def _frames(items: list[Item]) -> bytes:
    return b"".join(item.frame for item in items) if items else HEARTBEAT


async def _ends(gateway: Gateway, last: Item) -> bool:
    """Return True if this event is the last of a job's history: the job has ended and was not requeued."""
    event = last.event
    over = event.event in FINAL_EVENTS
    return over and not await gateway.store.story(event.subject_id, after=event.cursor, limit=1)


def _is_stream(request: web.Request, *, follow: bool) -> bool:
    return follow or SSE in request.headers.get("Accept", "")


def _before(call: Call[EventsQuery] | Call[StoryQuery]) -> str:
    """The cursor before which to read; "" for the present end."""
    return "" if call.query.before == NOW else call.query.before


async def _after(call: Call[EventsQuery] | Call[StoryQuery], *, tenant: str | None) -> str:
    """The cursor from which to continue. `Last-Event-ID`, which a reconnecting reader sends, is newer than the URL.
    `now` stands for the newest event that the caller may see."""
    given, before = call.request.headers.get("Last-Event-ID"), call.query.before
    cursor = given if given is not None else call.query.after
    if before and not (before == NOW or CURSOR.fullmatch(before)):
        raise RejectedError(400, "before", "not the cursor of an event")
    if before and (cursor or _is_stream(call.request, follow=call.query.follow)):
        raise RejectedError(400, "before", "cannot be combined with `after` or a stream")
    if cursor == NOW:
        newest = await call.gateway.store.events(tenant=tenant, newest=True, limit=1)
        return newest[-1].cursor if newest else FIRST
    if cursor and not CURSOR.fullmatch(cursor):
        raise RejectedError(400, "after" if given is None else "Last-Event-ID", "not the cursor of an event")
    return cursor
