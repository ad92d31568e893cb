"""`weft wait`: until jobs are over, or with --any until the first is.

Exit status 0: all of these succeeded; else that of a job that failed, the highest of several; 1: a job was cancelled,
or no process of it ended; 124: they are not over in time.
"""

import argparse
import asyncio

from libs.client import Client
from libs.domain.quantity import duration_seconds
from libs.messages.http import JobView
from services.cli import connection, page
from services.cli.complaint import Complaint
from services.cli.drawing.jobs import ended_line
from services.cli.following import exit_status_of, until_over

TIMED_OUT = 124  # as timeout(1) has it


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("wait", help="wait until jobs have ended", description=__doc__)
    parser.add_argument("jobs", nargs="+", metavar="JOB", help="its id, or its name: then the newest of that name")
    parser.add_argument("--timeout", type=seconds, metavar="TIME", help="at most this long, such as 90 or 1h30m")
    parser.add_argument("--any", action="store_true", help="until the first of them has ended; its exit status counts")
    connection.options(parser)
    parser.set_defaults(func=wait)


async def wait(args: argparse.Namespace) -> int:
    async with connection.connected(args) as client:
        known = [await client.job(job) for job in args.jobs]
    over: dict[str, JobView] = {}
    async with connection.connected(args, patience=connection.PATIENT_SECONDS) as client:
        try:
            async with asyncio.timeout(args.timeout):
                await _until(client, [job.id for job in known], over, args)
        except TimeoutError:
            late = [job.name for job in known if job.id not in over]
            raise Complaint(f"not over after {args.timeout:g} s: {', '.join(late)}", status=TIMED_OUT) from None
    return max(exit_status_of(job) for job in over.values())


async def _until(client: Client, jobs: list[str], over: dict[str, JobView], args: argparse.Namespace) -> None:
    """Until all have ended, or one if that is enough; the others are not waited for then."""
    waiting = {asyncio.create_task(_one(client, job, over, args)) for job in dict.fromkeys(jobs)}
    try:
        when = asyncio.FIRST_COMPLETED if args.any else asyncio.FIRST_EXCEPTION
        ended, _ = await asyncio.wait(waiting, return_when=when)
        for task in ended:
            task.result()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _one(client: Client, job_id: str, over: dict[str, JobView], args: argparse.Namespace) -> None:
    over[job_id] = await until_over(client, job_id)
    if args.json:
        page.json_line(over[job_id])
    else:
        page.show(ended_line(over[job_id]))


def seconds(text: str) -> float:
    """`90`, `1h30m`."""
    try:
        return duration_seconds(text if text[-1:].isalpha() else f"{text}s")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
