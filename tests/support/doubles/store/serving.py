"""Jobs that serve requests, in memory."""

from collections.abc import Mapping, Sequence

from tests.support.doubles.store.jobs import MemoryJobs
from weft.domain.job import HOLDING, Job
from weft.store import OpenService


class MemoryServing(MemoryJobs):
    async def services(self, *, pool: str, known: Mapping[str, Job] = {}) -> list[Job]:
        return [job for job in self._jobs_in(pool, HOLDING) if job.spec.is_service]

    async def open_services(self, *, job_ids: Sequence[str] | None = None) -> list[OpenService]:
        wanted = None if job_ids is None else set(job_ids)
        found = [job for job in self._jobs.values() if not job.state.final and (wanted is None or job.id in wanted)]
        return [seen for job in sorted(found, key=lambda job: job.seq) if (seen := _service_of(job)) is not None]


def _service_of(job: Job) -> OpenService | None:
    """None: the job serves no requests."""
    if (rules := job.spec.service) is None:
        return None
    return OpenService(
        id=job.id,
        tenant=job.tenant,
        pool=job.pool,
        name=job.name,
        seq=job.seq,
        kind=job.spec.kind,
        rules=rules,
        objective=job.spec.objective,
        wanted=sum(job.wanted.values()),
        state=job.state,
        epoch=job.epoch,
        version=job.version,
        priority=job.priority,
        placement=job.placement,
        served=bool(job.worked),
    )
