"""Services: where their replicas are, and what they should run from now on."""

from aiohttp import web

from libs.messages.asks import AskKind
from libs.messages.http_services import UpdateWanted
from services.gateway.errors import RejectedError
from services.gateway.jobs import ask
from services.gateway.revalidation import tags_of
from services.gateway.route import Call, NoQuery, answer, json_of
from services.gateway.service_views import endpoints_view
from services.gateway.thinking.updating import check_update


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


async def update(call: Call[NoQuery]) -> web.StreamResponse:
    wanted = await json_of(call.request, UpdateWanted)
    found = await call.gateway.job(call.who, call.path("job"))
    admission = (await call.gateway.snapshots.nodes.get()).admission
    return await ask(call, AskKind.UPDATE, found, update=check_update(found, wanted, admission))
