"""An account: a line for each tenant, job, day, …, the total, and the use of the capacity."""

import re
from collections.abc import Sequence
from decimal import Decimal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weft.domain.quantity import size_text
from weft.messages.accounts import OWN_TENANT, AccountRow, CapacityView, UsageGrouping
from weft.messages.series import UsageView
from weftd.cli.rendering.context import RenderContext, plain, table

HOUR = 3600.0
KWH = 3.6e6  # joules
UNKNOWN = "unknown"
NO_NAME = "–"
HEADS = {UsageGrouping.DAY: "DAY (UTC)", UsageGrouping.HOUR: "HOUR (UTC)"}
BENCHMARKS = "benchmarks"
CENT = Decimal("0.01")
AMOUNT = re.compile(r"[0-9]{1,30}(\.[0-9]{1,12})?")


def usage_page(found: UsageView, context: RenderContext) -> RenderableType:
    parts: list[RenderableType] = [_rows(found, context)]
    if found.left_out:
        parts.append(Text(f"{found.left_out} more rows count only in the total: --limit shows more"))
    if found.capacity:
        parts += [Text(""), _capacity(found.capacity, context)]
    if found.whole_since is not None:
        parts.append(
            Text(f"complete since {context.zoned(found.whole_since)}: jobs that ended earlier may have been deleted")
        )
    return Group(*parts)


def _rows(found: UsageView, context: RenderContext) -> Table:
    by = UsageGrouping.TENANT if found.by is None else found.by
    heads = {UsageGrouping.JOB: ("JOB", "NAME"), UsageGrouping.EPOCH: ("EPOCH", "NAME")}.get(
        by, (HEADS.get(by, by.name),)
    )
    numbers = ["GPU HOURS", "USED", "UNUSED", "LOST"]
    costs, energy = bool(found.currency), any(row.joules for row in found.rows)
    numbers += [found.currency] if costs else []
    numbers += ["kWh"] if energy else []
    kept = any(row.kept_bytes is not None for row in found.rows)
    numbers += ["FILES"] if kept else []
    last = ("ENDED",) if by is UsageGrouping.EPOCH else ("JOBS",)
    made = table(*heads, *numbers, *last, context=context, right=[*numbers, "JOBS"], flexible=heads[-1])
    for row in (*_benchmarks_in_one(found.rows), *(() if found.total is None else (found.total,))):
        total = row is found.total
        names = [row.key or NO_NAME, row.name][: len(heads)]
        cells = [
            hours(row.gpu_seconds_held),
            hours(row.gpu_seconds_used),
            hours(row.gpu_seconds_unused),
            hours(_lost(row)),
        ]
        cells += [money(row.cost)] if costs else []
        cells += [_kwh(row)] if energy else []
        cells += [UNKNOWN if row.kept_bytes is None else size_text(row.kept_bytes)] if kept else []
        cells.append(_ended(row, total=total or row.key == BENCHMARKS) if by is UsageGrouping.EPOCH else str(row.jobs))
        made.add_row(*(plain(name, "bold" if total else "") for name in names), *cells)
    return made


def _benchmarks_in_one(rows: Sequence[AccountRow]) -> list[AccountRow]:
    """The rows of people's jobs, and one for the benchmarks that Weft itself ran. Rows that are no jobs stay as they
    are: they have no tenant."""
    own = [row for row in rows if row.tenant == OWN_TENANT]
    if not own:
        return list(rows)
    used, joules = [row.gpu_seconds_used for row in own], [row.joules for row in own]
    unused = [row.gpu_seconds_unused for row in own]
    costs = [_exact(row.cost) for row in own]
    one = AccountRow(
        key=BENCHMARKS,
        name="of GPUs, by Weft",
        gpu_seconds_held=sum(row.gpu_seconds_held for row in own),
        gpu_seconds_used=None if None in used else sum(each or 0.0 for each in used),
        gpu_seconds_unused=None if None in unused else sum(each or 0.0 for each in unused),
        lost_preempted=sum(row.lost_preempted for row in own),
        lost_moved=sum(row.lost_moved for row in own),
        lost_failed=sum(row.lost_failed for row in own),
        cost=None if None in costs else str(sum(each or 0 for each in costs)),
        joules=None if None in joules else sum(each or 0.0 for each in joules),
        joules_emulated=any(row.joules_emulated for row in own),
        kept_bytes=sum(row.kept_bytes or 0 for row in own) if own[0].kept_bytes is not None else None,
        jobs=sum(row.jobs for row in own),
    )
    return [*(row for row in rows if row.tenant != OWN_TENANT), one]


def money(amount: str | None) -> str:
    """Return an amount in whole cents; an amount below one cent is shown as such."""
    exact = _exact(amount)
    if exact is None:
        return UNKNOWN
    return f"<{CENT}" if 0 < exact < CENT else f"{exact:,.2f}"


def _exact(amount: str | None) -> Decimal | None:
    return Decimal(amount) if amount is not None and AMOUNT.fullmatch(amount) else None


def _capacity(pools: tuple[CapacityView, ...], context: RenderContext) -> Table:
    names = ("HELD", "IDLE", "PLANNED", "DRAINED", "DOWN", "CAPACITY")
    made = table("POOL", *names, context=context, right=names)
    for pool in pools[1:] if len(pools) == 2 else (*pools[1:], *pools[:1]):
        figures = (pool.held - pool.gone, pool.idle, pool.planned, pool.drained, pool.down, pool.capacity)
        made.add_row(plain(pool.pool or "total"), *(hours(figure) for figure in figures))
    return made


def hours(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else f"{seconds / HOUR:,.3f}"


def _lost(row: AccountRow) -> float:
    return row.lost_preempted + row.lost_moved + row.lost_failed


def _kwh(row: AccountRow) -> str:
    if row.joules is None:
        return UNKNOWN
    return f"{row.joules / KWH:,.3f}{' emulated' if row.joules_emulated else ''}"


def _ended(row: AccountRow, *, total: bool) -> str:
    return "" if total else f"{row.ended} ({row.cause})" if row.ended else "goes on"
