"""`GET /v1/queue`: the jobs that wait, in the order in which they are served, by parts; and others on request."""

from aiohttp import web

from weftd.gateway.errors import RejectedError
from weftd.gateway.jobs import states_of
from weftd.gateway.queue_lines import WAITS, QueueQuery
from weftd.gateway.route import JSON, Call


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
