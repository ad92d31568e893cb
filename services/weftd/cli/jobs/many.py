"""Commands for many jobs at once: cancel, requeue.

JOB is an id, how an id begins, a name, or a pattern of names such as 'mlp-*' (in quotes, so that the shell leaves it).
"""

import argparse
import time
from collections.abc import Awaitable, Callable, Sequence

from weft.client import Client
from weft.domain.job import HOLDING, JobState
from weft.domain.selection import is_pattern, simplified
from weft.domain.text import plural
from weft.messages.asks import AskKind
from weft.messages.http import Accepted, ArrayAsked, JobsAsked
from weftd.cli import arrays, connection, page
from weftd.cli.cli_error import CliError
from weftd.cli.jobs import selection
from weftd.cli.jobs.act import EACH_SHOWN_MAX, Ask, each, named_job

_CANCEL = "end jobs: SIGTERM, their grace, SIGKILL"
_REQUEUE = "send jobs back to the queue, to start again from their checkpoints"
_SUMMARIES = {
    "cancel": "{count} of {asked} jobs will end",
    "requeue": "{count} of {asked} jobs will go back to the queue",
}


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    _add(commands, "cancel", cancel, _CANCEL)
    parser = _add(commands, "requeue", requeue, _REQUEUE)
    parser.add_argument("--failed", action="store_true", help="requeue only the failed elements of an array")


def _add(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    act: Callable[[argparse.Namespace], Awaitable[int]],
    summary: str,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, help=summary, description=f"{summary}. {(__doc__ or '').partition(chr(10))[2].strip()}"
    )
    parser.add_argument("ids", nargs="*", metavar="JOB", help="id, beginning of an id, name, or name pattern")
    selection.options(parser)
    selection.sure(parser, name)
    connection.options(parser)
    parser.set_defaults(func=act)
    return parser


async def cancel(args: argparse.Namespace) -> int:
    async def one(client: Client, job: str) -> Accepted | ArrayAsked:
        found = await named_job(client, job)
        asked = await arrays.cancel(client, job) if found is None else None
        return asked or await client.cancel(found or job)

    sentence = "{id} will end (it is {state})"
    return await _each(args, one, "cancel", sentence, states=selection.OPEN, together=_cancel_together)


async def requeue(args: argparse.Namespace) -> int:
    async def one(client: Client, job: str) -> Accepted | ArrayAsked:
        found = None if args.failed else await named_job(client, job)
        asked = await arrays.requeue(client, job, failed=args.failed) if found is None else None
        return asked or await client.requeue(found or job)

    sentence = "{id} will go back to the queue (it is {state})"
    return await _each(args, one, "requeue", sentence, states=sorted(HOLDING))


async def _each(
    args: argparse.Namespace,
    one: Ask,
    deed: str,
    sentence: str,
    *,
    states: Sequence[JobState],
    together: Callable[[Client, argparse.Namespace, selection.Filter], Awaitable[int]] | None = None,
) -> int:
    """Do it to each job that is meant. `states`: those that a pattern or an option means if it names none;
    `together`: does it to all jobs of patterns and options by one request, if there is such a request."""
    wanted = selection.filter_of(args, now=time.time())
    if args.all and args.ids:
        raise CliError("say JOB or --all, not both", status=2)
    if not (args.ids or args.all) and wanted.is_empty:
        raise CliError(
            f"say which jobs: by id, name or pattern, by an option such as --name '{deed}-*', or --all", status=2
        )
    async with connection.connected(args) as client:
        if wanted.is_empty and not args.all and not any(is_pattern(word) for word in args.ids):
            return await each(client, args, args.ids, one, sentence, summary=_SUMMARIES[deed])
        all_are_patterns = all(is_pattern(word) for word in args.ids)
        means_all = args.all or _means_all(args.ids, wanted)
        if together is not None and all_are_patterns and (args.yes or not means_all):
            return await together(client, args, wanted)
        found = (await selection.matching(client, wanted, args.ids, states=states)).jobs
        if not found:
            raise CliError(selection.nothing_matches(wanted, args.ids, states))
        if means_all:
            selection.confirm(found, deed, yes=args.yes)
            if together is not None and all_are_patterns:
                return await together(client, args, wanted)
        ids = [job.id for job in found]
        status = await each(client, args, ids, one, sentence, summary=_SUMMARIES[deed])
    if 1 < len(found) <= EACH_SHOWN_MAX:
        page.note(f"{deed}: {len(found)} jobs")
    return status


async def _cancel_together(client: Client, args: argparse.Namespace, wanted: selection.Filter) -> int:
    """One request for all jobs that options and patterns mean; of very many, one for each ten thousand."""
    if args.ids and wanted.name:
        raise CliError("say JOB or --name, not both", status=2)
    asked = 0
    for name in [simplified(word) for word in args.ids] or [wanted.name]:
        more = True
        while more:
            answer = await client.cancel_selected(
                states=wanted.states, name=name, every=args.all or _means_all(args.ids, wanted), **wanted.query
            )
            asked, more = asked + answer.jobs, answer.more
            if more:
                page.note(f"cancel: {asked:,} jobs so far")
    if not asked:
        raise CliError(selection.nothing_matches(wanted, args.ids, selection.OPEN))
    page.answered(args, JobsAsked(ask=AskKind.CANCEL, jobs=asked), f"{plural(asked, 'job')} will end")
    return 0


def _means_all(words: Sequence[str], wanted: selection.Filter) -> bool:
    """True if a pattern means every job of the caller, as `--all` does."""
    return any(set(word) == {"*"} for word in [*words, wanted.name] if word)
