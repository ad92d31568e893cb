"""Jobs that serve requests, on a real Postgres."""

from collections.abc import Mapping, Sequence

from weft.domain.job import Job
from weft.store import OpenService
from weft.store.postgres.jobs import PAGE_JOBS, PostgresJobs
from weft.store.rows import service_of


class PostgresServing(PostgresJobs):
    async def services(self, *, pool: str, known: Mapping[str, Job] = {}) -> list[Job]:
        versions = {row["id"]: row["version"] for row in await self.asking.rows("service_versions", pool)}
        kept = {job_id: job for job_id, job in known.items() if versions.get(job_id) == job.version}
        missing = [job_id for job_id in versions if job_id not in kept]
        for begin in range(0, len(missing), PAGE_JOBS):
            read = await self.jobs_of(missing[begin : begin + PAGE_JOBS])
            kept |= {job.id: job for job in read if job.state.holding}
        return [kept[job_id] for job_id in versions if job_id in kept]

    async def open_services(self, *, job_ids: Sequence[str] | None = None) -> list[OpenService]:
        return [
            service_of(row)
            for row in await self.asking.rows("open_services", None if job_ids is None else list(job_ids))
        ]
