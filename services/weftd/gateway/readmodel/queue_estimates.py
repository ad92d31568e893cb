"""Estimated starts of waiting jobs, computed in a thread once for all readers of the queue."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from weft.domain.cluster import Node
from weft.domain.job import Job
from weft.domain.quotas import Quota
from weft.messages.eta import Estimate
from weft.planning.eta.starts import PoolToCome
from weftd.gateway.readmodel.estimates import Estimates

ESTIMATED_MAX = 1000  # jobs of a pool that are served first; estimates of later ones would say little
JUDGED_MAX = 20  # number of them whose estimates are checked later
FIRST_SECONDS_MAX = 2.0  # maximum wait of a queue for its first estimates
AGAIN_SECONDS = 5.0  # between two estimates, at least; and
SPARING = 30  # this many times as long as they took,
PAUSE_SECONDS_MAX = 60.0  # at most
NONE_YET: Mapping[str, Estimate] = {}


class QueueEstimates:
    """`clock` does not jump."""

    def __init__(self, estimates: Estimates, *, clock: Callable[[], float]) -> None:
        self._estimates = estimates
        self._clock = clock
        self._found: dict[str, Mapping[str, Estimate]] = {}
        self._again_at: dict[str, float] = {}
        self._making: dict[str, asyncio.Task[None]] = {}

    async def of(
        self,
        pool: str,
        *,
        nodes: Sequence[Node],
        holding: Sequence[Job],
        queued: Sequence[Job],
        policy: str,
        quotas: Sequence[Quota] = (),
    ) -> Mapping[str, Estimate]:
        """The newest estimates of a known pool, by job; `queued` in the order in which the jobs are served. All but the
        first estimates are computed in the background."""
        if not queued:
            return NONE_YET
        if pool not in self._making and self._clock() >= self._again_at.get(pool, 0.0):
            first = queued[:ESTIMATED_MAX]
            make = await self._estimates.pool_of(
                first[0], nodes=nodes, holding=holding, queued=first, policy=policy, quotas=quotas
            )
            if pool not in self._making:
                self._making[pool] = asyncio.create_task(self._make(pool, make, first), name="queue-estimates")
        if pool not in self._found and pool in self._making:
            await asyncio.wait([self._making[pool]], timeout=FIRST_SECONDS_MAX)
        return self._found.get(pool, NONE_YET)

    async def close(self) -> None:
        """Return when no estimate is being computed. A thread cannot be ended, but its work is bounded."""
        if self._making:
            await asyncio.wait(self._making.values())

    async def _make(self, pool: str, make: Callable[[], PoolToCome], jobs: Sequence[Job]) -> None:
        began = self._clock()
        try:
            found = await asyncio.to_thread(lambda: make().starts())
            shown = {job_id: foreseen.estimate for job_id, foreseen in found.items()}
            for job in [job for job in jobs if job.id in found][:JUDGED_MAX]:
                shown[job.id] = self._estimates.told(job, found[job.id])
            self._found[pool] = shown
        finally:
            took = self._clock() - began
            self._again_at[pool] = self._clock() + max(AGAIN_SECONDS, min(PAUSE_SECONDS_MAX, SPARING * took))
            del self._making[pool]
