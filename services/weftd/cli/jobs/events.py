"""`weft events`: what has happened, to all jobs and nodes or to one job; -f to go on as it happens."""

import argparse
from collections.abc import Sequence
from contextlib import aclosing

from weft.client import Client, Refused
from weft.client.events import FINAL_EVENTS
from weft.client.place import PATIENT_SECONDS
from weft.messages.http import ArrayView, EventView
from weftd.cli import connection, page
from weftd.cli.arrays import whole_array
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean
from weftd.cli.rendering.story import event_line, happened_at

_SHOWN = 50
ELEMENTS_MAX = 50  # of an array whose events are shown as one story


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("events", help="list the events of the cluster; -f to follow", description=__doc__)
    parser.add_argument(
        "job", nargs="?", metavar="JOB", help="job or array to list: all its events, and with -f until its end"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="print new events as they happen")
    parser.add_argument(
        "-n", "--limit", type=int, metavar="N", help=f"number of latest events (default: {_SHOWN}; for one job: all)"
    )
    connection.options(parser)
    parser.set_defaults(func=events)


async def events(args: argparse.Namespace) -> int:
    async with connection.connected(args, patience=PATIENT_SECONDS if args.follow else None) as client:
        try:
            past = await _past(client, args)
        except Refused as error:
            array = await whole_array(client, args.job) if args.job and error.status == 404 else None
            if array is None:
                raise
            return await _of_array(client, array, args)
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


async def _of_array(client: Client, array: ArrayView, args: argparse.Namespace) -> int:
    """Show the events of an array's elements in order; with -f, follow those of all jobs and leave the others out: a
    stream for each element would be more than the gateway opens."""
    if array.elements > ELEMENTS_MAX:
        few = f"events shows no more than {ELEMENTS_MAX} at once: say which, such as {clean(array.name)}_3"
        raise CliError(f"{clean(array.name)} has {array.elements} elements, and {few}")
    newest = await client.events(limit=1)  # read before the stories: what happens while they are read is followed
    ids = [job.id for job in (await client.elements(array.id, limit=ELEMENTS_MAX)).jobs]
    stories = [await client.story(each, limit=args.limit) for each in ids] if args.limit != 0 else []
    past = sorted((event for story in stories for event in story), key=_when)
    for event in past if args.limit is None else past[-args.limit :]:
        _say(event, args)
    if not args.follow or (await client.array(array.id)).over:
        return 0
    shown = {event.id for event in past}
    async with aclosing(client.follow_events(after=newest[-1].cursor if newest else "now")) as coming:
        async for event in coming:
            if event.subject not in ids or event.id in shown:
                continue
            _say(event, args)
            if event.type in FINAL_EVENTS and (await client.array(array.id)).over:
                return 0
    return 0


def _when(event: EventView) -> tuple[float, str, int]:
    return happened_at(event), event.subject, event.data.version


def _say(event: EventView, args: argparse.Namespace) -> None:
    page.drawn(args, event, lambda look: event_line(event, look))
