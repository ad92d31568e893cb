"""`weft usage`: GPU hours held, used and lost, and their cost: by tenant, job, epoch, kind, model, label or day.

`--by` is tenant, job, epoch, kind, model, pool, day, hour, or label:NAME. A tenant's token sees the tenant; an
administrator's sees all, and what became of the capacity. docs/accounting.md says what each figure is.
"""

import argparse
import math
import time

from weft.domain.quantity import duration_seconds
from weft.messages.accounts import UsageGrouping
from weftd.cli import connection, page
from weftd.cli.cli_error import CliError
from weftd.cli.jobs.moments import moment
from weftd.cli.rendering.usage import usage_page

DAY = 86_400
TIME_MAX = 253_402_300_800.0  # the year 10000
WHAT = ", ".join(by.value for by in UsageGrouping if by is not UsageGrouping.LABEL) + ", label:NAME"


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("usage", help="GPU hours held, used and lost, and their cost", description=__doc__)
    parser.add_argument("--by", default="tenant", metavar="WHAT", help=f"{WHAT} (default: tenant)")
    parser.add_argument(
        "--since", default="1d", metavar="TIME", help="start of the period: 12h, 30d, 14:57, 2026-01-31 (default: 1d)"
    )
    parser.add_argument("--until", metavar="TIME", help="end of the period, in the form of --since (default: now)")
    parser.add_argument("--tenant", default="", help="tenant to show (default: all)")
    parser.add_argument("--limit", type=int, default=1000, metavar="N", help="maximum number of rows (default: 1000)")
    parser.add_argument("--csv", action="store_true", help="print every field of every row as CSV")
    connection.options(parser)
    parser.set_defaults(func=usage)


async def usage(args: argparse.Namespace) -> int:
    if args.csv and args.json:
        raise CliError("choose one of --csv and --json", status=2)
    by, label = _by(args.by)
    now = time.time()
    until = None if args.until is None else _time(args.until, "--until", now)
    begins = _time(args.since, "--since", now)
    seconds = round((now if until is None else until) - begins)
    if seconds < 1:
        raise CliError("the period must end after it begins", field="--until" if args.until else "--since", status=2)
    async with connection.connected(args) as client:
        wanted = {"by": by, "label": label, "tenant": args.tenant, "seconds": max(60, seconds), "limit": args.limit}
        if args.csv:
            page.text(await client.usage_csv(**wanted, until=until))
            return 0
        found = await client.usage(**wanted, until=until)
    page.drawn(args, found, lambda look: usage_page(found, look))
    return 0


def _by(text: str) -> tuple[UsageGrouping, str]:
    name, colon, label = text.partition(":")
    try:
        by = UsageGrouping(name)
    except ValueError:
        raise CliError(f"expected {WHAT}, not {text!r}", field="--by", status=2) from None
    if (by is UsageGrouping.LABEL) != bool(colon and label):
        raise CliError(f"expected {WHAT}, not {text!r}", field="--by", status=2)
    return by, label


def _time(text: str, option: str, now: float) -> float:
    try:
        return now - duration_seconds(text)
    except ValueError:
        pass
    try:
        at = float(moment(text, now=now))
    except (CliError, ValueError):
        at = math.nan
    if not 0 <= at <= TIME_MAX:
        raise CliError(f"expected a time such as 12h, 30d, 14:57 or 2026-01-31, got {text!r}", field=option, status=2)
    return at
