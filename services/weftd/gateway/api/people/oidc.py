"""Signing in with the identity provider: in a browser, for a command line that waits on 127.0.0.1, and for a machine
without a browser. Each ends with a one-time code, which is exchanged for a session like the code of a link."""

import logging
from typing import Annotated
from urllib.parse import urlencode

from aiohttp import web
from msgspec import Meta, Struct

from weft.messages.http.people import DeviceView, ProviderView
from weft.store.people import Person, person_id
from weftd.gateway.errors import RejectedError, too_fast
from weftd.gateway.gateway import Gateway
from weftd.gateway.http.route import NOBODY, Audience, Call, NoQuery, RouteAnswer, answer, operation
from weftd.gateway.limits.access import CODE_PREFIX, PER_TENANT_MAX, TOKEN_CHARACTERS, source_of, token_hash
from weftd.gateway.limits.cookies import flow_in, forget_flow, keep_flow
from weftd.gateway.oidc.provider import PendingError, Provider, ProviderError
from weftd.gateway.thinking.oidc import CHALLENGE, CLI_STATE, Claimed, Flow, FlowError, granted

logger = logging.getLogger(__name__)

CALLBACK = "/v1/oidc/callback"
NONE = "people sign in with tokens here: GATEWAY_OIDC_ISSUER is not set"
CODE_SECONDS = 60.0  # the browser or the command line brings it at once
WAY = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}


class LoginQuery(Struct, frozen=True, forbid_unknown_fields=True):
    port: (
        Annotated[int, Meta(ge=1, le=65535, description="Port on 127.0.0.1 on which a command line waits.")] | None
    ) = None
    challenge: (
        Annotated[str, Meta(pattern=f"^{CHALLENGE.pattern}$", description="Challenge of the verifier (PKCE, S256).")]
        | None
    ) = None
    state: (
        Annotated[
            str, Meta(pattern=f"^{CLI_STATE.pattern}$", description="Value that is returned to the command line.")
        ]
        | None
    ) = None


class CallbackQuery(Struct, frozen=True):
    """The callback's query as the provider sends it, which may have additional parameters."""

    code: Annotated[str, Meta(max_length=4096)] = ""
    state: Annotated[str, Meta(max_length=512)] = ""
    error: Annotated[str, Meta(max_length=512)] = ""


@operation(
    "GET /v1/oidc",
    "sign-in",
    "Is there an identity provider?",
    who=Audience.ANYONE,
    answers={200: RouteAnswer(description="The provider, if there is one.", type=ProviderView)},
)
async def about(call: Call[NoQuery]) -> web.StreamResponse:
    provider = call.gateway.provider
    return answer(ProviderView(issuer="" if provider is None else call.gateway.settings.oidc.oidc_issuer))


@operation(
    "GET /v1/oidc/login",
    "sign-in",
    "Sign in with the identity provider",
    description="Redirect a browser to the provider, which sends it back to this gateway.",
    who=Audience.ANYONE,
    answers={302: RouteAnswer(description="Redirect to the provider.", type=str, media=("text/plain",))},
)
async def login(call: Call[LoginQuery]) -> web.StreamResponse:
    gateway, query = call.gateway, call.query
    if len({query.port is None, query.challenge is None, query.state is None}) > 1:
        raise RejectedError(400, "port", "port, challenge and state come together")
    flow = Flow(
        secret=gateway.characters(TOKEN_CHARACTERS),
        port=query.port or 0,
        challenge=query.challenge or "",
        cli_state=query.state or "",
    )
    try:
        url = await _provider(call).authorization_url(flow, _redirect_uri(gateway))
    except ProviderError as error:
        raise _away(error) from error
    response = web.Response(status=302, headers={**WAY, "Location": url})
    keep_flow(response, call.request, flow)
    return response


