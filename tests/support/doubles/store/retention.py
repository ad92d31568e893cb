"""Forgets jobs that ended long ago, in memory."""

from tests.support.doubles.store.nodes import MemoryNodes
from tests.support.doubles.store.submissions import MemorySubmissions
from tests.support.doubles.store.times import micro
from tests.support.doubles.store.tuning import MemoryTuning
from weft.domain.lease import Lease
from weft.messages.http.status import DatabaseView
from weft.store import JobsKept
from weft.store.migrate import migrations


class MemoryRetention(MemorySubmissions, MemoryTuning, MemoryNodes):
    def __init__(self) -> None:
        super().__init__()
        self._jobs_kept: dict[str, JobsKept] = {}  # by pool

    async def forget_jobs(self, lease: Lease, *, before: float, kept_seconds: float, limit: int) -> int:
        self._must_hold(lease)
        before = micro(before)
        known = self._jobs_kept.get(lease.name)
        self._jobs_kept[lease.name] = JobsKept(
            pool=lease.name,
            seconds=kept_seconds,
            forgotten_before=before if known is None else max(before, known.forgotten_before),
        )
        asked = {ask.subject_id for _, ask in self._asks.values()}
        over = [
            job
            for job in self._jobs.values()
            if job.pool == lease.name and job.ended_at is not None and job.ended_at < before and job.id not in asked
        ]
        published = [job for job in over if all(event.id not in self._outbox for event in self._stories[job.id])]
        gone = {job.id for job in sorted(published, key=lambda job: job.ended_at or 0.0)[:limit]}
        told = {event.id for event in self._node_events_before(before, lease.name)[:limit]}
        for job_id in gone:
            del self._jobs[job_id], self._submitted[job_id], self._stories[job_id]
            self._envelopes.pop(job_id, None)
        self._keys = {key: kept for key, kept in self._keys.items() if kept[0] not in gone}
        self._events = [
            event
            for event in self._events
            if event.id not in told and not (event.topic == "jobs" and event.subject_id in gone)
        ]
        return len(gone) + len(told)

    async def jobs_kept(self) -> list[JobsKept]:
        return [kept for _, kept in sorted(self._jobs_kept.items())]

    async def database_status(self) -> DatabaseView:
        return DatabaseView(
            bytes=1,
            connections=1,
            connections_max=100,
            version="in memory",
            ran=migrations(),
            asks=len(self._asks),
            unsent=len(self._outbox),
        )
