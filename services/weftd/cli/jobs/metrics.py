"""`weft metrics`: show the numbers that a job reported, such as its loss."""

import argparse
import csv
import io

from rich.table import Table

from weft.messages.metrics import POINTS_MAX, MetricsView
from weftd.cli import connection, page
from weftd.cli.rendering.context import plain, table

SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 40


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "metrics",
        help="show the numbers that a job reported, such as its loss",
        description="Show the series of numbers that a job reported with its steps, over all of its tries.",
        epilog="weft metrics train\nweft metrics train --csv >train.csv",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("job", metavar="JOB", help="id of the job, or its name (then the newest of that name)")
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="rank that reported them (default: 0)")
    parser.add_argument("--points", type=int, metavar="N", help=f"points to show, at most {POINTS_MAX} (default: 1000)")
    parser.add_argument("--csv", action="store_true", help="print every point, as CSV")
    connection.options(parser)
    parser.set_defaults(func=metrics)


async def metrics(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        found = await client.metrics(args.job, rank=args.rank, points=args.points or (POINTS_MAX if args.csv else 1000))
    if args.json:
        page.json_line(found)
    elif args.csv:
        page.write(csv_of(found))
    else:
        page.show(_table(found))
    if found.missing and not args.json:
        page.remark(f"without epoch {', '.join(map(str, found.missing))}: its node does not answer")
    return 0


def csv_of(found: MetricsView) -> bytes:
    """A line for each point: its time in seconds since 1970, then each series."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["at", *found.series])
    for place, at in enumerate(found.at):
        values = [series[place] for series in found.series.values()]
        writer.writerow([repr(at), *("" if value is None else repr(value) for value in values)])
    return text.getvalue().encode()


def spark(values: list[float], width: int = SPARK_WIDTH) -> str:
    """The values as a line of blocks, each the last value of its part."""
    if not values:
        return ""
    shown = (
        [values[(place + 1) * len(values) // width - 1] for place in range(width)] if len(values) > width else values
    )
    low, high = min(shown), max(shown)
    span = high - low
    return "".join(SPARKS[int((value - low) / span * 7.999) if span > 0 else 0] for value in shown)


def _table(found: MetricsView) -> Table:
    context = page.context()
    made = table("METRIC", "LAST", "LEAST", "MOST", "CURVE", context=context, right=("LAST", "LEAST", "MOST"))
    for name, series in found.series.items():
        values = [value for value in series if value is not None]
        numbers = (f"{number:.6g}" for number in (values[-1], min(values), max(values)))
        made.add_row(plain(name), *numbers, spark(values))
    return made