@operation(
    "GET /v1/oidc/callback",
    "sign-in",
    "Back from the identity provider",
    who=Audience.ANYONE,
    answers={
        302: RouteAnswer(description="Redirect to the dashboard or the command line.", type=str, media=("text/plain",))
    },
)
async def callback(call: Call[CallbackQuery]) -> web.StreamResponse:
    gateway, query, provider = call.gateway, call.query, _provider(call)
    flow = flow_in(call.request)
    try:
        if flow is None or not flow.is_of(query.state):
            raise FlowError("this sign-in was not begun in this browser, or it is over: begin again")
        if query.error or not query.code:
            raise FlowError("the identity provider refused the sign-in")
        claims = await provider.claims(query.code, flow, _redirect_uri(gateway))
        code = await signed_in(gateway, call.request, claims, challenge=flow.challenge)
    except FlowError as error:
        raise await _refused(gateway, call.request, error) from error
    except ProviderError as error:
        raise _away(error) from error
    to = f"/#code={code}"
    if flow.port:
        to = f"http://127.0.0.1:{flow.port}/?{urlencode({'code': code, 'state': flow.cli_state})}"
    response = web.Response(status=302, headers={**WAY, "Location": to})
    forget_flow(response, call.request)
    return response


@operation(
    "POST /v1/oidc/device",
    "sign-in",
    "Sign in from a machine without a browser",
    description="Begin the device flow of the identity provider; `POST /v1/sessions` with the `device_code` ends it.",
    who=Audience.ANYONE,
    answers={200: RouteAnswer(description="The page that the person opens in any browser.", type=DeviceView)},
)
async def device(call: Call[NoQuery]) -> web.StreamResponse:
    gateway, source = call.gateway, source_of(call.request.remote)
    if wait := gateway.devices.take(source, gateway.clock()):
        raise too_fast("", f"too many sign-ins begin at {source}", wait)
    try:
        made = await _provider(call).device()
    except ProviderError as error:
        raise _away(error) from error
    return answer(
        DeviceView(
            device_code=made.device_code,
            user_code=made.user_code,
            verification_uri=made.verification_uri_complete or made.verification_uri,
            expires_in=made.expires_in,
            interval=made.interval,
        ),
        headers={"Cache-Control": "no-store"},
    )


async def code_of_device(gateway: Gateway, request: web.Request, device_code: str) -> str | None:
    """A one-time code once the person has confirmed the device; None until then. Raises RejectedError."""
    provider, source = gateway.provider, source_of(request.remote)
    if provider is None:
        raise RejectedError(404, "device_code", NONE)
    if wait := gateway.polls.take(source, gateway.clock()):
        raise too_fast("device_code", f"too many polls for devices come from {source}", wait)
    try:
        return await signed_in(gateway, request, await provider.claims_of_device(device_code), challenge="")
    except PendingError:
        return None
    except FlowError as error:
        raise await _refused(gateway, request, error) from error
    except ProviderError as error:
        raise _away(error) from error


async def signed_in(gateway: Gateway, request: web.Request, claims: Claimed, *, challenge: str) -> str:
    """A one-time code for the session of a person whom the provider has vouched for. Raises FlowError."""
    now = gateway.now()
    try:
        grant = granted(claims.groups, gateway.grants)
    except FlowError:  # a person who left the groups is signed out
        await gateway.store.end_sessions_of(person_id(claims.issuer, claims.subject), at=now)
        gateway.access.forget()
        raise
    person = Person(
        issuer=claims.issuer, subject=claims.subject, name=claims.name, tenant=grant.tenant, role=grant.role
    )
    code = CODE_PREFIX + gateway.characters(TOKEN_CHARACTERS)
    made = await gateway.store.sign_person_in(
        person,
        token_hash(code),
        challenge=challenge,
        at=now,
        expires_at=now + CODE_SECONDS,
        session_ends_at=now + gateway.settings.session_hours * 3600.0,
        most=PER_TENANT_MAX,
        actor=gateway.auditing.actor(request, NOBODY),
    )
    gateway.access.forget()
    if made is None:
        raise FlowError(f"an administrator keeps {claims.name} out, or {PER_TENANT_MAX} sessions are valid already")
    return code


async def _refused(gateway: Gateway, request: web.Request, error: FlowError) -> RejectedError:
    refusal = RejectedError(401, "", str(error))
    await gateway.auditing.refused(request, NOBODY, refusal, act="provider")
    return refusal


def _provider(call: Call[NoQuery] | Call[LoginQuery] | Call[CallbackQuery]) -> Provider:
    if call.gateway.provider is None:
        raise RejectedError(404, "", NONE)
    return call.gateway.provider


def _redirect_uri(gateway: Gateway) -> str:
    return f"{gateway.settings.oidc.oidc_gateway_url.rstrip('/')}{CALLBACK}"


def _away(error: ProviderError) -> RejectedError:
    logger.warning("%s", error)
    return RejectedError(503, "", f"{error}; present sessions continue")
