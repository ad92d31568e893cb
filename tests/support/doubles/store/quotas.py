"""Quotas, in memory, and what tenants used of late."""

from tests.support.doubles.store.jobs import MemoryJobs
from weft.domain.quotas import Quota
from weft.planning.quota.decay import decayed


class MemoryQuotas(MemoryJobs):
    def __init__(self) -> None:
        super().__init__()
        self._quotas: dict[tuple[str, str], Quota] = {}  # by pool and name

    async def quotas(self, *, pool: str | None = None) -> list[Quota]:
        return [quota for (of_pool, _), quota in sorted(self._quotas.items()) if pool in (None, of_pool)]

    async def set_quota(self, quota: Quota) -> None:
        self._quotas[quota.pool, quota.name] = quota

    async def delete_quota(self, name: str, *, pool: str) -> bool:
        return self._quotas.pop((pool, name), None) is not None

    async def decayed_use(self, *, pool: str, at: float, half_life: float) -> dict[str, float]:
        found: dict[str, float] = {}
        for job in self._jobs.values():
            ended = job.held_since if job.state.holding else job.ended_at or job.since
            if job.spec.pool == pool and job.attained_seconds > 0 and ended > at - min(30 * half_life, 1e9):
                gpus = job.attained_gpu_seconds / job.attained_seconds
                used = decayed(decayed(0.0, gpus, job.attained_seconds, half_life), 0.0, at - ended, half_life)
                found[job.tenant] = found.get(job.tenant, 0.0) + used
        return {tenant: used for tenant, used in sorted(found.items()) if used}
