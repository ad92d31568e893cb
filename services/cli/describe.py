"""`weft describe`: one job and its whole story, every event with its cause and who made it so; or the whole cluster.

With --at, the job or the cluster as it was then, by what had been told.
"""

import argparse
import time

from msgspec import Struct, structs

from libs.client import Client
from libs.messages.http import ClusterView, EventView, JobView
from services.cli import connection, page
from services.cli.drawing.cluster import cluster_screen
from services.cli.drawing.jobs import description, emulated_gpus_of
from services.cli.drawing.story import happened_at
from services.cli.moments import HELP, moment


class Described(Struct, frozen=True, kw_only=True):
    """What `--json` prints: what the API answers for the job, and for its events."""

    job: JobView
    events: tuple[EventView, ...]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("describe", help="one job and its whole story", description=__doc__)
    parser.add_argument(
        "job", nargs="?", metavar="JOB", help="its id, or its name: then the newest of that name; none: the cluster"
    )
    parser.add_argument("--at", metavar="TIME", help=HELP)
    connection.options(parser)
    parser.set_defaults(func=describe)


async def describe(args: argparse.Namespace) -> int:
    at = moment(args.at, now=time.time()) if args.at else ""
    async with connection.connected(args) as client:
        if not args.job:
            _show_cluster(await client.cluster(at=at), args)
            return 0
        job = await client.job(args.job, at=at)
        story = tuple(event for event in await client.story(job.id) if not at or event.data.version <= job.version)
        emulated = await _emulated(client, story, args)
    if args.json:
        page.json_line(Described(job=job, events=story))
    else:
        look = page.look()
        if at:
            look = structs.replace(look, now=happened_at(story[-1]) if "-" in at else float(at))
        page.show(description(job, story, look, emulated=emulated))
    return 0


def _show_cluster(view: ClusterView, args: argparse.Namespace) -> None:
    if args.json:
        page.json_line(view)
    else:
        page.show(cluster_screen(view, structs.replace(page.look(), now=view.at)))


async def _emulated(
    client: Client, story: tuple[EventView, ...], args: argparse.Namespace
) -> dict[tuple[str, int], bool]:
    was_placed = any(event.data.placement for event in story)
    return emulated_gpus_of((await client.nodes()).nodes if was_placed and not args.json else ())
