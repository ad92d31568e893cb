"""`weft cordon`, `weft drain` and `weft resume`: nodes that take no new jobs, are emptied, and take jobs again."""

import argparse
import asyncio
import sys
import time
from collections.abc import Collection

from weft.client import Client
from weft.domain.text import plural
from weft.messages.http import Accepted, NodeView
from weftd.cli import connection
from weftd.cli.formatting import clean
from weftd.cli.jobs.act import each
from weftd.cli.jobs.moments import later

LOOK_SECONDS = 1.0
_CORDON = "give nodes no new jobs; running jobs continue"
_DRAIN = (
    "give nodes no new jobs. Running jobs continue; with --evict they stop with their grace and start again elsewhere,"
    " which uses no retry. A second drain of a node replaces its reason and its end"
)


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    _draining(commands, "cordon", _CORDON)
    parser = _draining(commands, "drain", _DRAIN)
    parser.add_argument("--evict", action="store_true", help="stop its jobs; those of a service replica by replica")
    parser.add_argument(
        "--wait", action="store_true", help="wait until nothing runs there; Ctrl-C does not end the drain"
    )
    parser = commands.add_parser("resume", help="let drained nodes take jobs again")
    parser.add_argument("ids", nargs="+", metavar="NODE")
    connection.options(parser)
    parser.set_defaults(func=resume)


def _draining(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, summary: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=summary, description=summary)
    parser.add_argument("ids", nargs="+", metavar="NODE")
    parser.add_argument("--reason", default="", metavar="TEXT", help="reason, shown by `explain` and `nodes`")
    parser.add_argument("--until", metavar="TIME", help="end of the drain: 2h, 18:00, 2026-01-31T12:00")
    connection.options(parser)
    parser.set_defaults(func=drain, evict=False, wait=False)
    return parser


async def drain(args: argparse.Namespace) -> int:
    until = None if args.until is None else later(args.until, now=time.time())

    async def one(client: Client, node: str) -> Accepted:
        return await client.drain(node, reason=args.reason, until=until, evict=args.evict)

    async with connection.connected(args) as client:
        status = await each(client, args, args.ids, one, "{id} takes no new jobs")
        if args.wait and not status:
            await _until_empty(client, frozenset(args.ids))
    return status


async def resume(args: argparse.Namespace) -> int:
    async def one(client: Client, node: str) -> Accepted:
        return await client.resume(node)

    async with connection.connected(args) as client:
        return await each(client, args, args.ids, one, "{id} takes jobs again")


async def _until_empty(client: Client, wanted: Collection[str]) -> None:
    """Return when no job holds anything on these nodes; report every change of the holdings on stderr."""
    told = ""
    while True:
        nodes = [node for node in (await client.nodes()).nodes if node.id in wanted]
        held = [f"{node.id} ({plural(_gpus_held(node), 'GPU')})" for node in nodes if _holds(node)]
        if not held:
            return
        if (now := f"waiting for {', '.join(held)}") != told:
            told = now
            print(f"weft: {clean(told)}", file=sys.stderr, flush=True)
        await asyncio.sleep(LOOK_SECONDS)


def _gpus_held(node: NodeView) -> int:
    return sum(gpu.held_by is not None for gpu in node.gpus)


def _holds(node: NodeView) -> bool:
    return bool(_gpus_held(node) or node.memory_allocated or node.cpus_allocated)
