"""`scancel`: end jobs by their numbers, or those of a user, a name, a state or a pool."""

import asyncio
import os
import sys
from collections.abc import Sequence

from weft.client import Client, Refused
from weft.domain.arrays import indices_text
from weftd.cli.cli_error import CliError
from weftd.cli.slurm.arguments import OPEN, Arguments, flat, states_of
from weftd.cli.slurm.fields import LONG
from weftd.cli.slurm.numbers import Reference, reference_of
from weftd.cli.slurm.reading import Wanted, cluster, listed, named, user_name

_OVER = 409
_AT_ONCE = 16


async def scancel(words: Sequence[str]) -> int:
    parser = Arguments("scancel")
    parser.add_argument("jobs", nargs="*")
    parser.several("-n", "--name", "--jobname")
    parser.several("-p", "--partition")
    parser.several("-t", "--state")
    parser.several("-u", "--user")
    parser.add_argument("--me", action="store_true")
    parser.of_the_cluster()
    args = parser.parse_intermixed_args(words)
    references = [reference_of(each, os.environ) for word in args.jobs for each in _numbers(word)]
    if any(each.step for each in references):
        raise CliError("a step cannot be ended by itself; name the job")
    users = (*flat(args.user), *([user_name()] if args.me else []))
    wanted = Wanted(
        names=tuple(flat(args.name)),
        users=users,
        pools=tuple(flat(args.partition)),
        states=states_of(flat(args.state)) or frozenset(name for name, (_, of) in LONG.items() if set(of) & set(OPEN)),
    )
    filtered = bool(wanted.names or users or wanted.pools or args.state)
    if not references and not filtered:
        raise CliError("No job identification provided")
    async with cluster() as client:
        if not filtered:
            return await _each(client, references)
        jobs = await listed(client, wanted)
        if references:
            chosen = {job.id for job in (await named(client, references))[0]}
            jobs = [job for job in jobs if job.id in chosen]
        limit = asyncio.Semaphore(_AT_ONCE)
        async with asyncio.TaskGroup() as tasks:
            for job in jobs:
                tasks.create_task(_one(client, job.id, limit))
    return 0


def _numbers(word: str) -> list[str]:
    return [word] if "[" in word else [part for part in word.split(",") if part]


async def _each(client: Client, references: Sequence[Reference]) -> int:
    """Exit status: 1 if one of the numbers is no job's; jobs that have ended count as cancelled."""
    status = 0
    for reference in references:
        try:
            await _cancel(client, reference)
        except Refused as error:
            if error.status != 404:
                raise
            told = f"scancel: error: Kill job error on job id {reference.text}: Invalid job id specified"
            print(told, file=sys.stderr)
            status = 1
    return status


async def _cancel(client: Client, reference: Reference) -> None:
    try:
        if reference.indices:
            await client.cancel_array(reference.array, indices=indices_text(reference.indices))
            return
        try:
            await client.cancel(reference.job)
        except Refused as error:
            if error.status != 404:
                raise
            await client.cancel_array(reference.array)
    except Refused as error:
        if error.status != _OVER:
            raise


async def _one(client: Client, job_id: str, limit: asyncio.Semaphore) -> None:
    async with limit:
        try:
            await client.cancel(job_id)
        except Refused as error:
            if error.status != _OVER:
                raise
