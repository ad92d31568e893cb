"""The cluster that is measured: two tenants, and a past of many events, which a third tenant left."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncpg
from msgspec import Struct

from tests.bench.fairness.processes import Processes
from tests.bench.fairness.quiet import Quiet
from tests.support.builders import spec
from tests.support.cluster import Cluster, embedded_cluster
from weft import servers
from weft.client import Client, ClientError
from weft.domain.job import FINAL, JobState

SETTINGS = {"EXECUTOR_CPUS": "256", "EXECUTOR_MEMORY": str(64 << 30)}
EVENTS_OF_A_JOB = 5
AT_ONCE = 20_000  # jobs of the past in one transaction
CANCELS_AT_ONCE = 32
PAGE = 500
OPEN = [state for state in JobState if state not in FINAL]


class Ground(Struct, frozen=True, kw_only=True):
    cluster: Cluster
    quiet: Quiet
    hostile: Client
    hostile_token: str
    processes: Processes

    @property
    def url(self) -> str:
        return self.cluster.local.url

    async def cancel_all(self, seconds_max: float) -> bool:
        """End every job of the hostile tenant. False where that took too long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                while True:
                    with suppress(ClientError):
                        jobs = (await self.hostile.jobs(states=OPEN, limit=PAGE)).jobs
                        if not jobs:
                            return True
                        await self._cancel([job.id for job in jobs if job.state is not JobState.STOPPING])
                    await asyncio.sleep(0.1)
        return False

    async def _cancel(self, ids: list[str]) -> None:
        for begin in range(0, len(ids), CANCELS_AT_ONCE):
            cancels = (self.hostile.cancel(job_id) for job_id in ids[begin : begin + CANCELS_AT_ONCE])
            await asyncio.gather(*cancels, return_exceptions=True)


@asynccontextmanager
async def ground(home: Path, *, past_events: int) -> AsyncIterator[Ground]:
    """A cluster of its own for as long as the block lasts."""
    touched = home / "touched"
    touched.mkdir()
    async with embedded_cluster(home / "weft", nodes=2, gpus=4, settings=SETTINGS) as cluster:
        admin = cluster.client
        quiet, hostile, past = [(await admin.make_token(name, "bench")).token for name in ("quiet", "hostile", "past")]
        async with Client(cluster.local.url, past) as client:
            job = await client.submit(spec("past", gpus=0, role={"cpus": 0.1, "memory": "64MiB"}))
            await cluster.ended(job.id)
        await _multiply(cluster, job.id, past_events // EVENTS_OF_A_JOB)
        async with Client(cluster.local.url, hostile, retry_seconds=2.0) as client:
            processes = Processes(cluster.local)
            watching = asyncio.create_task(processes.watch())
            try:
                yield Ground(
                    cluster=cluster,
                    quiet=Quiet(cluster.local.url, quiet, touched),
                    hostile=client,
                    hostile_token=hostile,
                    processes=processes,
                )
            finally:
                watching.cancel()
                await asyncio.wait([watching])


async def _multiply(cluster: Cluster, job_id: str, count: int) -> None:
    """Copies of a finished job and its events, as the database's owner makes them: no service sees it happen."""
    local = cluster.local
    up = await servers.up(local.home.root, credentials=local.credentials)
    owner = await asyncpg.connect(up.pg_dsn, password=local.credentials.postgres_password("owner"), timeout=10)
    try:
        await owner.execute("SET session_replication_role = replica")  # triggers hold what services may do
        for begin in range(0, count, AT_ONCE):
            numbers = f"generate_series({begin}, {min(count, begin + AT_ONCE) - 1})"
            async with owner.transaction():
                for table, of_job, other in (
                    ("submissions", "id", {"id": "'past-' || n", "key": "NULL"}),
                    ("jobs", "id", {"id": "'past-' || n"}),
                    ("events", "subject_id", {"subject_id": "'past-' || n"}),
                ):
                    await _copies(owner, table, of_job, job_id, numbers, other)
        await owner.execute("ANALYZE submissions, jobs, events")
        await owner.execute("CHECKPOINT", timeout=120)  # what comes next must not wait for all this on the disk
    finally:
        await owner.close()


async def _copies(
    owner: asyncpg.Connection, table: str, of_job: str, job_id: str, numbers: str, other: dict[str, str]
) -> None:
    """Every column as the job's own rows have it, but for its id and what the database fills in by itself."""
    rows = await owner.fetch(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = 'public' AND table_name = $1"
        " AND is_identity = 'NO' AND is_generated = 'NEVER' AND column_name <> 'xid' ORDER BY ordinal_position",
        table,
    )
    columns = [row["column_name"] for row in rows]
    values = ", ".join(other.get(column, f'source."{column}"') for column in columns)
    names = ", ".join(f'"{column}"' for column in columns)
    order = "ORDER BY n, source.id" if table == "events" else ""
    await owner.execute(
        f"INSERT INTO {table} ({names}) SELECT {values} FROM {numbers} AS n, {table} AS source"
        f" WHERE source.{of_job} = '{job_id}' {order}"
    )
