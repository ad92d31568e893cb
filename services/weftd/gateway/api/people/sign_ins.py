"""Signing in: a one-time code for a link, and the session that a browser gets for it, or for a token."""

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from weft.domain.spec import TOKEN_PATTERN
from weft.domain.tenants import Role
from weft.messages.http.sign_ins import (
    CodeMade,
    CodeWanted,
    IdentityView,
    SessionEnded,
    SessionMade,
    SessionsView,
    SessionView,
    SignInWanted,
)
from weft.store.sign_ins import SessionKept, SignIn
from weft.store.tenants import Access
from weftd.gateway.api.people.oidc import code_of_device
from weftd.gateway.errors import RejectedError
from weftd.gateway.http.route import JSON, Audience, Call, Header, NoQuery, RouteAnswer, answer, json_of, operation
from weftd.gateway.limits.access import (
    CODE_PREFIX,
    PER_TENANT_MAX,
    TOKEN_CHARACTERS,
    TOKEN_PREFIX,
    bearer,
    source_of,
    token_hash,
)
from weftd.gateway.limits.cookies import credentials, keep, proof_of
from weftd.gateway.thinking.oidc import challenge_of

BODY_BYTES_MAX = 8192
LISTED_MAX = 1000
NO_STORE = {"Cache-Control": "no-store"}


class SessionsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    tenant: Annotated[str, Meta(pattern=TOKEN_PATTERN, description="Only this tenant; for administrators.")] | None = (
        None
    )


@operation(
    "POST /v1/codes",
    "sign-in",
    "Make a one-time code",
    description="Make a code for a link. A browser exchanges it once for a session, at the gateway or, with a `job`,"
    " at a router. The session ends no later than the token that made the code.",
    body=CodeWanted,
    body_bytes_max=BODY_BYTES_MAX,
    answers={201: RouteAnswer(description="The code.", type=CodeMade)},
    example="""-d '{"job": "notebook"}'""",
)
async def make_code(call: Call[NoQuery]) -> web.StreamResponse:
    gateway = call.gateway
    wanted = await json_of(call.request, CodeWanted)
    gateway.auditing.count(call.who)
    job = "" if wanted.job is None else (await gateway.service(call.who, wanted.job)).id
    code, now = CODE_PREFIX + gateway.characters(TOKEN_CHARACTERS), gateway.now()
    made = await gateway.store.add_code(
        token_hash(code),
        by=token_hash(bearer(credentials(call.request))),
        job=job,
        at=now,
        expires_at=now + gateway.settings.code_seconds,
        session_ends_at=now + gateway.settings.session_hours * 3600.0,
        most=PER_TENANT_MAX,
        actor=gateway.auditing.actor(call.request, call.who),
    )
    return answer(CodeMade(code=code, expires_at=_made(made).expires_at, job=job), status=201, headers=NO_STORE)


@operation(
    "POST /v1/sessions",
    "sign-in",
    "Sign in",
    description="Begin a session of a browser, with a one-time code, or with a token in `Authorization`. Its own token"
    " is in a cookie that scripts cannot read; each request with that cookie needs the proof in `X-Weft-Session`.",
    who=Audience.ANYONE,
    body=SignInWanted,
    body_bytes_max=BODY_BYTES_MAX,
    headers=(Header(name="Set-Cookie", description="The session's token.", of_answer=True),),
    answers={
        201: RouteAnswer(description="The session.", type=SessionMade),
        202: RouteAnswer(description="The person has not confirmed the device yet.", type=SessionMade),
    },
)
async def begin(call: Call[NoQuery]) -> web.StreamResponse:
    gateway, request = call.gateway, call.request
    if request.content_type != JSON:  # a page of another origin can send other types without being asked
        raise RejectedError(415, "Content-Type", f"expected {JSON}")
    wanted = await json_of(request, SignInWanted)
    token, now, source = TOKEN_PREFIX + gateway.characters(TOKEN_CHARACTERS), gateway.now(), source_of(request.remote)
    code, challenge = wanted.code, "" if wanted.verifier is None else challenge_of(wanted.verifier)
    if wanted.device_code is not None:
        code, challenge = await code_of_device(gateway, request, wanted.device_code), ""
        if code is None:
            return answer(SessionMade(pending=True), status=202, headers=NO_STORE)
    if code is not None:
        try:
            actor = gateway.auditing.actor(request, call.who)
            made = await gateway.access.redeem(code, token, source=source, actor=actor, challenge=challenge)
        except RejectedError as error:
            await gateway.auditing.refused(request, call.who, error, act="sign-in")
            raise
    else:
        made = await _of_token(call, token)
    to_program = wanted.verifier is not None or wanted.device_code is not None
    shown = SessionMade(
        id=made.id,
        tenant=made.tenant,
        admin=made.admin,
        proof="" if to_program else proof_of(token),
        expires_at=made.expires_at,
        token=token if to_program else "",
    )
    response = answer(shown, status=201, headers=NO_STORE)
    if not to_program:
        keep(response, request, token, seconds=made.expires_at - now)
    return response


