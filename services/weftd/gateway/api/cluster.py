"""The cluster over HTTP: its live state, its queue, and the record of scheduling decisions."""

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from weft.domain.spec import TOKEN_PATTERN
from weft.messages.http import HistoryView, SpecificationsView
from weft.messages.live import LiveDelta, LiveSnapshot, QueueView
from weft.store import StoreUnavailableError
from weftd.gateway.api.events import HEARTBEAT, OPENING, SSE
from weftd.gateway.api.selected import states_of
from weftd.gateway.errors import RejectedError
from weftd.gateway.http.route import JSON, Audience, Call, RouteAnswer, answer, operation
from weftd.gateway.limits.streams import gone, write
from weftd.gateway.readmodel.queue_lines import WAITS, QueueQuery

PART_BYTES = 4 << 20
AFTER = r"^[0-9]{1,18}-[0-9]{1,9}$(?!\n)"  # an epoch and a number
JOBS = r"^([a-z0-9-]{1,63}(,[a-z0-9-]{1,63}){0,49})?$(?!\n)"


class LiveQuery(Struct, frozen=True, forbid_unknown_fields=True):
    follow: Annotated[bool, Meta(description="0: return only the snapshot, as JSON.")] = True


@operation(
    "GET /v1/live",
    "cluster",
    "The cluster live, on one stream",
    description="The first event is a `snapshot` (LiveSnapshot). After it, `delta` events list the changes (LiveDelta),"
    " at most four a second. A reader that is too slow gets a new snapshot instead of the missed deltas. Jobs of other"
    " tenants appear only as an id with the GPUs that they hold.",
    answers={
        200: RouteAnswer(
            description="The stream, or with `follow=0` the snapshot.",
            type=LiveSnapshot,
            streamed=(LiveSnapshot, LiveDelta),
            media=(SSE, JSON),
        )
    },
)
async def live(call: Call[LiveQuery]) -> web.StreamResponse:
    gateway, request = call.gateway, call.request
    if not call.query.follow:
        async with gateway.reading.one(call.who.tenant), gateway.live.reader(call.who) as reader:
            return web.Response(body=reader.snapshot(), content_type=JSON)
    response = web.StreamResponse(headers={"Content-Type": SSE, "Cache-Control": "no-store", "X-Accel-Buffering": "no"})
    call.turn.end()
    async with gateway.streams.one(call.who.tenant, request), gateway.live.reader(call.who) as reader:
        try:
            await response.prepare(request)
            await write(response, OPENING)
            while not gone(request):
                frames = await reader.frames(gateway.heartbeat_seconds)
                await write(response, frames or HEARTBEAT)
        except (ConnectionError, StoreUnavailableError):
            if request.transport is not None:
                request.transport.abort()
    return response


@operation(
    "GET /v1/queue",
    "cluster",
    "The queue, in the order in which it is served",
    description="Each waiting job with its place and the reason why it waits. Jobs that the caller may not see count in"
    " the places but are not listed. An answer has at most 200 kB, so it may have fewer rows than `limit`.",
    answers={200: RouteAnswer(description="A page of the queue.", type=QueueView)},
    example="?text=train&limit=20",
)
async def queue(call: Call[QueueQuery]) -> web.StreamResponse:
    gateway, query = call.gateway, call.query
    if not call.who.admin and query.tenant not in (None, call.who.tenant):
        raise RejectedError(403, "tenant", "a tenant sees its own jobs only")
    if query.label and not query.label.partition("=")[1]:
        raise RejectedError(400, "label", f"expected NAME=VALUE, not {query.label[:100]!r}")
    states = states_of(query.state) or WAITS
    async with gateway.reading.one(call.who.tenant):
        body = await gateway.lines.answer(call.who, query, states)
    return web.Response(body=body, content_type=JSON)


class HistoryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    pool: Annotated[str, Meta(pattern=TOKEN_PATTERN)] = "default"
    after: Annotated[str, Meta(pattern=AFTER, description="`after` of the previous page.")] = "0-0"
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000


@operation(
    "GET /v1/history",
    "cluster",
    "Recorded decisions of the scheduler and their inputs",
    description="Every stored record of a pool, in order, in pages. `weft replay` computes the decisions again.",
    who=Audience.ADMIN,
    answers={200: RouteAnswer(description="A page of the history.", type=HistoryView)},
    example="?pool=default",
)
async def history(call: Call[HistoryQuery]) -> web.StreamResponse:
    query = call.query
    epoch, _, number = query.after.partition("-")
    async with call.gateway.reading.one(call.who.tenant):
        records = await call.gateway.store.history(
            pool=query.pool, after=(int(epoch), int(number)), limit=query.limit, bytes_max=PART_BYTES
        )
    after = f"{records[-1].epoch}-{records[-1].number}" if records else ""
    return answer(HistoryView(pool=query.pool, records=tuple(records), after=after))


class SpecificationsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    jobs: Annotated[str, Meta(pattern=JOBS, description="Up to 50 ids of jobs, with commas between them.")] = ""


@operation(
    "GET /v1/history/specifications",
    "cluster",
    "Specifications of the jobs in the history",
    description="The records of the history refer to jobs by id. This returns the specifications, in pages.",
    who=Audience.ADMIN,
    answers={200: RouteAnswer(description="A page of specifications.", type=SpecificationsView)},
    example="?jobs=j-1,j-2",
)
async def specifications(call: Call[SpecificationsQuery]) -> web.StreamResponse:
    found = await call.gateway.store.specifications(call.query.jobs.split(","), bytes_max=PART_BYTES)
    return answer(SpecificationsView(specifications=found))
