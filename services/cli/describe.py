"""`weft describe`: one job and its whole story, every event with its cause and who made it so."""

import argparse

from msgspec import Struct

from libs.messages.http import EventView, JobView
from services.cli import connection, page
from services.cli.drawing.jobs import description, emulated_gpus_of


class Described(Struct, frozen=True, kw_only=True):
    """What `--json` prints: what the API answers for the job, and for its events."""

    job: JobView
    events: tuple[EventView, ...]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("describe", help="one job and its whole story", description=__doc__)
    parser.add_argument("job", metavar="JOB", help="its id, or its name: then the newest of that name")
    connection.options(parser)
    parser.set_defaults(func=describe)


async def describe(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        job = await client.job(args.job)
        story = await client.story(job.id)
        was_placed = any(event.data.placement for event in story)
        nodes = (await client.nodes()).nodes if was_placed and not args.json else ()
    if args.json:
        page.json_line(Described(job=job, events=story))
    else:
        page.show(description(job, story, page.look(), emulated=emulated_gpus_of(nodes)))
    return 0
