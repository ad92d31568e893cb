"""`weft export`: the queue and the history as a trace, which `weft simulate --trace` reads.

One row for each job of the last days (`--since`) and for each that waits or runs. Of a job that is not over, how long
it will run is assumed, and the column `basis` says by what. Needs an administrator's token.
"""

import argparse

from weft.domain.quantity import duration_seconds
from weft.domain.text import plural
from weftd.cli import connection, page
from weftd.cli.cli_error import CliError


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "export", help="export the queue and the history as a trace, for `weft simulate`", description=__doc__
    )
    parser.add_argument(
        "--since", default="7d", metavar="TIME", help="length of the history, such as 12h or 30d (default: 7d)"
    )
    parser.add_argument("--pool", default="", help="pool to export (default: the default pool)")
    connection.options(parser)
    parser.set_defaults(func=export)


async def export(args: argparse.Namespace) -> int:
    if args.json:
        raise CliError("a trace is CSV, no JSON: leave --json out", status=2)
    async with connection.connected(args) as client:
        trace = await client.trace(seconds=_seconds(args.since), pool=args.pool)
    page.text(trace)
    jobs = trace.count(b"\n") - 1
    page.note(f"{plural(jobs, 'job')}; `weft simulate --trace FILE` runs them")
    return 0


def _seconds(text: str) -> int:
    try:
        return max(1, round(duration_seconds(text)))
    except ValueError as error:
        raise CliError(str(error), field="--since", status=2) from error
