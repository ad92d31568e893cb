"""`weft explain`: why a job waits, which jobs hold what it needs, and when it may start; or why it runs in its
place."""

import argparse
from contextlib import suppress

from weft.client import Client, Refused
from weft.client.failure import last_words
from weft.domain.job import JobState
from weft.messages.http import JobView
from weftd.cli import connection, page
from weftd.cli.arrays import show_instead


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "explain", help="say why a job waits, or why it runs where it runs", description=__doc__
    )
    parser.add_argument("job", metavar="JOB", help="id or name of the job (the newest of that name)")
    connection.options(parser)
    parser.set_defaults(func=explain)


async def explain(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        try:
            told = await client.explain(args.job)
        except Refused:
            if await show_instead(client, args.job, json=args.json):
                return 0
            raise
        if args.json:
            page.json_line(told)
            return 0
        from weftd.cli.rendering.explanation import explanation, tuned_lines  # imports rich, which is slow to import
        from weftd.cli.rendering.failure import hint
        from weftd.cli.rendering.jobs import held_emulated

        nodes = (await client.nodes()).nodes if told.holders else ()
        job = await client.job(told.job_id) if told.state is JobState.FAILED else None
        words = await last_words(client, job) if job is not None else None
        holding = await _present(client, told.job_id) if told.state.holding else None
    context = page.context()
    tuned = tuned_lines(holding, context) if holding is not None else ()
    page.show(explanation(told, context, emulated=held_emulated(nodes), words=words, tuned=tuned))
    if job is not None and (advice := hint(job, words)):
        page.note(advice)
    return 0


async def _present(client: Client, job_id: str) -> JobView | None:
    """The job as it is now; None if it is not told: its explanation is shown all the same."""
    with suppress(Refused):
        return await client.job(job_id)
    return None
