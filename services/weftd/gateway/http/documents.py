"""The gateway's own documents: the dashboard, the OpenAPI description, its health."""

from typing import Any

from aiohttp import web

from weft.messages.http import Health
from weft.store import StoreUnavailableError
from weft.version import version
from weftd.gateway.face import Face
from weftd.gateway.http.route import JSON, Audience, Call, NoQuery, RouteAnswer, answer, operation

DOCUMENT_KEY = web.AppKey("document", bytes)
FACE_KEY = web.AppKey("face", Face)


@operation(
    "GET /v1/openapi.json",
    "about",
    "OpenAPI description",
    who=Audience.ANYONE,
    answers={200: RouteAnswer(description="An OpenAPI 3.1 document.", type=dict[str, Any])},
)
async def openapi(call: Call[NoQuery]) -> web.StreamResponse:
    headers = {"Access-Control-Allow-Origin": "*"}  # It is public: viewers on other sites may show it.
    return web.Response(body=call.request.app[DOCUMENT_KEY], content_type=JSON, headers=headers)


@operation(
    "GET /",
    "about",
    "The dashboard",
    description="A page for people that uses this API.",
    who=Audience.ANYONE,
    answers={200: RouteAnswer(description="The page.", type=str, media=("text/html",))},
)
async def dashboard(call: Call[NoQuery]) -> web.StreamResponse:
    return call.request.app[FACE_KEY].page(call.request)


async def of_dashboard(request: web.Request) -> web.StreamResponse:
    """A file of the dashboard; no operation of the API."""
    return request.app[FACE_KEY].file(request)


@operation(
    "GET /healthz",
    "about",
    "Liveness of the gateway",
    who=Audience.ANYONE,
    answers={200: RouteAnswer(description="The gateway runs.", type=Health)},
)
async def healthz(_: Call[NoQuery]) -> web.StreamResponse:
    return answer(Health(ok=True, version=version()))


@operation(
    "GET /readyz",
    "about",
    "Readiness of the gateway",
    who=Audience.ANYONE,
    answers={
        200: RouteAnswer(description="The gateway accepts jobs.", type=Health),
        503: RouteAnswer(description="The database does not answer, so the gateway accepts no jobs now.", type=Health),
    },
)
async def readyz(call: Call[NoQuery]) -> web.StreamResponse:
    """Ready even without the bus: jobs are stored, and the scheduler polls for them."""
    detail = {"store": "answers", "bus": "connected" if call.gateway.bus.connected else "away"}
    try:
        await call.gateway.snapshots.nodes.get()
    except StoreUnavailableError:
        return answer(Health(ok=False, version=version(), detail={**detail, "store": "away"}), status=503)
    return answer(Health(ok=True, version=version(), detail=detail))
