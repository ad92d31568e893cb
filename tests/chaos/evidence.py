"""What is found when all is mended and settled: by the API, in the jobs' own traces, among the living processes."""

import asyncio
import os
from collections import defaultdict
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from tests.chaos.customers import Submission
from tests.chaos.deeds import Done
from tests.chaos.member import Exit
from tests.chaos.services import Request, ServiceSeen
from tests.chaos.sick import Closed
from tests.chaos.slots import Accounted
from tests.chaos.traces import Run
from weft.client import Client, ClientError, Refused
from weft.messages.http import EventView, JobView

T = TypeVar("T")

AT_ONCE = 8
PAGE = 500


class Living(Struct, frozen=True, kw_only=True):
    """A process of a job that is there now."""

    pid: int
    job_id: str
    epoch: int
    rank: int


class Said(Struct, frozen=True, kw_only=True):
    """What the runs of one rank in one epoch wrote, each by its own account, and its log as the gateway gives it."""

    runs: tuple[Run, ...]
    written: tuple[bytes, ...]
    log: bytes
    why_not: str = ""


class Evidence(Struct, frozen=True, kw_only=True):
    """`restores`: from when to when everything is undone. `jobs` has None for one that the API does not know.

    `services` are as they were when all had settled, `requests` all that was asked of them before. `exits` are the ends
    of services that nobody asked for; `unready` the services that were not ready in time at the end. `jobs` has the
    polite jobs of the hostile tenant too, and `hostile_runs` are their runs: nothing else of that tenant is audited.
    `closed`: the GPUs that were out of use, and when.
    `came` has job, epoch and rank of each process that there was, also of one that ended before its program began.
    """

    submissions: list[Submission]
    runs: list[Run]
    came: frozenset[tuple[str, int, int]] = frozenset()
    faults: list[Done]
    restores: list[tuple[float, float]]
    jobs: dict[str, JobView | None]
    stories: dict[str, tuple[EventView, ...]]
    ids_of_key: dict[str, set[str]]
    said: list[Said]
    living: list[Living]
    exits: list[Exit] = []
    unready: list[str] = []
    hostile_runs: list[Run] = []
    hostile_outcomes: dict[str, int] = {}
    services: list[ServiceSeen] = []
    requests: list[Request] = []
    accounted: Accounted | None = None
    closed: list[Closed] = []
    boot_to_unix: float  # seconds to add to boot seconds


async def views(client: Client, ids: list[str]) -> dict[str, JobView | None]:
    async def one(job_id: str) -> JobView | None:
        try:
            return await client.job(job_id)
        except Refused as error:
            if error.status == 404:
                return None
            raise

    return dict(zip(ids, await _all([one(job_id) for job_id in ids]), strict=True))


async def stories(client: Client, ids: list[str]) -> dict[str, tuple[EventView, ...]]:
    return dict(zip(ids, await _all([client.story(job_id) for job_id in ids]), strict=True))


async def ids_by_name(client: Client) -> dict[str, set[str]]:
    """A job's name is the key it was submitted with."""
    found: dict[str, set[str]] = defaultdict(set)
    before = 0
    while True:
        page = await client.jobs(limit=PAGE, before=before)
        for job in page.jobs:
            found[job.name].add(job.id)
        if page.before is None:
            return dict(found)
        before = page.before


async def what_was_said(client: Client, folder: Path, runs: list[Run]) -> list[Said]:
    by_log: dict[tuple[str, int, int], list[Run]] = defaultdict(list)
    for run in runs:
        by_log[run.job_id, run.epoch, run.rank].append(run)

    async def one(of_log: list[Run]) -> Said:
        first = of_log[0]
        log, why_not = b"", ""
        try:
            log = await client.read_log(first.job_id, rank=first.rank, epoch=first.epoch)
        except ClientError as error:
            why_not = str(error)
        written = tuple((folder / "said" / run.name).read_bytes() for run in of_log)
        return Said(runs=tuple(of_log), written=written, log=log, why_not=why_not)

    return await _all([one(of_log) for of_log in by_log.values()])


def living(run: str) -> list[Living]:
    """The processes whose environment says that they are jobs of this run of the chaos."""
    found = []
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            env = dict(line.decode(errors="replace").split("=", 1) for line in lines if b"=" in line)
            if env.get("CHAOS_RUN") == run:
                found.append(
                    Living(
                        pid=pid,
                        job_id=env.get("WEFT_JOB_ID", ""),
                        epoch=int(env.get("WEFT_EPOCH", "-1")),
                        rank=int(env.get("WEFT_RANK", "-1")),
                    )
                )
    return found


async def _all(works: list[Coroutine[Any, Any, T]]) -> list[T]:
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(work: Coroutine[Any, Any, T]) -> T:
        async with limit:
            return await work

    return await asyncio.gather(*(one(work) for work in works))
