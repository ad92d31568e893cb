"""Answers with rows: GPU-seconds by tenant, job, label, … or over time, as JSON or CSV."""

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import structs

from weft.messages.accounts import AccountRow, CapacityView, UsageGrouping
from weft.messages.series import UsageView
from weft.service import SettingsError
from weftd.gateway.accounting.accounts import GpuAccount
from weftd.gateway.thinking.accounting.capacity import PoolSplit
from weftd.gateway.thinking.accounting.prices import Prices, PricesError, read_prices
from weftd.gateway.thinking.accounting.rows import NANO, Books, rows_of
from weftd.gateway.thinking.accounting.used import UsedLedger

CSV = "text/csv"
# First characters that make a spreadsheet read a text as a formula; the wide ones count in some languages.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
COLUMNS = tuple(name for name in AccountRow.__struct_fields__)
BYTES_MAX = 1 << 20


def billed(
    found: GpuAccount,
    by: UsageGrouping,
    *,
    only: str | None,
    label: str,
    limit: int,
    prices: Prices | None,
    ledger: UsedLedger,
    capacity: bool,
) -> UsageView:
    """The bill of one tenant (`only`), or of all. May take a second: call it in a thread."""
    books = Books(nodes=found.nodes, prices=prices, ledger=ledger)
    shown = (one for one in found.stretches if only in (None, one.job.tenant))
    total, rows = rows_of(shown, by, books, label=label)
    everything = _all(found.pools.values())
    return UsageView(
        begins=found.begins / 1e6,
        ends=found.ends / 1e6,
        step_seconds=(found.ends - found.begins) / 1e6,
        gpu_seconds=everything.capacity * NANO,
        gpu_seconds_idle=(everything.capacity + everything.gone - everything.held) * NANO,
        by=by,
        total=total,
        rows=tuple(rows[:limit]),
        left_out=max(0, len(rows) - limit),
        capacity=_capacity(found.pools, everything) if capacity else (),
        currency="" if prices is None else prices.currency,
        whole_since=found.whole_since,
    )


def csv_of(view: UsageView) -> str:
    """A line for each row, with the names of its fields above them. Unknown values are empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for row in view.rows:
        writer.writerow([_cell(getattr(row, name)) for name in COLUMNS])
    return out.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.9f}"
    if isinstance(value, tuple):
        value = "; ".join(value)
    text = str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def _all(pools: Iterable[PoolSplit]) -> PoolSplit:
    found = PoolSplit()
    for pool in pools:
        for name in PoolSplit.__struct_fields__:
            setattr(found, name, getattr(found, name) + getattr(pool, name))
    return found


def _capacity(pools: Mapping[str, PoolSplit], everything: PoolSplit) -> tuple[CapacityView, ...]:
    named = [("", everything), *sorted(pools.items())]
    return tuple(
        CapacityView(pool=pool, **{name: amount * NANO for name, amount in structs.asdict(of).items()})
        for pool, of in named
        if not pool or any(structs.astuple(of))
    )


def read_prices_file(path: str) -> Prices | None:
    """None without a path. Raises SettingsError."""
    if not path:
        return None
    try:
        with Path(path).open("rb") as file:
            data = file.read(BYTES_MAX + 1)
        if len(data) > BYTES_MAX:
            raise PricesError(f"more than {BYTES_MAX} bytes")
        return read_prices(data.decode())
    except (OSError, UnicodeDecodeError, PricesError) as error:
        raise SettingsError(f"GATEWAY_PRICES_FILE: {path}: {error}") from error
