"""`weft what-if`: who would gain and who would lose if something were different, from the present queue on.

Nothing is changed. Both sides begin with the cluster as it is, and take the scheduler's own walk; how long jobs last is
assumed, alike on both sides. Another policy (`--order`, `--placement`, `--backfill`), more nodes, drained nodes, and
jobs that are not there can be combined.
"""

import argparse
from pathlib import Path
from typing import Any

import msgspec

from weft.domain.decoding.spec_decoder import SpecError, decode_spec
from weft.domain.quantity import duration_seconds
from weft.messages.whatif import WhatIfView, WhatIfWanted
from weftd.cli import connection, page
from weftd.cli.cli_error import CliError
from weftd.cli.jobs.submit import content_of, read_spec
from weftd.cli.rendering.what_if import what_if_page


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "what-if", help="simulate the queue with a change, and compare each job", description=__doc__
    )
    parser.add_argument("--order", default="", metavar="NAME", help="order of the queue, such as las")
    parser.add_argument("--placement", default="", metavar="NAME", help="placement policy, such as packed-sticky")
    parser.add_argument("--backfill", default="", metavar="NAME", help="backfill policy, such as none")
    parser.add_argument("--add-nodes", type=int, default=0, metavar="N", help="number of nodes to add")
    parser.add_argument("--drain", action="append", default=[], metavar="NODE", help="node to drain; repeatable")
    parser.add_argument("--submit", action="append", default=[], metavar="FILE", help="job to add; repeatable")
    parser.add_argument("--ahead", default="30d", metavar="TIME", help="simulated time ahead (default: 30d)")
    parser.add_argument("--pool", default="", help="pool to simulate (default: the default pool)")
    connection.options(parser)
    parser.set_defaults(func=what_if)


async def what_if(args: argparse.Namespace) -> int:
    wanted = _wanted(args)
    async with connection.connected(args) as client:
        view = await client.what_if(wanted)
    _say(view, args)
    return 0


def _wanted(args: argparse.Namespace) -> WhatIfWanted:
    fields: dict[str, Any] = {
        "order": args.order,
        "placement": args.placement,
        "backfill": args.backfill,
        "add_nodes": args.add_nodes,
        "drain": args.drain,
        "submit": [_specification(name) for name in args.submit],
        "seconds_max": _seconds(args.ahead),
        "pool": args.pool,
    }
    try:
        return msgspec.convert(fields, WhatIfWanted)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at ")
        option = path.strip("`").removeprefix("$.").partition("[")[0].replace("_", "-")
        raise CliError(reason.replace("`", ""), field=f"--{_OPTIONS.get(option, option)}", status=2) from error


_OPTIONS = {"seconds-max": "ahead"}


def _specification(name: str) -> Any:
    body = read_spec(name)
    try:
        return msgspec.to_builtins(decode_spec(body, content=content_of(name, body)))
    except SpecError as error:
        raise CliError(error.reason, field=f"{Path(name).name}: {error.field}".removesuffix(": ")) from error


def _seconds(text: str) -> int:
    try:
        return round(duration_seconds(text))
    except ValueError as error:
        raise CliError(str(error), field="--ahead", status=2) from error


def _say(view: WhatIfView, args: argparse.Namespace) -> None:
    if args.json:
        page.json_line(view)
        return
    page.show(what_if_page(view, page.context()))
    if view.jobs_left_out:
        page.note(f"{view.jobs_left_out:,} more jobs, which change less, are not shown; --json has the counts")
