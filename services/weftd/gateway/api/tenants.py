"""Tenants: the limits and the use of each, and how an administrator changes the limits."""

import re

import msgspec
from aiohttp import web

from weft.domain.spec import TOKEN_PATTERN
from weft.domain.tenants import NAMES, Allowance, AllowanceChange
from weft.messages.http import TenantsView, TenantView, TenantWanted
from weft.store.tenants import TenantKept
from weftd.gateway.errors import RejectedError
from weftd.gateway.http.route import Call, NoQuery, RouteAnswer, Who, answer, json_of, operation

LISTED_MAX = 10_000


@operation(
    "GET /v1/tenants",
    "tenants",
    "List tenants",
    description="What each may take, and what it has taken.",
    who=Who.ADMIN,
    answers={200: RouteAnswer(description="All of them, by name.", type=TenantsView)},
)
async def tenants(call: Call[NoQuery]) -> web.StreamResponse:
    default = call.gateway.allowances.default
    kept = await call.gateway.store.tenants(limit=LISTED_MAX)
    return answer(TenantsView(tenants=tuple(_view(tenant, default) for tenant in kept)))


@operation(
    "PATCH /v1/tenants/{tenant}",
    "tenants",
    "Change what a tenant may take",
    description="What it has open already goes on; what is beyond its limits is refused from now on, by every"
    " gateway within two seconds.",
    who=Who.ADMIN,
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
        chosen=tuple(name for name in NAMES if getattr(tenant.chosen, name) is not None),
    )
