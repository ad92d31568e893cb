"""GPU-seconds by tenant over a time; with `by`, an account by whatever rows are wanted."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated

import numpy as np
from aiohttp import web
from msgspec import Meta, Struct

from libs.domain.spec import LABEL_NAME_PATTERN, TOKEN_PATTERN
from libs.messages.accounts import By
from libs.messages.series import TenantUsage, UsageView
from services.gateway.billing import CSV, billed, csv_of
from services.gateway.errors import RejectedError
from services.gateway.route import Call, answer
from services.gateway.thinking.rings import COARSE_SECONDS, COARSE_STEPS, Series
from services.gateway.thinking.usage import NANO, Amounts, Had, Stretch, sum_of
from services.gateway.usages import Usage

SECONDS_MAX = 31 * 86_400
TENANTS_MAX = 1_000  # in one answer
STEPS_OF_MAX = 100  # tenants of which the answer has every step
ROWS_MAX = 100_000  # in one answer
TIME_MAX = 253_402_300_800.0  # the year 10000
NO_ROWS = "CSV has rows: say by=tenant, job, label, …"
SAMPLED_LEAST = 0.9  # of what was held, to say what was used
MINUTE = COARSE_SECONDS * 1_000_000  # in microseconds


class UsageQuery(Struct, frozen=True, forbid_unknown_fields=True):
    seconds: Annotated[int, Meta(ge=60, le=SECONDS_MAX, description="Of the last so many seconds.")] = 86_400
    tenant: Annotated[str, Meta(pattern=TOKEN_PATTERN, description="Of one tenant.")] | None = None
    by: Annotated[By, Meta(description="Rows by this, in place of `tenants`.")] | None = None
    label: Annotated[str, Meta(pattern=LABEL_NAME_PATTERN, description="With `by=label`: the label's name.")] = ""
    until: (
        Annotated[
            float,
            Meta(ge=0, le=TIME_MAX, description="With `by`: the end of that time, in seconds since 1970; else now."),
        ]
        | None
    ) = None
    limit: Annotated[int, Meta(ge=1, le=ROWS_MAX, description="With `by`: at most so many rows.")] = 1000


async def usage(call: Call[UsageQuery]) -> web.StreamResponse:
    gateway, query = call.gateway, call.query
    if query.tenant not in (None, call.who.tenant) and not call.who.admin:
        raise RejectedError(403, "tenant", f"this token is of tenant {call.who.tenant}, and sees that alone")
    only = query.tenant if call.who.admin else call.who.tenant
    if query.by is not None:
        return await _billed(call, query.by, only)
    unused = "label" if query.label else "until" if query.until is not None else ""
    if unused or _wants_csv(call):
        raise RejectedError(400, unused or "by", "is for rows: say by=tenant, job, label, …" if unused else NO_ROWS)
    if gateway.usages.at_hand(query.seconds):
        found = await gateway.usages.of(query.seconds)
    else:
        async with gateway.adding_up.one(call.who.tenant):
            found = await gateway.usages.of(query.seconds)
    return answer(await asyncio.to_thread(_view, found, only, gateway.samples.tenants.get))


async def _billed(call: Call[UsageQuery], by: By, only: str | None) -> web.StreamResponse:
    gateway, query = call.gateway, call.query
    if (by is By.LABEL) != bool(query.label):
        reason = "say which, such as label=team" if by is By.LABEL else "is for by=label alone"
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
        if not _wants_csv(call):
            return answer(view)
        text = await asyncio.to_thread(csv_of, view)
    return web.Response(text=text, content_type=CSV, charset="utf-8")


def _wants_csv(call: Call[UsageQuery]) -> bool:
    return CSV in call.request.headers.get("Accept", "")


def _view(found: Usage, only: str | None, series_of: Callable[[str], Mapping[str, Series]]) -> UsageView:
    window, there = found.window, sum_of(found.there)
    held = sum(had.total for had in found.tenants)
    shown = [had for had in found.tenants if only in (None, had.tenant)]
    if only is not None and not shown:
        nothing = found.there * 0
        shown = [Had(tenant=only, held=nothing, due=nothing)]
    lengths = np.diff(window.edges)
    rows = []
    for place, had in enumerate(shown[:TENANTS_MAX]):
        steps = had.held / lengths / 1000 if place < STEPS_OF_MAX else ()
        row = TenantUsage(
            tenant=had.tenant,
            gpu_seconds_held=had.total * NANO,
            gpu_seconds_used=_used(had, window, lengths, series_of(had.tenant).get("used")),
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


def _used(had: Had, window: Stretch, lengths: Amounts, series: Series | None) -> float | None:
    """GPU-seconds used, from what was sampled each minute; None: too little of what was held was sampled."""
    first, last = window.begins // MINUTE, window.ends // MINUTE
    if not had.total:
        return 0.0
    if series is None or last - first > COARSE_STEPS / SAMPLED_LEAST:
        return None
    values = series.read(first * COARSE_SECONDS, last - first, COARSE_SECONDS)
    gpus = np.array([np.nan if value is None else value for value in values])
    known = ~np.isnan(gpus)
    step = np.searchsorted(window.edges, (first + np.arange(last - first)) * MINUTE, side="right") - 1
    step = np.clip(step, 0, len(lengths) - 1)
    minutes = np.bincount(step, minlength=len(lengths))
    sampled = np.bincount(step, weights=known, minlength=len(lengths)) / np.maximum(1, minutes)
    covered = float(np.sum(had.held * sampled)) / had.total
    return float(np.nansum(gpus)) * COARSE_SECONDS / covered if covered >= SAMPLED_LEAST else None
