"""Who holds GPUs and may be asked for them, who is worth least first: kept so as jobs come, run on and go."""

from bisect import bisect_left, insort
from collections.abc import Mapping
from heapq import heappop, heappush
from math import inf

from libs.domain.job import Job, JobState
from libs.planning.jobs import standing_of
from libs.planning.order.standing import Key, Order, Standing
from libs.planning.preemption import Holder

LEAVES_FIRST = (-inf,)  # whoever is stopping anyhow is asked before all others


class Holders:
    def __init__(self, order: Order) -> None:
        self._order = order
        self._sorted: list[tuple[Key, str]] = []
        self._worth_of: dict[str, Key] = {}
        self._changes: list[tuple[float, str]] = []  # a heap: when whose tier is another, if it runs on until then

    def put(self, job: Job, now: float) -> None:
        """It holds something, came to do so in another state, or ran on."""
        self.remove(job.id)
        if job.state is JobState.STOPPING:
            worth: Key = LEAVES_FIRST
        elif job.spec.preemptible and self._order.tier is not None:
            standing = standing_of(job, now, self._order)
            worth = (-float(self._order.tier(standing)), -job.held_since)  # of one tier, the one that loses least
            after = self._order.changes_after_s(standing)
            if after is not None:
                heappush(self._changes, (now + after, job.id))
        else:
            return
        self._worth_of[job.id] = worth
        insort(self._sorted, (worth, job.id))

    def remove(self, job_id: str) -> None:
        worth = self._worth_of.pop(job_id, None)
        if worth is not None:
            del self._sorted[bisect_left(self._sorted, (worth, job_id))]

    def who_may_leave(self, waiting: Standing, jobs: Mapping[str, Job], now: float) -> list[Holder]:
        """Whoever is stopping anyhow, before all others; then those that `waiting` may displace: the higher tiers."""
        while self._changes and self._changes[0][0] <= now:
            _, job_id = heappop(self._changes)
            if self._worth_of.get(job_id, LEAVES_FIRST) != LEAVES_FIRST:
                self.put(jobs[job_id], now)
        first_to_stay = -inf if self._order.tier is None else -float(self._order.tier(waiting))
        found: list[Holder] = []
        for worth, job_id in self._sorted:
            if worth != LEAVES_FIRST and worth[0] >= first_to_stay:
                break
            placement = jobs[job_id].placement
            assert placement is not None, f"{job_id} holds nothing"
            found.append(Holder(job_id=job_id, worth=worth, allocations=placement.allocations))
        return found
