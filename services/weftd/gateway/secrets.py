"""Secrets over HTTP: stored, listed by name and deleted by their tenant, and never shown."""

import re

from aiohttp import web
from msgspec import structs

from weft.domain.spec import TOKEN_PATTERN
from weft.messages.secrets import VALUE_BYTES_MAX, SecretDeleted, SecretsView, SecretView, SecretWanted
from weft.store.secrets import SecretKept
from weftd.gateway.errors import TOKEN_WORDS, RejectedError
from weftd.gateway.route import Call, NoQuery, answer, json_of

PER_TENANT_MAX = 256
_matches_token = re.compile(TOKEN_PATTERN).fullmatch


async def secrets(call: Call[NoQuery]) -> web.StreamResponse:
    kept = await call.gateway.store.secrets(call.who.tenant)
    return answer(SecretsView(secrets=tuple(_view(one) for one in kept)))


async def set_(call: Call[NoQuery]) -> web.StreamResponse:
    name, tenant, store = _name(call), call.who.tenant, call.gateway.store
    value = (await json_of(call.request, SecretWanted)).value
    if "\0" in value:
        raise RejectedError(400, "value", "has a byte 0, which no environment can have")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise RejectedError(400, "value", "is no text in UTF-8") from None
    if size > VALUE_BYTES_MAX:
        raise RejectedError(400, "value", f"is {size} bytes; {VALUE_BYTES_MAX} at most are stored")
    if not await store.set_secret(tenant, name, value, at=call.gateway.now(), most=PER_TENANT_MAX):
        raise RejectedError(409, "name", f"tenant {tenant} has {PER_TENANT_MAX} secrets: delete one")
    return answer(next(_view(one) for one in await store.secrets(tenant) if one.name == name))


async def delete(call: Call[NoQuery]) -> web.StreamResponse:
    name = _name(call)
    if not await call.gateway.store.delete_secret(call.who.tenant, name):
        raise RejectedError(404, "name", f"tenant {call.who.tenant} has no secret {name}")
    return answer(SecretDeleted(deleted=name))


def _name(call: Call[NoQuery]) -> str:
    name = call.path("name")
    if not _matches_token(name):
        raise RejectedError(400, "name", TOKEN_WORDS)
    return name


def _view(kept: SecretKept) -> SecretView:
    return SecretView(**structs.asdict(kept))
