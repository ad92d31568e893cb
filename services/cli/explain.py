"""`weft explain`: why a job waits, which jobs hold what it needs, and when it may start; or why it is where it is."""

import argparse

from libs.domain.job import JobState
from services.cli import connection, page
from services.cli.drawing.explanation import explanation
from services.cli.drawing.jobs import held_emulated
from services.cli.failure import hint, last_words


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("explain", help="why a job waits, or why it is where it is", description=__doc__)
    parser.add_argument("job", metavar="JOB", help="its id, or its name: then the newest of that name")
    connection.options(parser)
    parser.set_defaults(func=explain)


async def explain(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        told = await client.explain(args.job)
        nodes = (await client.nodes()).nodes if told.holders and not args.json else ()
        failed = told.state is JobState.FAILED and not args.json
        job = await client.job(told.job_id) if failed else None
        words = await last_words(client, job) if job is not None else None
    if args.json:
        page.json_line(told)
    else:
        page.show(explanation(told, page.look(), emulated=held_emulated(nodes), words=words))
        if job is not None and (advice := hint(job, words)):
            page.note(advice)
    return 0
