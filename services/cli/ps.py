"""`weft ps`: the jobs that wait and run."""

import argparse

from libs.client import Client
from libs.domain.job import FINAL, JobState
from libs.messages.http import JobsView, NodesView
from services.cli import connection, page
from services.cli.arrays import arrays_table
from services.cli.drawing.jobs import held_emulated, jobs_table, silences

_PAGE = 100


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("ps", help="the jobs that wait and run; -a for all", description=__doc__)
    parser.add_argument("-a", "--all", action="store_true", help="those that are over too")
    parser.add_argument(
        "--state",
        action="append",
        default=[],
        choices=[state.value for state in JobState],
        help="only these; repeat it",
    )
    parser.add_argument("--name", default="", help="only jobs of this name")
    parser.add_argument("--elements", action="store_true", help="the elements of arrays each as a job")
    parser.add_argument("--limit", type=int, default=_PAGE, metavar="N", help=f"the newest N (default: {_PAGE})")
    connection.options(parser)
    parser.set_defaults(func=ps)


async def ps(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        view = await _jobs(client, args)
        holding = any(job.state.holding for job in view.jobs)
        nodes = await client.nodes() if holding and not args.json else NodesView(nodes=())
        arrays = [] if _with_elements(args) else (await client.arrays(opened=not args.all)).arrays
    if args.json:
        page.json_line(view)
        return 0
    if not view.jobs and not arrays:
        page.note("no jobs" if args.all or args.state else "no job waits or runs; -a shows those that are over")
        return 0
    tenants = len({job.tenant for job in view.jobs}) > 1
    emulated, silent = held_emulated(nodes.nodes), silences(nodes.nodes)
    if view.jobs:
        page.show(jobs_table(view.jobs, page.look(), emulated=emulated, silent=silent, tenants=tenants))
    if arrays:
        several = len({job.tenant for job in view.jobs} | {array.tenant for array in arrays}) > 1
        page.show(arrays_table(arrays, page.look(), tenants=several))
    if view.before is not None:
        page.note(f"there are older ones: --limit {2 * args.limit}")
    return 0


async def _jobs(client: Client, args: argparse.Namespace) -> JobsView:
    """As many pages as the limit needs, as one."""
    found = JobsView(jobs=(), before=0)
    while found.before is not None and (left := args.limit - len(found.jobs)) > 0:
        more = await client.jobs(
            states=_states(args),
            name=args.name,
            limit=min(left, _PAGE),
            before=found.before,
            elements=_with_elements(args),
        )
        found = JobsView(jobs=(*found.jobs, *more.jobs), before=more.before)
    return found


def _with_elements(args: argparse.Namespace) -> bool:
    """Are elements of arrays shown as jobs? Else each array is one line."""
    return bool(args.elements or args.json or args.name or args.state)


def _states(args: argparse.Namespace) -> list[JobState]:
    if args.state:
        return [JobState(state) for state in args.state]
    return [] if args.all else [state for state in JobState if state not in FINAL]
