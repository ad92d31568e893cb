"""`GET /v1/queue`: the jobs that wait, in the order in which they are served, by parts; and others on request."""

from aiohttp import web

from weft.messages.live import QueueView
from weftd.gateway.api.jobs import states_of
from weftd.gateway.errors import RejectedError
from weftd.gateway.http.route import JSON, Call, RouteAnswer, operation
from weftd.gateway.readmodel.queue_lines import WAITS, QueueQuery


@operation(
    "GET /v1/queue",
    "cluster",
    "The queue, in the order in which it is served",
    description="Every job with its place, and why it waits. Jobs that the caller may not see are counted in the"
    " places, and not shown. A reply is at most 200 kB: where rows are long there are fewer than `limit`.",
    answers={200: RouteAnswer(description="A part of it.", type=QueueView)},
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
