"""Tenants and their secrets, over HTTP."""

import re

import msgspec
from aiohttp import web
from msgspec import structs

from weft.domain.spec import TOKEN_PATTERN
from weft.domain.tenants import NAMES, Allowance, AllowanceChange
from weft.messages.http.tenants import TenantsView, TenantView, TenantWanted
from weft.messages.secrets import VALUE_BYTES_MAX, SecretDeleted, SecretsView, SecretView, SecretWanted
from weft.store.secrets import SecretKept
from weft.store.tenants import TenantKept
from weftd.gateway.errors import TOKEN_WORDS, RejectedError
from weftd.gateway.http.route import Audience, Call, NoQuery, RouteAnswer, answer, json_of, operation

LISTED_MAX = 10_000
PER_TENANT_MAX = 256
_matches_token = re.compile(TOKEN_PATTERN).fullmatch


@operation(
    "GET /v1/tenants",
    "tenants",
    "List tenants",
    description="Limits and current use of each tenant.",
    who=Audience.ADMIN,
    answers={200: RouteAnswer(description="All tenants, by name.", type=TenantsView)},
)
async def tenants(call: Call[NoQuery]) -> web.StreamResponse:
    default = call.gateway.allowances.default
    kept = await call.gateway.store.tenants(limit=LISTED_MAX)
    return answer(TenantsView(tenants=tuple(_view(tenant, default) for tenant in kept)))


@operation(
    "PATCH /v1/tenants/{tenant}",
    "tenants",
    "Change the limits of a tenant",
    description="Open jobs continue. Every gateway refuses requests beyond the new limits within two seconds.",
    who=Audience.ADMIN,
    body=TenantWanted,
    answers={200: RouteAnswer(description="The tenant as it is now.", type=TenantView)},
    example="""-d '{"jobs_open_max": 1000, "priority_max": null}'""",
)
async def change(call: Call[NoQuery]) -> web.StreamResponse:
    name = call.path("tenant")
    if not re.fullmatch(TOKEN_PATTERN, name):
        raise RejectedError(400, "tenant", "expected lower-case letters, digits and '-', at most 63")
    wanted = await json_of(call.request, TenantWanted)
    await call.gateway.store.change_tenant(name, AllowanceChange(**msgspec.structs.asdict(wanted)))
    call.gateway.access.forget()
    kept = await call.gateway.store.tenants(tenant=name)
    if not kept:
        raise RejectedError(404, "tenant", f"there is no tenant {name}: it is made with its first token")
    return answer(_view(kept[0], call.gateway.allowances.default))


def _view(tenant: TenantKept, default: Allowance) -> TenantView:
    allowance = tenant.chosen.over(default)
    return TenantView(
        id=tenant.id,
        created_at=tenant.created_at,
        jobs_open=tenant.use.jobs,
        jobs_open_max=allowance.jobs_open_max,
        spec_bytes=tenant.use.spec_bytes,
        spec_bytes_max=allowance.spec_bytes_max,
        priority_max=allowance.priority_max,
        may_be_unpreemptible=allowance.may_be_unpreemptible,
        idle_seconds_max=allowance.idle_seconds_max,
        chosen=tuple(name for name in NAMES if getattr(tenant.chosen, name) is not None),
    )


@operation(
    "GET /v1/secrets",
    "secrets",
    "List secrets",
    description="Their names; no request shows a value.",
    answers={200: RouteAnswer(description="The secrets of the token's tenant, by name.", type=SecretsView)},
)
async def secrets(call: Call[NoQuery]) -> web.StreamResponse:
    kept = await call.gateway.store.secrets(call.who.tenant)
    return answer(SecretsView(secrets=tuple(_secret_view(one) for one in kept)))


@operation(
    "PUT /v1/secrets/{name}",
    "secrets",
    "Store a secret",
    description="Store a secret or replace its value; jobs that start later get the new value. Jobs of this tenant"
    " refer to it in `secrets`: docs/secrets.md.",
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
    return answer(next(_secret_view(one) for one in await store.secrets(tenant) if one.name == name))


@operation(
    "DELETE /v1/secrets/{name}",
    "secrets",
    "Delete a secret",
    description="A job that refers to it and starts later fails with a message.",
    answers={200: RouteAnswer(description="The name of the deleted secret.", type=SecretDeleted)},
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


def _secret_view(kept: SecretKept) -> SecretView:
    return SecretView(**structs.asdict(kept))
