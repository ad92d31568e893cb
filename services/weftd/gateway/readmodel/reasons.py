"""Reasons why jobs wait, from the present free capacity. The store has the reason of the time when it was new."""

from collections.abc import Sequence

import msgspec

from weft.domain.job import Cause, CauseCode, Job, JobState
from weft.planning.capacity import FreeCapacity, free_capacity_of
from weft.planning.reasons.pins import in_the_way, with_holders
from weft.planning.reasons.refusals import why_not
from weft.planning.resource_request import ResourceRequest, is_pinned, resource_request_of_job
from weftd.gateway.readmodel.snapshots import Nodes, Snapshots

SHAPES_MAX = 16  # resource requests tried in one state of a pool; other jobs show the stored reason
_BY_ROOM = frozenset({CauseCode.NO_ROOM, CauseCode.NO_NODES})


class _Picture:
    """The state of one pool from two snapshots, with the reasons found so far."""

    def __init__(self, pool: str, nodes: Nodes, holding: list[Job]) -> None:
        self.nodes = nodes
        self.holding = holding
        self._pool = pool
        self._free_capacity: FreeCapacity | None = None
        self._causes: dict[ResourceRequest, Cause | None] = {}

    def why_not(self, job: Job) -> Cause | None:
        resource_request = resource_request_of_job(job)
        if resource_request not in self._causes:
            if len(self._causes) >= SHAPES_MAX:
                return None
            self._causes[resource_request] = self._look(resource_request)
        return self._causes[resource_request]

    def fits(self, job: Job) -> bool:
        """True if the job fits. False also if its resource request was not tried."""
        return self._causes.get(resource_request_of_job(job), job.waiting_for) is None

    def _look(self, resource_request: ResourceRequest) -> Cause | None:
        if self._free_capacity is None:
            self._free_capacity = free_capacity_of(self.nodes.of(self._pool), self.holding)
        cause = why_not(self._free_capacity, resource_request)
        return (
            with_holders(cause, in_the_way(resource_request, self.holding))
            if cause and is_pinned(resource_request)
            else cause
        )


class Reasons:
    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._pictures: dict[str, _Picture] = {}

    async def fresh(self, jobs: Sequence[Job]) -> list[Job]:
        """The same jobs; those that wait for capacity get a reason from the present free capacity."""
        stale = {job.pool for job in jobs if _is_by_room(job)}
        if not stale:
            return list(jobs)
        nodes = await self._snapshots.nodes.get()
        known = stale & set(await self._snapshots.pools())
        for pool in sorted(known):
            holding = await self._snapshots.holding(pool)
            picture = self._pictures.get(pool)
            if picture is None or picture.nodes is not nodes or picture.holding is not holding:
                self._pictures[pool] = _Picture(pool, nodes, holding)
        return [self._with_reason(job) if job.pool in known and _is_by_room(job) else job for job in jobs]

    def fits(self, job: Job) -> bool:
        """True if a job that `fresh` has just returned fits the present free capacity although its reason, which is
        older, says that none is free."""
        picture = self._pictures.get(job.pool)
        return picture is not None and _is_by_room(job) and picture.fits(job)

    def _with_reason(self, job: Job) -> Job:
        cause = self._pictures[job.pool].why_not(job)
        return job if cause is None else msgspec.structs.replace(job, waiting_for=cause)


def _is_by_room(job: Job) -> bool:
    """True if the reason follows from the free capacity. False if runs that should have ended hold GPUs, which only the
    scheduler sees."""
    cause = job.waiting_for
    waits = job.state is JobState.QUEUED and cause is not None and cause.code in _BY_ROOM
    return waits and cause is not None and "gpus_occupied" not in cause.numbers
