"""Tokens: made for a tenant, told once, revoked by their label."""

import hashlib
import re

from aiohttp import web

from libs.domain.spec import TOKEN_PATTERN
from libs.messages.http import TokenMade, TokensRevoked, TokenWanted
from libs.store import GatewayStore
from services.gateway.access import TOKEN_PREFIX, token_hash
from services.gateway.errors import RejectedError
from services.gateway.route import Call, NoQuery, answer, json_of

TOKEN_CHARACTERS = 40
ADMIN_TENANT = "admin"


async def make(call: Call[NoQuery]) -> web.StreamResponse:
    wanted = await json_of(call.request, TokenWanted)
    gateway = call.gateway
    token = TOKEN_PREFIX + gateway.characters(TOKEN_CHARACTERS)
    await gateway.store.add_token(
        token_hash(token), tenant=wanted.tenant, admin=wanted.admin, label=wanted.label, at=gateway.now()
    )
    made = TokenMade(token=token, tenant=wanted.tenant, label=wanted.label, admin=wanted.admin)
    return answer(made, status=201, headers={"Cache-Control": "no-store"})


async def revoke(call: Call[NoQuery]) -> web.StreamResponse:
    tenant, label = call.path("tenant"), call.path("label")
    for name, value in (("tenant", tenant), ("label", label)):
        if not re.fullmatch(TOKEN_PATTERN, value):
            raise RejectedError(400, name, "expected lower-case letters, digits and '-', at most 63")
    revoked = await call.gateway.store.revoke_tokens(tenant=tenant, label=label, at=call.gateway.now())
    call.gateway.access.forget()
    if not revoked:
        raise RejectedError(404, "label", f"tenant {tenant} has no token in force with the label {label}")
    return answer(TokensRevoked(revoked=revoked))


async def keep_admin_token(store: GatewayStore, token: str, *, at: float) -> None:
    """Let the operator's own token in. Its label is made from it, so that each can be revoked by itself."""
    label = f"file-{hashlib.sha256(token.encode()).hexdigest()[:12]}"
    await store.add_token(token_hash(token), tenant=ADMIN_TENANT, admin=True, label=label, at=at)
