"""`GET /v1/live`: the cluster as a snapshot, and then what changes in it, on one stream for each page."""

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from weft.messages.live import LiveDelta, LiveSnapshot
from weft.store import StoreUnavailableError
from weftd.gateway.api.events import HEARTBEAT, OPENING, SSE
from weftd.gateway.http.route import JSON, Call, RouteAnswer, operation
from weftd.gateway.limits.streams import gone, write


class LiveQuery(Struct, frozen=True, forbid_unknown_fields=True):
    follow: Annotated[bool, Meta(description="0: the snapshot alone, as JSON.")] = True


@operation(
    "GET /v1/live",
    "cluster",
    "The cluster live, on one stream",
    description="First `event: snapshot`, whose data are a LiveSnapshot; then `event: delta`, at most each quarter"
    " of a second, with what changed (LiveDelta). Another snapshot comes in place of deltas that a slow reader did"
    " not take. Of another tenant's job only the id is told, and the GPUs that it holds.",
    answers={
        200: RouteAnswer(
            description="The stream; or the snapshot alone.",
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
