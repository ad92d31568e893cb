"""Secrets over HTTP: stored, listed by name and deleted by their tenant, and never shown."""

import re

from aiohttp import web
from msgspec import structs

from weft.domain.spec import TOKEN_PATTERN
from weft.messages.secrets import VALUE_BYTES_MAX, SecretDeleted, SecretsView, SecretView, SecretWanted
from weft.store.secrets import SecretKept
from weftd.gateway.errors import TOKEN_WORDS, RejectedError
from weftd.gateway.http.route import Call, NoQuery, RouteAnswer, answer, json_of, operation

PER_TENANT_MAX = 256
_matches_token = re.compile(TOKEN_PATTERN).fullmatch


@operation(
    "GET /v1/secrets",
    "secrets",
    "List secrets",
    description="Their names; no request shows a value.",
    answers={200: RouteAnswer(description="Those of the token's tenant, by name.", type=SecretsView)},
)
async def secrets(call: Call[NoQuery]) -> web.StreamResponse:
    kept = await call.gateway.store.secrets(call.who.tenant)
    return answer(SecretsView(secrets=tuple(_view(one) for one in kept)))


@operation(
    "PUT /v1/secrets/{name}",
    "secrets",
    "Store a secret",
    description="Or replace its value: jobs that start from now on get the new one. Jobs of this tenant name it"
    " below `secrets`: docs/secrets.md.",
    body=SecretWanted,
    answers={200: RouteAnswer(description="The secret, without its value.", type=SecretView)},
    example="""-d '{"value": "hf_…"}'""",
)
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


@operation(
    "DELETE /v1/secrets/{name}",
    "secrets",
    "Delete a secret",
    description="A job that names it and starts later fails, and says so.",
    answers={200: RouteAnswer(description="Which.", type=SecretDeleted)},
)
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
