"""Tokens: made for a tenant, shown once, listed without their secret, revoked by their label."""

import hashlib
import re
from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from weft.domain.spec import TOKEN_PATTERN
from weft.messages.http.tenants import TokenMade, TokensRevoked, TokensView, TokenView, TokenWanted
from weft.messages.images import SHARED_TENANT
from weft.store import GatewayStore
from weft.store.tenants import FILE_LABEL, TokenKept
from weftd.gateway.errors import RejectedError
from weftd.gateway.http.route import Audience, Call, NoQuery, RouteAnswer, answer, json_of, operation
from weftd.gateway.limits.access import TOKEN_CHARACTERS, TOKEN_PREFIX, token_hash

ADMIN_TENANT = SHARED_TENANT
LISTED_MAX = 1000


class TokensQuery(Struct, frozen=True, forbid_unknown_fields=True):
    tenant: Annotated[str, Meta(pattern=TOKEN_PATTERN)] | None = None
    all: Annotated[bool, Meta(description="Include revoked and expired tokens.")] = False


@operation(
    "GET /v1/tokens",
    "tokens",
    "List tokens",
    description="The newest 1,000 tokens, without their secrets: the valid ones, or with `all` every one.",
    who=Audience.ADMIN,
    answers={200: RouteAnswer(description="The tokens with their tenants and the time of last use.", type=TokensView)},
    example="?tenant=vision",
)
async def tokens(call: Call[TokensQuery]) -> web.StreamResponse:
    now = call.gateway.now()
    kept = await call.gateway.store.tokens(tenant=call.query.tenant, limit=LISTED_MAX)
    views = (_view(token, now) for token in kept)
    return answer(TokensView(tokens=tuple(view for view in views if call.query.all or view.in_force)))


@operation(
    "POST /v1/tokens",
    "tokens",
    "Make a token",
    description="The answer shows the token once. A new tenant is created. A tenant may have several tokens: to replace"
    " one, make another, use it, and revoke the first by its label.",
    who=Audience.ADMIN,
    body=TokenWanted,
    answers={201: RouteAnswer(description="The token.", type=TokenMade)},
    example="""-d '{"tenant": "vision", "label": "ci", "expires_in": 2592000}'""",
)
async def make(call: Call[NoQuery]) -> web.StreamResponse:
    wanted = await json_of(call.request, TokenWanted)
    gateway = call.gateway
    token = TOKEN_PREFIX + gateway.characters(TOKEN_CHARACTERS)
    now = gateway.now()
    ends = None if wanted.expires_in is None else now + wanted.expires_in
    stored = await gateway.store.add_token(
        token_hash(token),
        tenant=wanted.tenant,
        admin=wanted.admin,
        label=wanted.label,
        at=now,
        expires_at=ends,
        label_is_new=True,
    )
    if not stored:
        reason = f"tenant {wanted.tenant} has a token with the label {wanted.label}: revoke it, or choose another label"
        raise RejectedError(409, "label", reason)
    made = TokenMade(token=token, tenant=wanted.tenant, label=wanted.label, admin=wanted.admin, expires_at=ends)
    return answer(made, status=201, headers={"Cache-Control": "no-store"})


@operation(
    "DELETE /v1/tokens/{tenant}/{label}",
    "tokens",
    "Revoke tokens",
    description="Revoke all tokens of this tenant with this label. They are refused everywhere within two seconds,"
    " and streams that they opened end within five.",
    who=Audience.ADMIN,
    answers={200: RouteAnswer(description="The number of valid tokens that were revoked.", type=TokensRevoked)},
)
async def revoke(call: Call[NoQuery]) -> web.StreamResponse:
    tenant, label = call.path("tenant"), call.path("label")
    for name, value in (("tenant", tenant), ("label", label)):
        if not re.fullmatch(TOKEN_PATTERN, value):
            raise RejectedError(400, name, "expected lower-case letters, digits and '-', at most 63")
    revoked = await call.gateway.store.revoke_tokens(tenant=tenant, label=label, at=call.gateway.now())
    call.gateway.access.forget()
    if not revoked:
        raise RejectedError(404, "label", f"tenant {tenant} has no valid token with the label {label}")
    return answer(TokensRevoked(revoked=revoked))


async def keep_file_token(store: GatewayStore, token: str, *, tenant: str, at: float) -> None:
    """Store the token of a file. Its label is made from it, so that each can be revoked by itself."""
    label = f"{FILE_LABEL}{hashlib.sha256(token.encode()).hexdigest()[:12]}"
    await store.add_token(token_hash(token), tenant=tenant, admin=tenant == ADMIN_TENANT, label=label, at=at)


def _view(token: TokenKept, now: float) -> TokenView:
    ended = token.revoked_at is not None or (token.expires_at is not None and token.expires_at <= now)
    return TokenView(
        tenant=token.tenant,
        label=token.label,
        admin=token.admin,
        in_force=not ended,
        created_at=token.created_at,
        expires_at=token.expires_at,
        used_at=token.used_at,
        revoked_at=token.revoked_at,
    )
