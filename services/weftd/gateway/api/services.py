"""Services: where their replicas are, and what they should run from now on."""

import asyncio

from aiohttp import web
from msgspec import structs

from weft.messages.asks import AskKind
from weft.messages.http_services import EndpointsView, UpdateWanted
from weftd.gateway.allowances import NoRoomError
from weftd.gateway.api.jobs import ask
from weftd.gateway.errors import RejectedError
from weftd.gateway.http.revalidation import tags_of
from weftd.gateway.http.route import (
    ACCEPTED,
    LARGE_BYTES,
    Call,
    Header,
    NoQuery,
    RouteAnswer,
    answer,
    body_of,
    decoded,
    operation,
)
from weftd.gateway.limits.lanes import RECEIVED_SECONDS_PER_BYTE
from weftd.gateway.readmodel.service_views import endpoints_view
from weftd.gateway.registry.pinning import pinned_image
from weftd.gateway.thinking.updating import check_update


@operation(
    "GET /v1/jobs/{job}/endpoints",
    "services",
    "Where a service's replicas are",
    description="Every replica that listens, with its address, and the URL of the service at the router. For those"
    " who bring their own balancer: ask again with `If-None-Match`, or take `weft.endpoints.*` from NATS.",
    headers=(
        Header(name="If-None-Match", description="The `ETag` of an earlier answer."),
        Header(name="ETag", description="Another one whenever the answer is different.", of_answer=True),
    ),
    answers={
        200: RouteAnswer(description="All of them, by rank.", type=EndpointsView),
        304: RouteAnswer(description="As it was."),
    },
)
async def endpoints(call: Call[NoQuery]) -> web.StreamResponse:
    gateway = call.gateway
    found = await gateway.service(call.who, call.path("job"))
    if found.spec.service is None:
        raise RejectedError(409, "job", f"{found.id} serves no requests: its specification has no `service`")
    nodes = await gateway.snapshots.nodes.get()
    view = endpoints_view(found, {node.id: node for node in nodes.all}, gateway.cluster)
    headers = {"ETag": f'"{view.digest}"', "Cache-Control": "no-cache"}
    if view.digest in tags_of(call.request.headers.get("If-None-Match", "")):
        return web.Response(status=304, headers=headers)
    return answer(view, headers=headers)


@operation(
    "POST /v1/jobs/{job}/update",
    "services",
    "Change what a service runs",
    description="Another image, command or environment; what is not given stays as it is. Its replicas are replaced"
    " one by one, the new one first, as soon as each is ready. If no new one becomes ready, what ran before comes"
    " back: the job's event `updated` says so.",
    body=UpdateWanted,
    answers=ACCEPTED,
    example="""-d '{"image": "ghcr.io/ada/model:2"}'""",
)
async def update(call: Call[NoQuery]) -> web.StreamResponse:
    body = await body_of(call.request)
    call.gateway.lanes.charge(call.who.tenant, RECEIVED_SECONDS_PER_BYTE * len(body))
    if len(body) <= LARGE_BYTES:
        return await _update(call, body)
    async with call.gateway.submissions.large.one(call.who.tenant, patient=True):
        no_room = call.gateway.submissions.no_room
        await no_room.check(call.who, len(body))
        try:
            return await _update(call, body)
        except NoRoomError as error:
            await no_room.note(call.who, len(body), error)
            raise


async def _update(call: Call[NoQuery], body: bytes) -> web.StreamResponse:
    gateway = call.gateway
    wanted = await decoded(body, UpdateWanted)
    found = await gateway.job(call.who, call.path("job"))
    if wanted.image is not None:
        image = await pinned_image(gateway.registry, found.tenant, wanted.image, "image")
        wanted = structs.replace(wanted, image=image)
    admission = (await gateway.snapshots.nodes.get()).admission
    checked = await asyncio.to_thread(check_update, found, wanted, admission)
    return await ask(
        call, AskKind.UPDATE, found, update=checked.update, adds_bytes=checked.bytes_after, field=checked.largest
    )
