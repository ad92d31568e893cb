"""The gateway's own documents: the dashboard, the OpenAPI description, its health."""

from aiohttp import web

from weft.messages.http import Health
from weft.store import StoreUnavailableError
from weft.version import version
from weftd.gateway.face import Face
from weftd.gateway.route import JSON, Call, NoQuery, answer

DOCUMENT_KEY = web.AppKey("document", bytes)
FACE_KEY = web.AppKey("face", Face)


async def openapi(call: Call[NoQuery]) -> web.StreamResponse:
    headers = {"Access-Control-Allow-Origin": "*"}  # It is public: viewers on other sites may show it.
    return web.Response(body=call.request.app[DOCUMENT_KEY], content_type=JSON, headers=headers)


async def dashboard(call: Call[NoQuery]) -> web.StreamResponse:
    return call.request.app[FACE_KEY].page(call.request)


async def of_dashboard(request: web.Request) -> web.StreamResponse:
    """A file of the dashboard; no operation of the API."""
    return request.app[FACE_KEY].file(request)


async def healthz(_: Call[NoQuery]) -> web.StreamResponse:
    return answer(Health(ok=True, version=version()))


async def readyz(call: Call[NoQuery]) -> web.StreamResponse:
    """Ready without the bus too: jobs are stored all the same, and the scheduler polls for them."""
    detail = {"store": "answers", "bus": "connected" if call.gateway.bus.connected else "away"}
    try:
        await call.gateway.snapshots.nodes.get()
    except StoreUnavailableError:
        return answer(Health(ok=False, version=version(), detail={**detail, "store": "away"}), status=503)
    return answer(Health(ok=True, version=version(), detail=detail))
