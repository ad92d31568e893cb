"""The HTTP application: the table of operations, the check of callers, and one form of errors.

Changes that only administrators may make, and those of secrets and webhooks, go into the audit log. An act is written
before it is executed, so that no act is missing in the log.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from aiohttp import web

from weft.domain.decoding.spec_decoder import SPEC_BYTES_MAX
from weft.messages.problems import PROBLEM
from weft.store import StoreUnavailableError
from weft.version import HEADER, version
from weftd.gateway.api.operations import OPERATIONS
from weftd.gateway.api.registry_api import registry_api
from weftd.gateway.documentation import DOCUMENTATION_KEY, Documentation, page_of_documentation
from weftd.gateway.errors import RejectedError, unavailable
from weftd.gateway.face import packaged
from weftd.gateway.gateway import Gateway
from weftd.gateway.http.documents import DOCUMENT_KEY, FACE_KEY, of_dashboard
from weftd.gateway.http.openapi import document
from weftd.gateway.http.revalidation import revalidated
from weftd.gateway.http.route import NOBODY, Audience, Call, Q, Route, body_of, check_length, query_of, refused
from weftd.gateway.limits.access import source_of
from weftd.gateway.limits.auditing import ACT_CHARACTERS
from weftd.gateway.limits.concurrency import NoSlotError, Slot
from weftd.gateway.limits.connections import HttpConnection
from weftd.gateway.limits.cookies import credentials

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
REFERENCE_CHARACTERS = 8
AUDITED_GROUPS = frozenset({"secrets", "webhooks"})
SHOWN_BODIES = frozenset({"TokenWanted", "TenantWanted", "QuotaWanted", "PersonWanted"})
"""The bodies that are written: all others may have a secret."""


def application(gateway: Gateway, *, operations: Sequence[Route[Any]] = OPERATIONS) -> web.Application:
    app = web.Application(client_max_size=SPEC_BYTES_MAX, middlewares=[_errors(gateway)])
    app.on_response_prepare.append(_tell_little)
    app[DOCUMENT_KEY] = msgspec.json.encode(document(operations))
    app[FACE_KEY] = packaged()
    app.router.add_get("/face/{digest}/{name:.+}", of_dashboard)
    app[DOCUMENTATION_KEY] = Documentation.packaged()
    app.router.add_get("/docs", page_of_documentation)
    app.router.add_get("/docs/{name:.*}", page_of_documentation)
    app.router.add_route("*", "/v2/{path:.*}", registry_api(gateway))
    for route in operations:
        app.router.add_route(
            route.method, route.path, _handler(gateway, route), expect_handler=_expected(route.body_bytes_max)
        )
    return app


async def _tell_little(request: web.Request, response: web.StreamResponse) -> None:
    """Name the version to clients of another one, hide the server's program, and forbid guessing another type."""
    response.headers["Server"] = "weft"
    response.headers[HEADER] = version()
    response.headers["X-Content-Type-Options"] = "nosniff"


def _handler(gateway: Gateway, route: Route[Any]) -> Handler:
    timed, is_written = gateway.meters.timed(f"{route.method} {route.path}"), _is_audited(route)

    async def handle(request: web.Request) -> web.StreamResponse:
        with timed():
            who, turn = NOBODY, Slot()
            if route.who is not Audience.ANYONE:
                who = await gateway.access.of(credentials(request), source=source_of(request.remote))
                if isinstance(request.protocol, HttpConnection):
                    request.protocol.let_in()
                gateway.count(who, changes=route.method != "GET")
                if refusal := refused(route, who):
                    await gateway.auditing.refused(request, who, refusal)
                    raise refusal
                await gateway.cpu_budgets.go(who.tenant)
                turn = await gateway.at_work.take(who.tenant)
            try:
                call = Call(gateway, request, who, query_of(request, route.query), turn)
                work = _audited(call, route) if is_written else route.handler(call)
                response = await (work if who is NOBODY else gateway.cpu_budgets.paid(who.tenant, work))
                return revalidated(request, response) if route.method == "GET" else response
            finally:
                turn.end()

    return handle


def _is_audited(route: Route[Any]) -> bool:
    return route.method != "GET" and (route.who in (Audience.ADMIN, Audience.OPERATOR) or route.group in AUDITED_GROUPS)


async def _audited(call: Call[Q], route: Route[Q]) -> web.StreamResponse:
    """Write the act to the log, then execute it. After StoreUnavailableError nothing was executed."""
    auditing, request = call.gateway.auditing, call.request
    auditing.count(call.who)
    actor, act = auditing.actor(request, call.who), f"{request.method} {request.path_qs}"[:ACT_CHARACTERS]
    shown = getattr(route.body, "__name__", "") in SHOWN_BODIES
    await auditing.asked(actor, act, (await body_of(request)).decode(errors="replace") if shown else "")
    try:
        return await route.handler(call)
    except RejectedError as error:
        await auditing.refusal(actor, act, error)
        raise


def _errors(gateway: Gateway) -> Any:
    @web.middleware
    async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = request.protocol if isinstance(request.protocol, HttpConnection) else None
        if connection is not None:
            connection.asked()
        try:
            return await handler(request)
        except ConnectionError:
            raise  # The client has gone.
        except Exception as error:
            refusal = _refusal_of(gateway, request, error)
            if request.writer.output_size:  # Cut the answer, so that it is not taken for whole.
                raise ConnectionAbortedError("its answer had begun") from error
            return refusal
        finally:
            if connection is not None:
                connection.answered()

    return errors


def _refusal_of(gateway: Gateway, request: web.Request, error: Exception) -> web.Response:
    match error:
        case NoSlotError() if gateway.store_is_away:
            return _refusal(unavailable())  # the others wait for the store, not for each other
        case RejectedError():
            return _refusal(error)
        case StoreUnavailableError():
            gateway.tell_away(f"{request.method} {request.path}: {error}")
            return _refusal(unavailable())
        case web.HTTPException():
            return _of_aiohttp(request, error)
        case _:
            reference = gateway.characters(REFERENCE_CHARACTERS)
            logger.error("%s %s failed", request.method, request.path, exc_info=error, extra={"reference": reference})
            return _refusal(
                RejectedError(500, "", f"an error in the gateway; its log has the details under {reference}")
            )


def _refusal(error: RejectedError) -> web.Response:
    return web.Response(body=error.body, status=error.status, content_type=PROBLEM, headers=error.headers)


def _of_aiohttp(request: web.Request, error: web.HTTPException) -> web.Response:
    """Refusals of the HTTP server itself: an unknown path or method."""
    match error:
        case web.HTTPNotFound():
            return _refusal(
                RejectedError(404, "", f"there is no {request.path[:200]}; GET /v1/openapi.json lists the paths")
            )
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            refusal = _refusal(RejectedError(405, "", f"{request.method} is not allowed here; allowed: {allowed}"))
            refusal.headers["Allow"] = allowed
            return refusal
        case _:
            return _refusal(RejectedError(error.status, "", error.reason))


def _expected(most: int) -> Callable[[web.Request], Awaitable[web.StreamResponse | None]]:
    async def expected(request: web.Request) -> web.StreamResponse | None:
        """Before the client sends a body: whether the gateway would read it."""
        try:
            check_length(request, most)
        except RejectedError as error:
            refusal = _refusal(error)
            refusal.force_close()
            return refusal
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
        return None

    return expected
