"""Quotas: guarantees and limits of tenants and groups, and their changes by administrators."""

import re
from typing import Annotated

import msgspec
from aiohttp import web

from weft.domain.quotas import ALL, Amounts, Quota, fault_of
from weft.domain.shares import WHOLE
from weft.domain.spec import TOKEN_PATTERN
from weft.messages.http.quotas import QuotaDeleted, QuotasView, QuotaView, QuotaWanted
from weft.planning.quota.amounts import ledger_of, lendable
from weft.planning.quota.ledger import Ledger
from weft.planning.quota.tree import Branch
from weftd.gateway.errors import RejectedError
from weftd.gateway.http.route import Audience, Call, NoQuery, RouteAnswer, answer, json_of, operation


class QuotasQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pool: Annotated[str, msgspec.Meta(pattern=TOKEN_PATTERN)] = "default"


@operation(
    "GET /v1/quotas",
    "tenants",
    "List quotas",
    description="Guarantee, limit, current and borrowed GPUs of each tenant and group of the pool. A tenant sees"
    " its own quota and those of its groups.",
    answers={200: RouteAnswer(description="The quotas, by name.", type=QuotasView)},
    example="?pool=default",
)
async def quotas(call: Call[QuotasQuery]) -> web.StreamResponse:
    """Every quota of a pool; a tenant sees its own and those of its groups."""
    known = await call.gateway.store.quotas(pool=call.query.pool)
    ledger, gpus = await _ledger(call, known, call.query.pool)
    own = {branch.key for branch in ledger.tree.path(call.who.tenant)}
    shown = [_view(quota, ledger) for quota in known if call.who.admin or (quota.is_group, quota.name) in own]
    return answer(QuotasView(quotas=tuple(shown), pool=call.query.pool, gpus=gpus / WHOLE))


@operation(
    "PUT /v1/quotas/{name}",
    "tenants",
    "Set a quota",
    description="Set the quota of a tenant or of a group. Running jobs beyond a lower limit continue. The scheduler"
    " applies the quota within two seconds.",
    who=Audience.ADMIN,
    body=QuotaWanted,
    answers={200: RouteAnswer(description="The quota as it is now.", type=QuotaView)},
    example="""-d '{"guaranteed": 8, "limit": 32}'""",
)
async def set_(call: Call[NoQuery]) -> web.StreamResponse:
    name = _name(call)
    wanted = await json_of(call.request, QuotaWanted)
    quota = Quota(
        name=name,
        pool=wanted.pool,
        group=wanted.group,
        is_group=wanted.is_group,
        guaranteed=_amounts("guaranteed", wanted.guaranteed, wanted.guaranteed_models),
        limit=_amounts("limit", wanted.limit, wanted.limit_models),
        weight=wanted.weight,
    )
    known = await call.gateway.store.quotas(pool=wanted.pool)
    if (fault := fault_of(quota, {one.name: one for one in known})) is not None:
        raise RejectedError(400, *fault)
    await call.gateway.store.set_quota(quota)
    call.gateway.snapshots.forget_quotas()
    ledger, _ = await _ledger(call, [*(one for one in known if one.name != name), quota], wanted.pool)
    return answer(_view(quota, ledger))


@operation(
    "DELETE /v1/quotas/{name}",
    "tenants",
    "Delete a quota",
    description="The tenant has no guarantee and no limit afterwards. A group that has members cannot be deleted.",
    who=Audience.ADMIN,
    answers={200: RouteAnswer(description="The name of the deleted quota.", type=QuotaDeleted)},
    example="?pool=default",
)
async def delete(call: Call[QuotasQuery]) -> web.StreamResponse:
    name, pool = _name(call), call.query.pool
    known = await call.gateway.store.quotas(pool=pool)
    if (member := next((one.name for one in known if one.group == name), None)) is not None:
        raise RejectedError(409, "name", f"{member} belongs to group {name}: take it out of the group first")
    if not await call.gateway.store.delete_quota(name, pool=pool):
        raise RejectedError(404, "name", f"there is no quota {name} in pool {pool}")
    call.gateway.snapshots.forget_quotas()
    return answer(QuotaDeleted(deleted=name))


def _name(call: Call[NoQuery] | Call[QuotasQuery]) -> str:
    name = call.path("name")
    if not re.fullmatch(TOKEN_PATTERN, name):
        raise RejectedError(400, "name", "expected lower-case letters, digits and '-', at most 63")
    return name


def _amounts(field: str, gpus: float | None, models: dict[str, float]) -> Amounts:
    named = {f"{field}_models.{model}": (model, amount) for model, amount in models.items()}
    every = named if gpus is None else {field: (ALL, gpus), **named}
    found: Amounts = {}
    for place, (model, amount) in sorted(every.items()):
        millis = round(amount * WHOLE)
        if abs(millis - amount * WHOLE) > 1e-6:
            raise RejectedError(400, place, f"expected whole thousandths of a GPU, got {amount}")
        found[model] = millis
    return found


async def _ledger(call: Call[NoQuery] | Call[QuotasQuery], known: list[Quota], pool: str) -> tuple[Ledger, int]:
    """GPUs that each tenant holds now, and all GPUs of the pool, in thousandths."""
    nodes = (await call.gateway.snapshots.nodes.get()).of(pool)
    if not nodes:
        return Ledger(known), 0
    holding = await call.gateway.snapshots.holding(pool)
    return ledger_of(known, {node.id: node for node in nodes}, holding), lendable(nodes)[ALL]


def _view(quota: Quota, ledger: Ledger) -> QuotaView:
    branch = _branch(quota, ledger)
    return QuotaView(
        name=quota.name,
        pool=quota.pool,
        group=quota.group,
        is_group=quota.is_group,
        guaranteed=quota.guaranteed[ALL] / WHOLE if ALL in quota.guaranteed else None,
        guaranteed_models={model: amount / WHOLE for model, amount in quota.guaranteed.items() if model != ALL},
        limit=quota.limit[ALL] / WHOLE if ALL in quota.limit else None,
        limit_models={model: amount / WHOLE for model, amount in quota.limit.items() if model != ALL},
        weight=quota.weight,
        holds=ledger.use(branch) / WHOLE,
        in_force=branch.guarantee(ALL) / WHOLE,
        borrows=ledger.borrowed(branch) / WHOLE,
    )


def _branch(quota: Quota, ledger: Ledger) -> Branch:
    found = ledger.tree.branch(quota)
    assert found is not None, "the ledger has this quota"
    return found
