"""Jobs, in memory: as they were submitted, and as they are now."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

import msgspec

from tests.support.doubles.store.asks import MemoryAsks
from tests.support.doubles.store.events import MemoryEvents
from weft.domain.job import HOLDING, Job, JobState
from weft.domain.selection import Selection
from weft.domain.spec import JobSpec
from weft.domain.tenants import Use
from weft.messages.asks import AskKind
from weft.store import LISTED_BYTES_MAX, bytes_of_job


class MemoryJobs(MemoryAsks, MemoryEvents):
    def __init__(self) -> None:
        super().__init__()
        self._submitted: dict[str, Job] = {}  # as it was submitted, in that order
        self._jobs: dict[str, Job] = {}  # admitted

    async def job(self, job_id: str) -> Job | None:
        return self._jobs.get(job_id) or self._submitted.get(job_id)

    async def jobs(
        self,
        *,
        tenant: str | None,
        states: Sequence[JobState] = (),
        name: str = "",
        limit: int = 100,
        before: int = 0,
        elements: bool = True,
        bytes_max: int = LISTED_BYTES_MAX,
    ) -> list[Job]:
        newest_first = (self._jobs.get(job.id, job) for job in reversed(self._submitted.values()))
        found = [
            job
            for job in newest_first
            if tenant in (None, job.tenant)
            and (not states or job.state in states)
            and name in ("", job.name)
            and (not before or job.seq < before)
            and (elements or job.spec.element is None)
        ]
        return _within(found[:limit], bytes_max)

    async def jobs_selected(
        self,
        selection: Selection,
        *,
        tenant: str | None,
        states: Sequence[JobState] = (),
        limit: int = 100,
        before: int = 0,
        bytes_max: int = LISTED_BYTES_MAX,
    ) -> list[Job]:
        found = await self.jobs(
            tenant=tenant, states=states, before=before, limit=len(self._submitted), bytes_max=1 << 60
        )
        return _within([job for job in found if selection.holds(job)][:limit], bytes_max)

    async def ids_beginning(self, prefix: str, *, tenant: str | None, limit: int) -> list[str]:
        found = await self.jobs(tenant=tenant, limit=len(self._submitted), bytes_max=1 << 60)
        return [job.id for job in found if job.id.startswith(prefix)][:limit]

    async def jobs_of(self, job_ids: Sequence[str]) -> list[Job]:
        found = [self._jobs.get(job_id) or self._submitted.get(job_id) for job_id in job_ids]
        return sorted((job for job in found if job is not None), key=lambda job: job.seq)

    async def ended_last(self, *, pool: str, since: float, limit: int) -> list[str]:
        ended = [(job.ended_at, job.id) for job in self._jobs.values() if job.pool == pool and job.ended_at is not None]
        return [job_id for at, job_id in sorted(ended, reverse=True) if at >= since][:limit]

    async def ended_jobs(self, *, tenants: Sequence[str], since: float, until: float, label: str) -> list[Job]:
        found = [
            job
            for job in self._jobs.values()
            if job.tenant in tenants
            and job.state is JobState.SUCCEEDED
            and since <= (job.ended_at or 0.0) < until
            and job.spec.labels.get(label) == "1"
        ]
        return sorted(found, key=lambda job: (job.ended_at or 0.0, job.seq))

    async def specifications(self, job_ids: Sequence[str], *, bytes_max: int) -> dict[str, JobSpec]:
        found: dict[str, JobSpec] = {}
        size = 0
        for job_id in sorted(set(job_ids) & self._submitted.keys()):
            if found and size >= bytes_max:
                break
            found[job_id] = self._submitted[job_id].spec
            size += len(msgspec.json.encode(found[job_id]))
        return found

    async def open_jobs(self, *, pool: str) -> list[Job]:
        return self._jobs_in(pool, {state for state in JobState if not state.final})

    async def holding_jobs(self, *, pool: str) -> list[Job]:
        return self._jobs_in(pool, HOLDING)

    async def queued_jobs(self, *, pool: str, known: Mapping[str, Job] = {}, limit: int | None = None) -> list[Job]:
        return self._jobs_in(pool, {JobState.QUEUED})[:limit]

    def _use(self, tenant: str, *, asked: bool = False) -> Use:
        """What a tenant has open; with `asked`, also what it asked to have requeued."""
        now = [self._jobs.get(job.id, job) for job in self._submitted.values() if job.tenant == tenant]
        counted = [job for job in now if not job.state.final]
        if asked:
            requeued = [ask.subject_id for _, ask in self._asks.values() if ask.kind is AskKind.REQUEUE]
            again = [self._jobs.get(job_id) or self._submitted[job_id] for job_id in requeued]
            counted += [job for job in again if job.tenant == tenant]
        size = sum(bytes_of(job.spec) + bytes_of_revisions(job) for job in counted) + self._asked_bytes(tenant)
        return Use(jobs=len(counted), spec_bytes=size)

    def _now(self) -> Iterable[Job]:
        """Every job as it is now, in the order of submission."""
        return (self._jobs.get(job_id, job) for job_id, job in self._submitted.items())

    def _jobs_in(self, pool: str, states: Iterable[JobState]) -> list[Job]:
        wanted = frozenset(states)
        found = [job for job in self._jobs.values() if job.pool == pool and job.state in wanted]
        return sorted(found, key=lambda job: job.seq)


def _within(jobs: list[Job], bytes_max: int) -> list[Job]:
    """The first jobs, of which all but the last have fewer bytes together."""
    before = accumulate((bytes_of_job(job) for job in jobs), initial=0)
    return [job for job, size in zip(jobs, before, strict=False) if size < bytes_max]


def bytes_of(spec: JobSpec) -> int:
    return len(msgspec.json.encode(spec))


def bytes_of_revisions(job: Job) -> int:
    """As Postgres writes their text."""
    texts = [one.text for one in job.revisions if one.text]
    return sum(len(json.dumps(msgspec.to_builtins(text), ensure_ascii=False).encode()) for text in texts)
