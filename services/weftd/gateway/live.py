"""`GET /v1/live`: the cluster as a snapshot, and then what changes in it, on one stream for each page."""

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from weft.store import StoreUnavailableError
from weftd.gateway.events import HEARTBEAT, OPENING, SSE
from weftd.gateway.route import JSON, Call
from weftd.gateway.streams import gone, write


class LiveQuery(Struct, frozen=True, forbid_unknown_fields=True):
    follow: Annotated[bool, Meta(description="0: the snapshot alone, as JSON.")] = True


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
