"""The data behind estimates, shared by all requests: durations of jobs, and the track record of earlier estimates.

The durations are those of the jobs that ended last, read from the store. The track record is in memory: it starts empty
with each gateway.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from weft.domain.cluster import Node
from weft.domain.job import Job, JobState
from weft.domain.quotas import Quota
from weft.messages.eta import Estimate, EtaOf
from weft.planning.eta.ends import Steps
from weft.planning.eta.learnt import Lasted, learn
from weft.planning.eta.record import Track, TrackRecords
from weft.planning.eta.starts import Foreseen, PoolToCome, without_moment
from weft.planning.in_order import KnownPlaces
from weft.planning.preemption.minimum_run import MinimumRun
from weft.store import GatewayStore
from weftd.gateway.readmodel.cluster import LiveCluster
from weftd.gateway.readmodel.snapshots import Fresh, Snapshots

ENDED_MAX = 1_000  # jobs read at first; more are learned as they end
DURATIONS_SECONDS = 30.0
AGAIN_SECONDS = 60.0  # between two estimates of one job that count in its record
OVERLAP_SECONDS = 10.0  # a job that ended before another may be stored after it
KEPT_SECONDS = 90 * 86400.0
SPARING = 30  # prepared data are renewed after this multiple of the time that they took,
PAUSE_SECONDS_MAX = 60.0  # at most
JUDGED_AT_ONCE = 100  # jobs whose estimates are checked in one pass


class WhatWasTold(NamedTuple):
    """The subject of an estimate."""

    id: str
    epoch: int
    of: EtaOf


class _Learnt:
    """The durations of one pool."""

    def __init__(self) -> None:
        self.durations = Lasted()
        self.since = 0.0
        self.known: set[str] = set()  # jobs that ended at `since`, or a little before


class Estimates:
    """`now` is the time of day, `clock` does not jump."""

    def __init__(
        self, store: GatewayStore, cluster: LiveCluster, *, now: Callable[[], float], clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._now = now
        self._clock = clock
        self._learnt: dict[str, _Learnt] = {}
        self._durations: dict[str, Fresh[Lasted]] = {}
        self._records: dict[str, TrackRecords[WhatWasTold]] = {}
        self._prepare_at = 0.0

    async def durations(self, pool: str) -> Lasted:
        """How long jobs of a known pool lasted."""
        if pool not in self._durations:
            self._durations[pool] = Fresh(lambda: self._read(pool), clock=self._clock, seconds=DURATIONS_SECONDS)
        return await self._durations[pool].get()

    def records(self, pool: str) -> TrackRecords[WhatWasTold]:
        return self._records.setdefault(pool, TrackRecords())

    async def prepare(self, snapshots: Snapshots) -> None:
        """Compute durations of jobs and the places of all waiting jobs, ahead of the requests that need them. Does
        nothing if the last call was too short a time ago. Raises StoreUnavailableError."""
        began = self._clock()
        if began < self._prepare_at:
            return
        await self._prepare(snapshots)
        now = self._clock()
        self._prepare_at = now + min(PAUSE_SECONDS_MAX, SPARING * (now - began))

    async def _prepare(self, snapshots: Snapshots) -> None:
        for pool in snapshots.pools_of(await snapshots.nodes.aside()):
            await self.durations(pool)
            if queued := await snapshots.queued(pool, aside=True):
                places = snapshots.places(pool, await self._store.policy(pool=pool))
                await asyncio.to_thread(places.of, queued, self._now())

    async def _read(self, pool: str) -> Lasted:
        """Learn the jobs that ended since the last look."""
        learnt = self._learnt.setdefault(pool, _Learnt())
        since = max(learnt.since - OVERLAP_SECONDS, self._now() - KEPT_SECONDS)
        ids = await self._store.ended_last(pool=pool, since=since, limit=ENDED_MAX)
        fresh = [job_id for job_id in ids if job_id not in learnt.known]
        ended = await self._store.jobs_of(fresh) if fresh else []
        learn(learnt.durations, ended)
        learnt.since = max((job.ended_at or 0.0 for job in ended), default=learnt.since)
        learnt.known = set(ids)
        await self._judge(self.records(pool))
        return learnt.durations

    async def _judge(self, records: TrackRecords[WhatWasTold]) -> None:
        """Compare shown estimates with the events that happened."""
        keys = [key for track in records.all() for key in track.pending][:JUDGED_AT_ONCE]
        jobs = {job.id: job for job in await self._store.jobs_of([key.id for key in keys])} if keys else {}
        for track in records.all():
            for key in track.pending:
                if key in keys:
                    _judge_one(track, key, jobs.get(key.id))

    def told(self, job: Job, foreseen: Foreseen) -> Estimate:
        """The estimate as it is shown. Now and then the estimate of each job is recorded and checked later. A job that
        is later than estimated shows only the range, without a likely time."""
        eta, now = foreseen.estimate, self._now()
        if foreseen.raw is None or foreseen.told is None:
            return eta
        track, key = self.records(job.pool).of(eta.of, eta.basis), WhatWasTold(job.id, job.epoch, eta.of)
        late = track.is_late(key, now)
        if now - track.last_told(key) >= AGAIN_SECONDS:
            track.expect(key, foreseen.raw, foreseen.told, at=now)
        return without_moment(eta, now=now) if late else eta

    def steps(self, jobs: Sequence[Job]) -> dict[str, Steps]:
        """The latest steps of running jobs, by the slowest rank of the roles that end the job."""
        found: dict[str, Steps] = {}
        for job in jobs:
            placed = job.placement.allocations if job.placement is not None else ()
            ends = {allocation.rank for allocation in placed if allocation.role in job.spec.done_roles}
            heard = [run for rank, run in self._cluster.progress(job).items() if rank in ends]
            told = [(run.progress["step"], run.progress["steps"], run.pace) for run in heard if _counts(run.progress)]
            if told:
                step, steps, pace = min(told, key=lambda one: one[0])
                found[job.id] = Steps(step, steps, None if pace is None else pace.steps_rate)
        return found

    async def pool_of(
        self,
        job: Job,
        *,
        nodes: Sequence[Node],
        holding: Sequence[Job],
        queued: Sequence[Job],
        policy: str,
        quotas: Sequence[Quota],
        places: KnownPlaces | None = None,
    ) -> Callable[[], PoolToCome]:
        """Return a function that builds the pool's state. That function reads every job of the pool, so call it in a
        thread."""
        durations, records = await self.durations(job.pool), self.records(job.pool)
        minimum_run = MinimumRun(await self._store.preemption_after(pool=job.pool))
        spares = await self._store.spares(pool=job.pool)
        steps, now = self.steps(holding or [job]), self._now()
        return lambda: PoolToCome(
            nodes,
            holding,
            queued,
            now=now,
            policy=policy,
            durations=durations,
            steps=steps,
            records=records,
            quotas=quotas,
            places=places,
            minimum_run=minimum_run,
            spares=spares,
        )


def _counts(progress: Mapping[str, float]) -> bool:
    return {"step", "steps"} <= progress.keys()


def _judge_one(track: Track[WhatWasTold], key: WhatWasTold, job: Job | None) -> None:
    if job is None or job.epoch != key.epoch:
        track.drop(key)
    elif key.of is EtaOf.END:
        if job.state in (JobState.CANCELLED, JobState.FAILED):
            track.drop(key)  # nobody foretells when a job breaks off
        elif job.state.final:
            track.came(key, job.ended_at or job.since)
    elif job.state.holding:
        track.came(key, job.held_since)
    elif job.state.final and job.started_at is not None:
        track.came(key, job.started_at)
    elif job.state.final:
        track.drop(key)
