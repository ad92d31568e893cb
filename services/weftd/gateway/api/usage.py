"""GPU-seconds by tenant over a period; with `by`, an account with the requested rows."""

import asyncio
from typing import Annotated

import numpy as np
from aiohttp import web
from msgspec import Meta, Struct

from weft.domain.spec import LABEL_NAME_PATTERN, TOKEN_PATTERN
from weft.messages.accounts import UsageGrouping
from weft.messages.series import TenantUsage, UsageView
from weftd.gateway.accounting.accounts import Usage
from weftd.gateway.accounting.billing import CSV, billed, csv_of
from weftd.gateway.accounting.kept import with_kept
from weftd.gateway.errors import RejectedError
from weftd.gateway.http.route import JSON, Call, RouteAnswer, answer, operation
from weftd.gateway.thinking.accounting.rows import NANO
from weftd.gateway.thinking.accounting.steps import TenantSteps, sum_of

SECONDS_MAX = 31 * 86_400
TENANTS_MAX = 1_000  # in one answer
STEPS_OF_MAX = 100  # tenants of which the answer has every step
ROWS_MAX = 100_000  # in one answer
TIME_MAX = 253_402_300_800.0  # the year 10000
NO_ROWS = "CSV needs rows: set by=tenant, job, label, …"


class UsageQuery(Struct, frozen=True, forbid_unknown_fields=True):
    seconds: Annotated[int, Meta(ge=60, le=SECONDS_MAX, description="Length of the period, in seconds.")] = 86_400
    tenant: Annotated[str, Meta(pattern=TOKEN_PATTERN, description="Only this tenant.")] | None = None
    by: Annotated[UsageGrouping, Meta(description="Group the rows by this instead of by tenant.")] | None = None
    label: Annotated[str, Meta(pattern=LABEL_NAME_PATTERN, description="With `by=label`: the label's name.")] = ""
    until: (
        Annotated[
            float,
            Meta(ge=0, le=TIME_MAX, description="With `by`: end of the period, in seconds since 1970 (default: now)."),
        ]
        | None
    ) = None
    limit: Annotated[int, Meta(ge=1, le=ROWS_MAX, description="With `by`: maximum number of rows.")] = 1000


@operation(
    "GET /v1/usage",
    "tenants",
    "GPU-seconds by tenant",
    description="GPU-seconds that each tenant held (exact, from stored events), used (as far as sampled) and was due by"
    " a fair share. A tenant sees itself, an administrator all tenants. With `by`, one row for each tenant, job, epoch,"
    " kind, model, label, pool, day or hour: GPU time held, used and lost, and its cost; rows of tenants and jobs also"
    " have the bytes of their files on nodes. Administrators also get the use of the capacity. `Accept: text/csv`"
    " returns CSV.",
    answers={200: RouteAnswer(description="The usage, largest first.", type=UsageView, media=(JSON, CSV))},
    example="?seconds=86400&by=tenant",
)
async def usage(call: Call[UsageQuery]) -> web.StreamResponse:
    gateway, query = call.gateway, call.query
    if query.tenant not in (None, call.who.tenant) and not call.who.admin:
        raise RejectedError(403, "tenant", f"this token is of tenant {call.who.tenant}, and sees only that tenant")
    only = query.tenant if call.who.admin else call.who.tenant
    if query.by is not None:
        return await _billed(call, query.by, only)
    unused = "label" if query.label else "until" if query.until is not None else ""
    if unused or _wants_csv(call):
        raise RejectedError(400, unused or "by", "needs rows: set by=tenant, job, label, …" if unused else NO_ROWS)
    if gateway.accounts.usage_at_hand(query.seconds):
        found = await gateway.accounts.usage(query.seconds)
    else:
        async with gateway.adding_up.one(call.who.tenant):
            found = await gateway.accounts.usage(query.seconds)
    return answer(await asyncio.to_thread(_view, found, only))


async def _billed(call: Call[UsageQuery], by: UsageGrouping, only: str | None) -> web.StreamResponse:
    gateway, query = call.gateway, call.query
    if (by is UsageGrouping.LABEL) != bool(query.label):
        reason = "give a label name, such as label=team" if by is UsageGrouping.LABEL else "needs by=label"
        raise RejectedError(400, "label", reason)
    if query.until is not None and query.until > gateway.now():
        raise RejectedError(400, "until", "is in the future")
    async with gateway.adding_up.one(call.who.tenant):
        found = await gateway.accounts.of(query.seconds, query.until)
        view = await asyncio.to_thread(
            billed,
            found,
            by,
            only=only,
            label=query.label,
            limit=query.limit,
            prices=gateway.prices,
            ledger=gateway.samples.ledger,
            capacity=call.who.admin and only is None,
        )
        view = with_kept(view, by, await gateway.kept.of(gateway.store), only=only, limit=query.limit)
        if not _wants_csv(call):
            return answer(view)
        text = await asyncio.to_thread(csv_of, view)
    return web.Response(text=text, content_type=CSV, charset="utf-8")


def _wants_csv(call: Call[UsageQuery]) -> bool:
    return CSV in call.request.headers.get("Accept", "")


def _view(found: Usage, only: str | None) -> UsageView:
    window, there = found.window, sum_of(found.there)
    held = sum(had.total for had in found.tenants)
    shown = [had for had in found.tenants if only in (None, had.tenant)]
    if only is not None and not shown:
        nothing = found.there * 0
        shown = [TenantSteps(tenant=only, held=nothing, due=nothing)]
    lengths = np.diff(window.edges)
    rows = []
    for place, had in enumerate(shown[:TENANTS_MAX]):
        steps = had.held / lengths / 1000 if place < STEPS_OF_MAX else ()
        row = TenantUsage(
            tenant=had.tenant,
            gpu_seconds_held=had.total * NANO,
            gpu_seconds_used=found.used.get(had.tenant, 0.0),
            gpu_seconds_unused=found.unused.get(had.tenant, 0.0),
            share_due=sum_of(had.due) / there if there else 0.0,
            share_got=had.total / there if there else 0.0,
            held=tuple(round(float(gpus), 3) for gpus in steps),
        )
        rows.append(row)
    return UsageView(
        begins=window.begins / 1e6,
        ends=window.ends / 1e6,
        step_seconds=window.step_seconds,
        gpu_seconds=there * NANO,
        gpu_seconds_idle=(there - held) * NANO,
        tenants=tuple(rows),
        left_out=max(0, len(shown) - TENANTS_MAX),
    )
