"""The queue and the history of a pool as a trace, for `weft simulate --trace`."""

import asyncio
from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from weft.domain.job import FINAL, Job
from weft.domain.spec import TOKEN_PATTERN
from weft.simulator.whatif.durations import Assumptions
from weft.simulator.whatif.trace import csv_of, row_of
from weft.store import may_go_on
from weftd.gateway.errors import RejectedError
from weftd.gateway.http.route import Audience, Call, RouteAnswer, operation

WEEK_SECONDS = 7 * 86400
SECONDS_MAX = 10 * 366 * 86400
JOBS_MAX = 100_000  # some 15 MB of rows
PAGE = 500  # jobs of one read: each comes with its specification
CSV = "text/csv"


class TraceQuery(Struct, frozen=True, forbid_unknown_fields=True):
    pool: Annotated[str, Meta(pattern=TOKEN_PATTERN)] | None = None
    seconds: Annotated[
        int, Meta(ge=1, le=SECONDS_MAX, description="Include jobs submitted in this period, and all open jobs.")
    ] = WEEK_SECONDS


@operation(
    "GET /v1/trace",
    "cluster",
    "The queue and the history as a trace",
    description="One row for each job that was submitted in the last `seconds` or is open: `weft simulate --trace`"
    " reads it. The duration of an open job is estimated, and `basis` names the method. Running services, jobs"
    " without a GPU, and jobs that ended before they ran are left out.",
    who=Audience.ADMIN,
    answers={200: RouteAnswer(description="CSV, by arrival.", type=str, media=(CSV,))},
    example="?seconds=86400",
)
async def trace(call: Call[TraceQuery]) -> web.StreamResponse:
    gateway = call.gateway
    now, pools = gateway.now(), await gateway.snapshots.pools()
    pool = call.query.pool or gateway.snapshots.default_pool
    if pool not in pools:
        raise RejectedError(404, "pool", f"there is no pool {pool}; there is {', '.join(pools)[:1000]}")
    async with gateway.looking_back.one(call.who.tenant):  # one at a time: it holds many jobs
        jobs = await _over_since(call, now - call.query.seconds, pool)
        jobs += await gateway.snapshots.holding(pool)
        jobs += await gateway.snapshots.queued(pool)
        classes = {one.workload: one.job_class for one in await gateway.snapshots.classes(pool)}
        assumptions = Assumptions(await gateway.estimates.durations(pool), gateway.estimates.steps(jobs))
        text = await asyncio.to_thread(_written, jobs, assumptions, classes, now)
    return web.Response(text=text, content_type=CSV, charset="utf-8")


async def _over_since(call: Call[TraceQuery], since: float, pool: str) -> list[Job]:
    """The jobs of the pool that are over and were submitted since then."""
    found: list[Job] = []
    before = 0
    while True:
        page = await call.gateway.store.jobs(tenant=None, states=tuple(FINAL), limit=PAGE, before=before)
        found += [job for job in page if job.pool == pool and job.submitted_at >= since]
        if not may_go_on(page, limit=PAGE) or page[-1].submitted_at < since:
            return found
        if len(found) > JOBS_MAX:
            raise RejectedError(
                400, "seconds", f"more than {JOBS_MAX:,} jobs were submitted in it: ask for a shorter time"
            )
        before = page[-1].seq


def _written(jobs: list[Job], assumptions: Assumptions, learnt: dict[str, str], now: float) -> str:
    """A job that ended while the snapshots were read appears once, in the state that was read first."""
    once = {job.id: job for job in reversed(jobs)}.values()
    return csv_of(row for job in once if (row := row_of(job, assumptions, learnt, now=now)) is not None)