async def _of_token(call: Call[NoQuery], token: str) -> SignIn:
    """A session of the token in `Authorization`."""
    gateway, request = call.gateway, call.request
    header = request.headers.get("Authorization")
    who = await gateway.access.of(header, source=source_of(request.remote))
    gateway.count(who, changes=True)
    gateway.auditing.count(who)
    now = gateway.now()
    made = await gateway.store.add_session(
        token_hash(token),
        by=token_hash(bearer(header)),
        at=now,
        expires_at=now + gateway.settings.session_hours * 3600.0,
        most=PER_TENANT_MAX,
        actor=gateway.auditing.actor(request, who),
    )
    return _made(made)


@operation(
    "GET /v1/sessions",
    "sign-in",
    "List sessions",
    description="The newest 1,000 valid sessions of the tenant; for an administrator all, or those of `tenant`.",
    answers={
        200: RouteAnswer(description="The sessions with their owners and the time of last use.", type=SessionsView)
    },
)
async def sessions(call: Call[SessionsQuery]) -> web.StreamResponse:
    who, wanted = call.who, call.query.tenant
    if wanted not in (None, who.tenant) and not who.admin:
        raise RejectedError(403, "tenant", "only an administrator sees other tenants' sessions")
    tenant = wanted if who.admin else who.tenant
    kept = await call.gateway.store.sessions(tenant=tenant, at=call.gateway.now(), limit=LISTED_MAX, person=_only(who))
    return answer(SessionsView(sessions=tuple(_view(one, who.session) for one in kept)))


@operation(
    "DELETE /v1/sessions/{session}",
    "sign-in",
    "End a session",
    description="Sign out this browser or another one. Its requests are refused everywhere within two"
    " seconds, and its streams end within five.",
    answers={200: RouteAnswer(description="The ended session.", type=SessionEnded)},
)
async def end(call: Call[NoQuery]) -> web.StreamResponse:
    gateway, session = call.gateway, call.path("session")
    tenant = None if call.who.admin else call.who.tenant
    gateway.auditing.count(call.who)
    actor = gateway.auditing.actor(call.request, call.who)
    ended = await gateway.store.end_session(
        session, tenant=tenant, at=gateway.now(), actor=actor, person=_only(call.who)
    )
    gateway.access.forget()
    if ended is None:
        raise RejectedError(404, "session", "there is no such valid session")
    response = answer(SessionEnded(id=session))
    if session == call.who.session:
        keep(response, call.request, "", seconds=0)
    return response


@operation(
    "GET /v1/whoami",
    "sign-in",
    "Identity of the caller",
    answers={
        200: RouteAnswer(description="The tenant and the rights of the request's token or session.", type=IdentityView)
    },
)
async def whoami(call: Call[NoQuery]) -> web.StreamResponse:
    who = call.who
    return answer(
        IdentityView(
            tenant=who.tenant, admin=who.admin, label=who.label, session=who.session, person=who.person, role=who.role
        )
    )


def _only(who: Access) -> str:
    """The person whose sessions the caller may see and end; empty: all people of the tenant."""
    return who.person if who.role in (Role.VIEWER, Role.USER) else ""


def _made(made: SignIn | None) -> SignIn:
    if made is None:
        reason = f"this tenant has {PER_TENANT_MAX} valid codes and sessions, or its token has just ended"
        raise RejectedError(429, "", reason)
    return made


def _view(kept: SessionKept, current: str) -> SessionView:
    named = {name: getattr(kept, name) for name in kept.__struct_fields__}
    return SessionView(**named, current=kept.id == current)
