"""The whole cluster, end to end: HTTP in, real processes run, events out. 64 emulated GPUs, the process runtime.

Rates say little on a machine that others use too; the processor time of a job, summed over Weft's processes and both
servers, says more. The shell and `true` of the job itself are reported beside it, and the counts of Postgres: its
transactions, rows, and the log of changes with its syncs.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import asyncpg

from tests.bench import cpu
from tests.bench.figures import Figures, milliseconds, quantile
from tests.support.builders import spec
from tests.support.cluster import Cluster, embedded_cluster
from weft import servers
from weft.client import Client
from weft.domain.job import FINAL, JobState
from weft.domain.spec import JobSpec
from weft.servers.postgres import DATABASE, OWNER
from weftd.cli.local import LocalCluster

GPUS = 64
STEADY_SECONDS, STEADY_RATE = 20, 50
NO_OPS = 2000
BACKLOG = 10_000
EXPLAINED, COLD_SECONDS = 20, 1.1  # after so long what the gateway read of the store is too old
SUBMIT_BUSY_MS, SUBMIT_BUSY_P99_MS, EXPLAIN_P99_MS, NO_OPS_PER_SECOND, CPU_MS = 8.0, 60.0, 100.0, 300.0, 5.0
_COUNTED = """
SELECT xact_commit, tup_inserted, tup_updated, tup_deleted,
       (SELECT wal_records FROM pg_stat_wal), (SELECT wal_fpi FROM pg_stat_wal), (SELECT wal_bytes FROM pg_stat_wal),
       (SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal')
  FROM pg_stat_database WHERE datname = current_database()
"""
COUNTS = (
    "transactions",
    "rows inserted",
    "rows updated",
    "rows deleted",
    "records of the WAL",
    "pages written whole",
    "bytes of the WAL",
    "syncs of the WAL",
)


async def measure(home: Path, figures: Figures) -> None:
    async with embedded_cluster(home, nodes=1, gpus=GPUS, settings={"EXECUTOR_CPUS": "256"}) as cluster:
        await _steady(cluster, figures)
        await _no_ops(cluster, figures)
        await _backlog(cluster, figures)


async def _steady(cluster: Cluster, figures: Figures) -> None:
    """Fifty submissions a second, each a no-op on one GPU: how long until it has its place, until it runs?"""
    wanted = _no_op("steady")
    began = time.monotonic()
    took: list[float] = []
    ids: list[str] = []

    async def one(at: float) -> None:
        await asyncio.sleep(max(0.0, began + at - time.monotonic()))
        asked = time.monotonic()
        ids.append((await cluster.client.submit(wanted)).id)
        took.append(time.monotonic() - asked)

    await asyncio.gather(*(one(n / STEADY_RATE) for n in range(STEADY_SECONDS * STEADY_RATE)))
    await _drained(cluster.client)
    placed, started = await _delays(cluster.client, ids)
    figures.add(f"submit (HTTP, durable) at {STEADY_RATE}/s", milliseconds(took))
    figures.add(f"submit → placed at {STEADY_RATE}/s, by the stamps in the story", milliseconds(placed))
    figures.add(f"submit → started at {STEADY_RATE}/s, by the stamps in the story", milliseconds(started))


async def _no_ops(cluster: Cluster, figures: Figures) -> None:
    """As many no-ops as go through: submitted, run and finished, from an empty queue."""
    async with counting(cluster.local) as grown:
        before, began = await cpu.used(cluster.local), time.monotonic()
        took = await _submit(cluster.client, [_no_op("noop")] * NO_OPS, at_once=16)
        submitted = time.monotonic() - began
        await _drained(cluster.client)
        whole = time.monotonic() - began
    figures.add(
        f"no-op jobs submitted, run and finished ({NO_OPS}, {GPUS} emulated GPUs)",
        f"{NO_OPS / whole:.0f} jobs/s; submit while busy {milliseconds(took)} ({NO_OPS / submitted:.0f}/s)",
        f"≥ {NO_OPS_PER_SECOND:.0f} jobs/s; p50 {SUBMIT_BUSY_MS:.0f} ms, p99 {SUBMIT_BUSY_P99_MS:.0f} ms",
    )
    figures.aim("no_ops_per_second", NO_OPS / whole, NO_OPS_PER_SECOND, at_least=True)
    figures.aim("submit_busy_p50_ms", quantile(took, 0.5) * 1000, SUBMIT_BUSY_MS)
    figures.aim("submit_busy_p99_ms", quantile(took, 0.99) * 1000, SUBMIT_BUSY_P99_MS)
    used = cpu.difference(before, await cpu.used(cluster.local))
    own = used.pop(cpu.RUNS, 0.0)
    mean = {name: seconds / NO_OPS * 1000 for name, seconds in used.items()}
    figures.add("CPU of Weft and its servers, a no-op job", f"{sum(mean.values()):.2f} ms", f"≤ {CPU_MS:g} ms")
    figures.aim("cpu_ms_per_job", sum(mean.values()), CPU_MS)
    for name in sorted(mean, key=lambda name: -mean[name]):
        figures.add(f"of it {name}", f"{mean[name]:.2f} ms")
    figures.add("besides, the job's own shell and command", f"{own / NO_OPS * 1000:.2f} ms")
    for name, count in grown.items():
        figures.add(f"{name}, a no-op job", f"{count / NO_OPS:.2f}")


async def _backlog(cluster: Cluster, figures: Figures) -> None:
    """The same with ten thousand queued behind a full cluster, and then let go."""
    blocker = _job("blocker", ["sleep", "600"], gpus=GPUS)
    blocking = (await cluster.client.submit(blocker)).id
    await cluster.state(blocking, JobState.RUNNING)
    took = await _queued(cluster, BACKLOG // 2)
    await _explained(cluster, figures)
    took += await _queued(cluster, BACKLOG // 2)
    figures.add("submissions made durable (HTTP, 64 at once, everything on this machine)", f"{BACKLOG / took:.0f}/s")
    await cluster.client.cancel(blocking)
    before = (await cluster.client.cluster()).states
    await asyncio.sleep(30)
    after = (await cluster.client.cluster()).states
    done = before.get(JobState.QUEUED, 0) - after.get(JobState.QUEUED, 0)
    figures.add(f"no-op jobs finished with {BACKLOG} queued, over 30 s", f"{done / 30:.0f} jobs/s", "> 54 jobs/s")


async def _queued(cluster: Cluster, count: int) -> float:
    """How many seconds it takes to submit so many."""
    began = time.monotonic()
    await _submit(cluster.client, [_no_op("backlog")] * count, at_once=64)
    return time.monotonic() - began


async def _explained(cluster: Cluster, figures: Figures) -> None:
    """Why the newest of many does not run, asked by one who finds nothing read yet."""
    (newest,) = (await cluster.client.jobs(states=[JobState.QUEUED], limit=1)).jobs
    took = []
    for _ in range(EXPLAINED):
        await asyncio.sleep(COLD_SECONDS)
        asked = time.monotonic()
        await cluster.client.explain(newest.id)
        took.append(time.monotonic() - asked)
    what = f"`explain` from cold, by HTTP, {BACKLOG // 2} queued"
    figures.add(what, milliseconds(took), f"p99 ≤ {EXPLAIN_P99_MS:.0f} ms")
    figures.aim("explain_cold_p99_ms", quantile(took, 0.99) * 1000, EXPLAIN_P99_MS)


async def _submit(client: Client, specs: Sequence[JobSpec], *, at_once: int) -> list[float]:
    took: list[float] = []
    limit = asyncio.Semaphore(at_once)

    async def one(wanted: JobSpec) -> None:
        async with limit:
            asked = time.monotonic()
            await client.submit(wanted)
            took.append(time.monotonic() - asked)

    await asyncio.gather(*(one(wanted) for wanted in specs))
    return took


async def _drained(client: Client) -> None:
    """Until no job is open. While many are, it is the newest that is looked at, which costs no more than itself."""
    opened = [state for state in JobState if state not in FINAL]
    async with asyncio.timeout(300):
        while jobs := (await client.jobs(states=opened, limit=1)).jobs:
            while (await client.job(jobs[0].id)).state in opened:  # noqa: ASYNC110 -- an empty queue is no event
                await asyncio.sleep(0.25)


async def _delays(client: Client, ids: Sequence[str]) -> tuple[list[float], list[float]]:
    """From the stamps in each job's story: when it was submitted, placed, seen to run by its node."""
    placed: list[float] = []
    started: list[float] = []
    for job_id in ids[:: max(1, len(ids) // 500)]:
        at = {event.type: datetime.fromisoformat(event.time).timestamp() for event in await client.story(job_id)}
        placed.append(at["weft.jobs.placed"] - at["weft.jobs.submitted"])
        started.append(at["weft.jobs.started"] - at["weft.jobs.submitted"])
    return placed, started


def _no_op(name: str) -> JobSpec:
    return _job(name, ["true"], gpus=1)


def _job(name: str, command: list[str], *, gpus: int) -> JobSpec:
    return spec(name, gpus=gpus, command=command, role={"cpus": 1, "memory": "64MiB"})


@asynccontextmanager
async def counting(local: LocalCluster) -> AsyncIterator[dict[str, float]]:
    """A dictionary that has, after the block, by how much each of COUNTS grew in it."""
    up = await servers.status(local.home.root)
    assert up.postgres is not None
    dsn = f"postgresql://{OWNER}@127.0.0.1:{up.postgres.port}/{DATABASE}"
    connection = await asyncpg.connect(dsn, password=local.credentials.postgres_password("owner"))
    grown: dict[str, float] = {}
    try:
        before = await connection.fetchrow(_COUNTED)
        yield grown
        await connection.execute("SELECT pg_stat_force_next_flush()")
        after = await connection.fetchrow(_COUNTED)
        grown |= {name: float(new) - float(old) for name, new, old in zip(COUNTS, after, before, strict=True)}
    finally:
        await connection.close()
