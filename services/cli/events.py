"""`weft events`: what has happened, to all jobs and nodes or to one job; -f to go on as it happens."""

import argparse
from collections.abc import Sequence
from contextlib import aclosing

from libs.client import Client
from libs.messages.http import EventView
from services.cli import connection, page
from services.cli.drawing.story import event_line

_SHOWN = 50


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("events", help="what has happened; -f to follow", description=__doc__)
    parser.add_argument("job", nargs="?", metavar="JOB", help="of one job only: all its events, and with -f to its end")
    parser.add_argument("-f", "--follow", action="store_true", help="go on as it happens")
    parser.add_argument("-n", "--limit", type=int, metavar="N", help=f"the last N (default: {_SHOWN}; of one job: all)")
    connection.options(parser)
    parser.set_defaults(func=events)


async def events(args: argparse.Namespace) -> int:
    async with connection.connected(args, patience=connection.PATIENT_SECONDS if args.follow else None) as client:
        past = await _past(client, args)
        for event in past:
            _say(event, args)
        if args.follow:
            await _follow(client, args, past)
    return 0


async def _past(client: Client, args: argparse.Namespace) -> Sequence[EventView]:
    limit = _SHOWN if args.limit is None and not args.job else args.limit
    if limit == 0:
        return ()
    return await client.story(args.job, limit=limit) if args.job else await client.events(limit=limit)


async def _follow(client: Client, args: argparse.Namespace, past: Sequence[EventView]) -> None:
    """Follow from the last event shown: none is missed, none is shown twice."""
    after = past[-1].cursor if past else "now" if args.limit == 0 else ""
    async with aclosing(client.follow_events(job=args.job or "", after=after)) as coming:
        async for event in coming:
            _say(event, args)


def _say(event: EventView, args: argparse.Namespace) -> None:
    if args.json:
        page.json_line(event)
    else:
        page.show(event_line(event, page.look()))
