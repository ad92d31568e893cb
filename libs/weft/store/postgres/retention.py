"""Forgets jobs that ended long ago, on a real Postgres."""

from weft.domain.lease import Lease
from weft.store import JobsKept
from weft.store.asking import Asking


class PostgresRetention:
    asking: Asking

    async def forget_jobs(self, lease: Lease, *, before: float, kept_seconds: float, limit: int) -> int:
        return await self.asking.count(
            "forget_jobs", lease.name, lease.holder, lease.epoch, before, kept_seconds, limit
        )

    async def jobs_kept(self) -> list[JobsKept]:
        return [JobsKept(**row) for row in await self.asking.rows("jobs_kept")]
