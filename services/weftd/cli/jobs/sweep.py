"""`weft sweep`: a sweep as a table, with the values and the result of each element."""

import argparse
import csv
import io
import math

from msgspec import structs
from rich.table import Table

from weft.domain.job import CauseCode
from weft.domain.spec import MetricGoal
from weft.messages.sweeps import SweepRow, SweepView
from weftd.cli import connection, page
from weftd.cli.cli_error import CliError
from weftd.cli.jobs.metrics import spark
from weftd.cli.rendering.context import plain, state_text, table

COLUMNS = ("index", "best", "last", "state")


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "sweep",
        help="show a sweep as a table: values, metric, curve",
        description="Show the elements of a sweep or an array with their values, the last and the best of a metric that"
        " they reported, and its curve. The best is first.",
        epilog="weft sweep tune --metric accuracy --goal max\nweft sweep tune --best --json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("array", metavar="JOB", help="id or name of the array (then the newest of that name)")
    parser.add_argument("--metric", default="", help="metric to compare (default: that of early_stop, else the first)")
    parser.add_argument(
        "--goal",
        choices=[goal.value for goal in MetricGoal],
        help="direction of the metric (default: that of early_stop, else min)",
    )
    parser.add_argument(
        "--sort", default="best", metavar="COLUMN", help="sort by best, last, index, state, or a parameter of the sweep"
    )
    parser.add_argument("--best", action="store_true", help="print only the best element")
    parser.add_argument("--csv", action="store_true", help="print CSV")
    connection.options(parser)
    parser.set_defaults(func=sweep)


async def sweep(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        goal = None if args.goal is None else MetricGoal(args.goal)
        found = await client.sweep(args.array, metric=args.metric, goal=goal)
    rows = sorted(found.rows, key=lambda row: _place(row, args.sort, found))
    if args.best:
        best = found.best()
        if best is None:
            raise CliError(f"no element of {found.name} reported {found.metric or 'any metric'}")
        rows = [best]
    if args.json:
        page.json_line(rows[0] if args.best else structs.replace(found, rows=tuple(rows)))
    elif args.csv:
        page.write(_csv(found, rows))
    else:
        page.show(_table(found, rows))
    return 0


def _place(row: SweepRow, column: str, found: SweepView) -> tuple[float, str, int]:
    """Sort key of a row: the best first, rows without a value last."""
    if column in ("best", "last"):
        value = row.best if column == "best" else row.last
        sign = 1 if found.goal is MetricGoal.MIN else -1
        return (math.inf if value is None else sign * value, "", row.index)
    if column in COLUMNS:
        return (0.0, row.state if column == "state" else "", row.index)
    if not any(column in each.values for each in found.rows):
        names = ", ".join([*COLUMNS, *_names(found.rows)])
        raise CliError(f"{column[:60]} is no column; there is {names}", field="--sort", status=2)
    text = row.values.get(column, "")
    try:
        return (float(text), "", row.index)
    except ValueError:
        return (math.inf, text, row.index)


def _names(rows: tuple[SweepRow, ...] | list[SweepRow]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.values))


def why(row: SweepRow) -> str:
    """Why the element ended, in a word or a sentence; empty if it succeeded or goes on."""
    if row.ended_for is None:
        return ""
    return "stopped early" if row.ended_for.code is CauseCode.STOPPED_EARLY else row.ended_for.sentence


def _csv(found: SweepView, rows: list[SweepRow]) -> bytes:
    text, names = io.StringIO(), _names(rows)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["index", "job", *names, "metric", "last", "best", "state", "why"])
    for row in rows:
        numbers = ["" if value is None else repr(value) for value in (row.last, row.best)]
        values = [row.values.get(name, "") for name in names]
        writer.writerow([row.index, row.id, *values, found.metric, *numbers, row.state, why(row)])
    return text.getvalue().encode()


def _table(found: SweepView, rows: list[SweepRow]) -> Table:
    names = _names(rows)
    metric = found.metric.upper() or "METRIC"
    columns = ("INDEX", *(name.upper() for name in names), f"BEST {metric}", f"LAST {metric}", "STATE", "WHY", "CURVE")
    made = table(*columns, context=page.context(), right=("INDEX",), flexible="WHY")
    for row in rows:
        numbers = ["-" if value is None else f"{value:.6g}" for value in (row.best, row.last)]
        values = [plain(row.values.get(name, "")) for name in names]
        made.add_row(
            str(row.index), *values, *numbers, state_text(row.state), plain(why(row)), spark(list(row.curve), 20)
        )
    return made
