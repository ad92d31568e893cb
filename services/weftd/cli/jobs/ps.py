"""`weft ps`: the jobs that wait and run.

JOB is an id, how an id begins, a name, or a pattern of names such as 'mlp-*' (in quotes, so that the shell leaves it).
Benchmarks of GPUs are left out, unless they are asked for.
"""

import argparse
import time
from collections.abc import Mapping, Sequence

from msgspec import structs

from weft.client import Client, Refused
from weft.domain.classes import BENCHMARK_LABEL
from weft.domain.job import HOLDING, JobState
from weft.messages.eta import Estimate
from weft.messages.http import ArrayView, JobsView, NodesView
from weftd.cli import connection, page
from weftd.cli.arrays import whole_array
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean
from weftd.cli.jobs import selection

_PAGE = 100
_STARTS_MAX = 200  # of the jobs that wait, those whose start is asked for


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "ps",
        help="list open jobs; -a for all",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="list only these jobs, also those that have ended")
    parser.add_argument("-a", "--all", action="store_true", help="list ended jobs as well")
    selection.options(parser)
    parser.add_argument("--benchmarks", action="store_true", help="include benchmarks of GPUs")
    parser.add_argument("--elements", action="store_true", help="list each element of an array as a job")
    parser.add_argument("-q", "--quiet", action="store_true", help="print only ids, one per line")
    parser.add_argument(
        "--limit", type=_limit, default=_PAGE, metavar="N", help=f"number of newest jobs (default: {_PAGE})"
    )
    connection.options(parser)
    parser.set_defaults(func=ps)


async def ps(args: argparse.Namespace) -> int:
    if args.json and args.quiet:
        raise CliError("choose one of --json and --quiet", status=2)
    wanted = selection.filter_of(args, now=time.time())
    states = () if args.all or args.jobs else selection.OPEN
    meant = bool(args.benchmarks or args.jobs or wanted.name or any(BENCHMARK_LABEL in each for each in wanted.labels))
    # An array is one row, unless its elements are asked for one by one.
    elements = bool(args.elements or args.json or args.jobs or not wanted.is_empty)
    async with connection.connected(args) as client:
        view = await selection.matching(
            client,
            wanted,
            args.jobs,
            states=states,
            limit=args.limit,
            benchmarks=meant,
            elements=elements,
            page_size=_PAGE,
        )
        if view.before is not None and not args.jobs and not wanted.states:
            view = await _with_running(client, wanted, view, args, meant=meant, elements=elements)
        holding = any(job.state.holding for job in view.jobs)
        bare = args.json or args.quiet
        nodes = await client.nodes() if holding and not bare else NodesView(nodes=())
        starts = {} if bare else await _starts(client, view)
        arrays = await _named(client, args, view) if elements else await _arrays(client, args)
    if args.json:
        page.json_line(view)
        return 0
    if args.quiet:
        _print_ids(view, arrays)
        return 0
    if not view.jobs and not arrays:
        _say_none(args, wanted, states)
        return 0
    _draw(view, arrays, nodes, starts)
    if view.before is not None:
        page.note(f"there are older ones: --limit {2 * args.limit}")
    return 0


def _draw(view: JobsView, arrays: Sequence[ArrayView], nodes: NodesView, starts: Mapping[str, Estimate]) -> None:
    from weftd.cli.rendering.arrays import arrays_table  # imports rich, which is slow to import
    from weftd.cli.rendering.jobs import held_emulated, jobs_table, silences

    tenants = len({job.tenant for job in view.jobs}) > 1
    emulated, silent = held_emulated(nodes.nodes), silences(nodes.nodes)
    if view.jobs:
        page.show(
            jobs_table(view.jobs, page.context(), emulated=emulated, silent=silent, tenants=tenants, starts=starts)
        )
    if arrays:
        several = len({job.tenant for job in view.jobs} | {array.tenant for array in arrays}) > 1
        page.show(arrays_table(arrays, page.context(), tenants=several))


def _print_ids(view: JobsView, arrays: Sequence[ArrayView]) -> None:
    """Each id on a line of its own: the jobs first, then the arrays."""
    for found in (*[job.id for job in view.jobs], *[array.id for array in arrays]):
        print(clean(found))


def _say_none(args: argparse.Namespace, wanted: selection.Filter, states: tuple[JobState, ...]) -> None:
    if args.jobs or not wanted.is_empty:
        page.remark(selection.nothing_matches(wanted, args.jobs, states))
    else:
        page.note("no jobs" if args.all else "no job waits or runs; -a shows those that have ended")


async def _with_running(
    client: Client, wanted: selection.Filter, view: JobsView, args: argparse.Namespace, *, meant: bool, elements: bool
) -> JobsView:
    """The jobs that hold something first, however many newer ones wait; then the newest of the others."""
    running = await selection.matching(
        client,
        structs.replace(wanted, states=tuple(sorted(HOLDING))),
        states=(),
        limit=args.limit,
        benchmarks=meant,
        elements=elements,
        page_size=_PAGE,
    )
    known = {job.id for job in running.jobs}
    others = [job for job in view.jobs if job.id not in known and not job.state.holding]
    return structs.replace(view, jobs=(*running.jobs, *others)[: args.limit])


async def _named(client: Client, args: argparse.Namespace, view: JobsView) -> Sequence[ArrayView]:
    """The arrays among the words, by id or name: no job has that name or id."""
    if args.json:
        return ()
    words = [word for word in args.jobs if word not in {job.name for job in view.jobs} | {job.id for job in view.jobs}]
    found = [await whole_array(client, word) for word in words]
    return [array for array in found if array is not None]


async def _arrays(client: Client, args: argparse.Namespace) -> Sequence[ArrayView]:
    """One row for each; none from a gateway that has no arrays."""
    try:
        return (await client.arrays(opened=not args.all)).arrays
    except Refused as error:
        if error.status == 404:
            return ()
        raise


async def _starts(client: Client, view: JobsView) -> Mapping[str, Estimate]:
    """The estimated starts of waiting jobs, from one request."""
    if not any(job.state is JobState.QUEUED for job in view.jobs):
        return {}
    try:
        queue = await client.queue(limit=_STARTS_MAX)
    except Refused:  # the list is worth more than its estimates
        return {}
    return {row.id: row.eta for row in queue.rows if row.eta is not None}


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < len(text) <= 9 and int(text) > 0):
        raise argparse.ArgumentTypeError(f"expected a number of jobs such as 100, got {text[:100]!r}")
    return int(text)
