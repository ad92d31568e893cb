"""The jobs that a command is about, in pages of the gateway's filters."""

import argparse
import asyncio
import getpass
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from msgspec import Struct, structs

from weft.client import Client, Refused
from weft.domain.arrays import ARRAY_PREFIX, JOB_PREFIX
from weft.domain.job import FINAL, JobState
from weft.messages.accounts import OWN_TENANT
from weft.messages.http import ArrayView, JobView
from weftd.cli import connection
from weftd.cli.migration.written import name_of
from weftd.cli.slurm.arguments import ALL, OPEN
from weftd.cli.slurm.fields import LONG, job_name, state
from weftd.cli.slurm.numbers import Reference

_PAGE = 1000
_AT_ONCE = 16
_ARRAYS_MAX = 100  # the gateway lists no more
GOING = frozenset({"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"})
USER_LABEL = "slurm-user"


class Wanted(Struct, frozen=True, kw_only=True):
    """Which jobs: with these `names`, submitted by these `users` with sbatch, in these pools, in these `states`, which
    are Slurm's. Each is empty for all. `since`: submitted then or later."""

    names: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    states: frozenset[str] = frozenset()
    since: float = 0.0

    def has(self, job: JobView) -> bool:
        return (
            (not self.states or state(job) in self.states)
            and (not self.pools or job.pool in self.pools)
            and (not self.names or job_name(job) in map(name_of, self.names))
        )

    @property
    def native_states(self) -> tuple[JobState, ...]:
        return tuple({native for name in self.states for native in LONG[name][1]}) if self.states else ALL


@asynccontextmanager
async def cluster(*, patience: float | None = None) -> AsyncIterator[Client]:
    """The client of the cluster that `weft` uses as well."""
    async with connection.connected(argparse.Namespace(url=None, token=None), patience=patience) as client:
        yield client


async def listed(client: Client, wanted: Wanted, *, ended_max: int | None = None) -> list[JobView]:
    """The jobs, the oldest first. `ended_max`: how many of the newest jobs are searched for those that are over."""
    native = wanted.native_states
    going = tuple(each for each in native if each not in FINAL)
    over = tuple(each for each in native if each in FINAL)
    found: dict[str, JobView] = {}
    names = [each for name in map(name_of, wanted.names) for each in (name, f"{name}-*")]  # the second is for elements
    for name in names or [""]:
        for user in wanted.users or [""]:
            labels = (f"{USER_LABEL}={user}",) if user else ()
            for states, most in ((going, None), (over, ended_max)) if native else ():
                if states:
                    jobs = await _pages(client, states, name, labels, since=wanted.since, most=most)
                    found |= {job.id: job for job in jobs if wanted.has(job)}
    return sorted(found.values(), key=lambda job: job.seq)


async def gathered(client: Client) -> list[JobView]:
    """The jobs that are not over, the oldest first. An array whose elements all wait is one row, as in Slurm."""
    arrays = (await client.arrays(opened=True, limit=_ARRAYS_MAX)).arrays
    if len(arrays) == _ARRAYS_MAX:  # there may be more
        return await listed(client, Wanted(states=GOING))
    found = await _pages(client, OPEN, "", (), since=0.0, most=None, elements=False)
    for array in arrays:
        row = await _one_row(client, array) if set(array.states) == {JobState.QUEUED.value} else None
        found += open_only(await elements(client, array.id)) if row is None else [row]
    return sorted(found, key=lambda job: job.seq)


async def _one_row(client: Client, array: ArrayView) -> JobView | None:
    """An array as a job whose id has the indices; None where these have gaps, or it is gone."""
    page = await client.elements(array.id, limit=1)
    first = await _job(client, page.jobs[0].id) if page.jobs else None
    env = {} if first is None or first.spec is None else first.spec.env
    lowest, highest = (int(env.get(f"WEFT_ARRAY_{name}", -1)) for name in ("MIN", "MAX"))
    if first is None or lowest < 0 or highest - lowest + 1 != array.elements:
        return None
    indices = f"[{lowest}-{highest}{f'%{array.at_once}' if array.at_once else ''}]"
    row_id = f"{JOB_PREFIX}{array.id.removeprefix(ARRAY_PREFIX)}-{indices}"
    return structs.replace(first, id=row_id, name=array.name)


async def _pages(
    client: Client,
    states: Sequence[JobState],
    name: str,
    labels: Sequence[str],
    *,
    since: float,
    most: int | None,
    elements: bool = True,
) -> list[JobView]:
    """The jobs of all pages, the newest first, without Weft's own benchmarks unless they are named."""
    found: list[JobView] = []
    before = 0
    asked = () if set(states) == set(ALL) else states
    while True:
        page = await client.jobs(
            states=asked,
            name=name,
            labels=labels,
            limit=min(_PAGE, most or _PAGE),
            before=before,
            elements=elements,
        )
        found += [job for job in page.jobs if job.submitted_at >= since and (name or job.tenant != OWN_TENANT)]
        enough = most is not None and len(found) >= most
        if page.before is None or enough or (page.jobs and page.jobs[-1].submitted_at < since):
            return found
        before = page.before


async def named(client: Client, references: Sequence[Reference]) -> tuple[list[JobView], list[Reference]]:
    """The jobs of these numbers, in their order, and the numbers that no job has."""
    limit = asyncio.Semaphore(_AT_ONCE)
    known: dict[str, JobView] = {}
    if len(references) > _AT_ONCE:  # one page has most of them
        known = {job.id: job for job in (await client.jobs(limit=_PAGE)).jobs}

    async def one(reference: Reference) -> list[JobView]:
        wanted = reference.elements or (reference.job,)
        if all(each in known for each in wanted):
            return [known[each] for each in wanted]
        async with limit:
            if reference.indices:
                return [job for each in wanted if (job := await _job(client, each)) is not None]
            job = await _job(client, reference.job)
            return [job] if job is not None else await elements(client, reference.array)

    async with asyncio.TaskGroup() as tasks:
        found = [tasks.create_task(one(each)) for each in references]
    jobs = {job.id: job for task in found for job in task.result()}
    return list(jobs.values()), [each for each, task in zip(references, found, strict=True) if not task.result()]


async def elements(client: Client, array: str) -> list[JobView]:
    """All elements of an array; empty if the array does not exist."""
    found: list[JobView] = []
    after = 0
    while True:
        try:
            page = await client.elements(array, limit=_PAGE, after=after)
        except Refused as error:
            if error.status == 404:
                return found
            raise
        found += page.jobs
        if page.before is None:
            return found
        after = page.before


async def _job(client: Client, job_id: str) -> JobView | None:
    try:
        return await client.job(job_id)
    except Refused as error:
        if error.status == 404:
            return None
        raise


def user_name() -> str:
    """The name of the person at this machine, as Slurm has it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in containers
        return str(os.getuid())


def open_only(jobs: Iterable[JobView]) -> list[JobView]:
    return [job for job in jobs if job.state in OPEN]
