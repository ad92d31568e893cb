"""`weft describe`: one job and its whole story, every event with its cause and its author; or the whole cluster.

With --at, the job or the cluster as it was then, by its events.
"""

import argparse
import time
from contextlib import suppress

from msgspec import Struct, structs

from weft.client import Client, Refused
from weft.client.failure import last_words
from weft.client.tracking import TrackingPage, tracking_pages
from weft.messages.http import ClusterView, EventView, JobView, NodeView
from weftd.cli import connection, page
from weftd.cli.arrays import show_instead
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import span
from weftd.cli.jobs.moments import HELP, moment
from weftd.cli.rendering.cluster import cluster_screen
from weftd.cli.rendering.jobs import description, emulated_gpus_of, silences
from weftd.cli.rendering.story import happened_at

_NAMED_MAX = 5  # other jobs whose names are requested


class Described(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The output of `--json`: the API's answers for the job and for its events, and the pages of trackers that its log
    names."""

    job: JobView
    events: tuple[EventView, ...]
    tracking: tuple[TrackingPage, ...] = ()


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("describe", help="show a job and its event history", description=__doc__)
    parser.add_argument(
        "job", nargs="?", metavar="JOB", help="id or name of a job (the newest of that name); default: the cluster"
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
        try:
            job = await _job(client, args.job, at)
        except Refused:
            if not at and await show_instead(client, args.job, json=args.json):
                return 0
            raise
        story = tuple(event for event in await client.story(job.id) if not at or event.data.version <= job.version)
        nodes = await _nodes(client, story, args)
        words = await last_words(client, job) if not args.json and not at else None
        pages = await tracking_pages(client, job) if not at else ()
        names = await _names(client, story) if not args.json else {}
    if args.json:
        page.json_line(Described(job=job, events=story, tracking=pages))
    else:
        context = page.context()
        if at:
            context = structs.replace(context, now=happened_at(story[-1]) if "-" in at else float(at))
        silent = {} if at else silences(nodes)
        emulated = emulated_gpus_of(nodes)
        shown = description(
            job, story, context, emulated=emulated, silent=silent, words=words, names=names, pages=pages
        )
        page.show(shown)
    return 0


def _show_cluster(view: ClusterView, args: argparse.Namespace) -> None:
    page.drawn(args, view, lambda context: cluster_screen(view, structs.replace(context, now=view.at)))


async def _job(client: Client, wanted: str, at: str) -> JobView:
    try:
        return await client.job(wanted, at=at)
    except Refused as error:
        if not (at and error.status == 404 and error.field == "at"):
            raise
    job, context = await client.job(wanted), page.context()
    age = span(context.now - job.submitted_at)
    raise CliError(
        f"{job.name} did not exist then: it was submitted at {context.clock(job.submitted_at)}, {age} ago"
    ) from None


async def _nodes(client: Client, story: tuple[EventView, ...], args: argparse.Namespace) -> tuple[NodeView, ...]:
    was_placed = any(event.data.placement for event in story)
    return (await client.nodes()).nodes if was_placed and not args.json else ()


async def _names(client: Client, story: tuple[EventView, ...]) -> dict[str, str]:
    """The names of the newest jobs in the causes of this story that the caller may see."""
    by = [event.data.cause.by for event in story if event.data.cause is not None]
    names: dict[str, str] = {}
    for job_id in list(dict.fromkeys(one for one in reversed(by) if one.startswith("j-")))[:_NAMED_MAX]:
        with suppress(Refused):
            names[job_id] = (await client.job(job_id)).name
    return names
