"""The jobs that may be preempted, in the order of preemption, kept sorted as jobs come, run on and go."""

from bisect import bisect_left, insort
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from math import inf

from libs.domain.job import Job, JobState
from libs.planning.jobs import standing_of
from libs.planning.order.standing import Key, Order, Standing
from libs.planning.preemption import Holder

STALE_MAX = 64  # outdated entries in the heap of changes, besides one for each current entry
LEAVES_FIRST = (-inf,)  # stopping jobs come before all others


class Holders:
    def __init__(self, order: Order) -> None:
        self._order = order
        self._sorted: list[tuple[Key, str]] = []
        self._worth_of: dict[str, Key] = {}
        self._changes: list[tuple[float, str]] = []  # a heap: when a running job changes its tier
        self._changes_at: dict[str, float] = {}  # by job, the current entry in the heap

    def put(self, job: Job, now: float) -> None:
        """File a job that begins to hold GPUs, changes its state while it holds them, or ran on."""
        self.remove(job.id)
        if job.state is JobState.STOPPING:
            worth: Key = LEAVES_FIRST
        elif job.spec.preemptible and self._order.tier is not None:
            standing = standing_of(job, now, self._order)
            worth = (-float(self._order.tier(standing)), -job.held_since)  # within a tier, least loss first
            after = self._order.changes_after_s(standing)
            if after is not None:
                self._push(now + after, job.id)
        else:
            return
        self._worth_of[job.id] = worth
        insort(self._sorted, (worth, job.id))

    def _push(self, at: float, job_id: str) -> None:
        self._changes_at[job_id] = at
        if len(self._changes) > 2 * len(self._changes_at) + STALE_MAX:
            self._changes = [(at, job_id) for job_id, at in self._changes_at.items()]
            heapify(self._changes)
        else:
            heappush(self._changes, (at, job_id))

    def remove(self, job_id: str) -> None:
        self._changes_at.pop(job_id, None)
        worth = self._worth_of.pop(job_id, None)
        if worth is not None:
            del self._sorted[bisect_left(self._sorted, (worth, job_id))]

    def who_may_leave(self, waiting: Standing, jobs: Mapping[str, Job], now: float) -> list[Holder]:
        """The stopping jobs first, then the jobs that `waiting` may preempt: those of the higher tiers."""
        while self._changes and self._changes[0][0] <= now:
            at, job_id = heappop(self._changes)
            if self._changes_at.get(job_id) == at:
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
