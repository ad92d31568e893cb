"""`weft wait`: until jobs are over, or with --any until the first is. An array is over when all its elements are;
an element that was stopped early counts as one that succeeded.

Exit status 0: all of these succeeded; else that of a job that failed, the highest of several; 1: a job was cancelled,
or no process of it ended; 124: they are not over in time.
"""

import argparse
import asyncio

from weft.client import Client
from weft.client.place import PATIENT_SECONDS
from weft.domain.job import CauseCode, JobState
from weft.domain.quantity import duration_seconds
from weft.messages.http import ArrayView, JobView
from weftd.cli import arrays, connection, page
from weftd.cli.cli_error import CliError
from weftd.cli.jobs.following import exit_status_of
from weftd.cli.rendering.arrays import ended_line as array_ended_line
from weftd.cli.rendering.jobs import ended_line

TIMED_OUT = 124  # as timeout(1) has it
_PAGE = 1000  # elements in one answer
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.3, 3.0


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("wait", help="wait until jobs have ended", description=__doc__)
    parser.add_argument(
        "jobs", nargs="+", metavar="JOB", help="id or name of a job or an array (the newest of that name)"
    )
    parser.add_argument("--timeout", type=seconds, metavar="TIME", help="maximum wait, such as 90 or 1h30m")
    parser.add_argument("--any", action="store_true", help="wait only for the first to end, and exit with its status")
    connection.options(parser)
    parser.set_defaults(func=wait)


async def wait(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        known = [await arrays.job_or_array(client, named) for named in args.jobs]
    statuses: dict[str, int] = {}
    async with connection.connected(args, patience=PATIENT_SECONDS) as client:
        try:
            async with asyncio.timeout(args.timeout):
                await _until(client, known, statuses, args)
        except TimeoutError:
            late = [each.name for each in known if each.id not in statuses]
            raise CliError(f"not over after {args.timeout:g} s: {', '.join(late)}", status=TIMED_OUT) from None
    return max(statuses.values())


async def _until(
    client: Client, known: list[JobView | ArrayView], statuses: dict[str, int], args: argparse.Namespace
) -> None:
    """Until all have ended, or one if that is enough; the others are not waited for then."""
    each_once = {each.id: each for each in known}.values()
    waiting = {asyncio.create_task(_one(client, each, statuses, args)) for each in each_once}
    try:
        when = asyncio.FIRST_COMPLETED if args.any else asyncio.FIRST_EXCEPTION
        ended, _ = await asyncio.wait(waiting, return_when=when)
        for task in ended:
            task.result()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _one(client: Client, named: JobView | ArrayView, statuses: dict[str, int], args: argparse.Namespace) -> None:
    """Wait for the end of one job or array, print it, and note its exit status."""
    over: JobView | ArrayView
    if isinstance(named, ArrayView):
        over = await until_array_over(client, named.id)
        statuses[over.id] = await exit_status_of_array(client, over)
    else:
        over = await client.until_over(named.id)
        statuses[over.id] = exit_status_of(over)
    if args.json:
        page.json_line(over)
    else:
        page.show(array_ended_line(over) if isinstance(over, ArrayView) else ended_line(over))


async def until_array_over(client: Client, array_id: str) -> ArrayView:
    """Wait until all elements of an array are over. It is asked for again and again: there are no events of an array,
    and a stream of events for each of 10,000 elements is more than the gateway opens."""
    pause = _PAUSE_SECONDS
    while not (array := await client.array(array_id)).over:
        await asyncio.sleep(pause)
        pause = min(_PAUSE_SECONDS_MAX, 1.5 * pause)
    return array


async def exit_status_of_array(client: Client, array: ArrayView) -> int:
    """The exit status of an ended array: the highest of its elements."""
    if set(array.states) <= {JobState.SUCCEEDED}:
        return 0
    highest, after = 0, 0
    while True:
        found = await client.elements(array.id, limit=_PAGE, after=after)
        highest = max([highest, *map(_status_of_element, found.jobs)])
        if not found.before:
            return highest
        after = found.before


def _status_of_element(job: JobView) -> int:
    stopped_early = job.ended_for is not None and job.ended_for.code is CauseCode.STOPPED_EARLY
    return 0 if stopped_early else exit_status_of(job)


def seconds(text: str) -> float:
    """`90`, `1h30m`."""
    try:
        return duration_seconds(text if text[-1:].isalpha() else f"{text}s")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
