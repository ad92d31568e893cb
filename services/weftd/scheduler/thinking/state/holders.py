"""The jobs that may be preempted, in the order of preemption, kept sorted as jobs come, run on and go."""

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush
from math import inf

from weft.domain.job import Allocation, Job, JobState
from weft.planning.borrowing import may_ever_lend
from weft.planning.jobs import standing_of
from weft.planning.order import Key, Order, Standing
from weft.planning.preemption import LEAVES_FIRST, Holder
from weft.planning.preemption.loss import loss
from weft.planning.preemption.minimum_run import MinimumRun
from weft.planning.surplus import Surplus, only_extra, surplus_in
from weft.planning.surplus import parts_of as parts_in
from weft.planning.tiers import changes_at

STALE_MAX = 64  # outdated entries in the heap of changes, besides one for each current entry


class Holders:
    def __init__(self, order: Order, minimum_run: MinimumRun) -> None:
        self._order = order
        self._minimum_run = minimum_run
        self._sorted: list[tuple[Key, str]] = []
        self._worth_of: dict[str, Key] = {}
        self.lending: set[str] = set()  # the running jobs with ranks that a service may borrow
        self.leaving: set[str] = set()  # the jobs that stop, or of which ranks leave
        self._changes: list[tuple[float, str]] = []  # a heap: when a running job changes its tier
        self._changes_at: dict[str, float] = {}  # by job, the current entry in the heap

    def put(self, job: Job, now: float) -> None:
        """File a job that begins to hold GPUs, changes its state while it holds them, or ran on."""
        self.remove(job.id)
        if may_ever_lend(job):
            self.lending.add(job.id)
        if job.state is JobState.STOPPING or any(one.leaving for one in job.held):
            self.leaving.add(job.id)
        if job.state is JobState.STOPPING:
            worth: Key = LEAVES_FIRST
        elif job.spec.preemptible and self._order.tier is not None:
            standing = standing_of(job, now, self._order)
            worth = (-float(self._order.tier_of_running(standing)), -job.held_since)
            after = self._order.changes_after_s(standing)
            if after is not None:
                self._push(changes_at(now + after, now=now), job.id)
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
        self.lending.discard(job_id)
        self.leaving.discard(job_id)
        self._changes_at.pop(job_id, None)
        worth = self._worth_of.pop(job_id, None)
        if worth is not None:
            del self._sorted[bisect_left(self._sorted, (worth, job_id))]

    def who_may_leave(
        self,
        waiting: Standing,
        jobs: Mapping[str, Job],
        now: float,
        progress_of: Callable[[Job], Mapping[str, float]],
        *,
        most: int | None = None,
        minimum_run: MinimumRun | None = None,
    ) -> list[Holder]:
        """Holders in the order in which they leave: those that stop already; jobs that `waiting` may preempt, by tier
        and then by the work that they lose. `most`: the number of jobs to preempt that are
        looked at; `minimum_run`: in place of the pool's."""
        minimum = self._minimum_run if minimum_run is None else minimum_run
        while self._changes and self._changes[0][0] <= now:
            at, job_id = heappop(self._changes)
            if self._changes_at.get(job_id) == at:
                self.put(jobs[job_id], now)
        first_to_stay = -inf if self._order.tier is None else -float(self._order.tier(waiting))
        found: list[Holder] = []
        stopping = bisect_left(self._sorted, ((*LEAVES_FIRST, inf), ""))
        for worth, job_id in self._sorted if most is None else self._sorted[: stopping + most]:
            if worth == LEAVES_FIRST:
                found.append(Holder(job_id=job_id, worth=worth, allocations=_freed(jobs[job_id])))
            elif worth[0] >= first_to_stay:
                break
            else:
                job = jobs[job_id]
                parts = parts_of(job, worth[:1], now, progress_of(job))
                found += only_extra(parts) if minimum.protects(job, now) else parts
        return found

    def surplus(self, job: Job, now: float, progress: Mapping[str, float]) -> list[Surplus]:
        """The ranks that a job of `lending` can do without."""
        assert job.placement is not None
        tier = self._order.tier and -float(self._order.tier_of_running(standing_of(job, now, self._order)))
        wanted = {name: role.replicas.want for name, role in job.spec.roles.items()}
        return surplus_in(parts_of(job, (tier or 0.0,), now, progress), wanted, job.wanted)


def about_to_be_free(job: Job) -> list[Holder]:
    """Resources that a job of `leaving` returns soon."""
    if job.state is JobState.STOPPING:
        return [Holder(job_id=job.id, worth=LEAVES_FIRST, allocations=_freed(job))]
    return [
        Holder(job_id=job.id, worth=LEAVES_FIRST, allocations=(one,), extra=True) for one in job.held if one.leaving
    ]


def _freed(job: Job) -> tuple[Allocation, ...]:
    """Resources that a stopping job returns, without those that it keeps for its restart."""
    assert job.placement is not None
    kept = () if job.next_placement is None else job.next_placement.allocations
    gpus = {(allocation.node_id, gpu) for allocation in kept for gpu in allocation.gpus}
    return tuple(
        allocation
        for allocation in job.placement.allocations
        if not kept or (allocation.gpus and gpus.isdisjoint((allocation.node_id, gpu) for gpu in allocation.gpus))
    )


def parts_of(job: Job, tier: Key, now: float, progress: Mapping[str, float]) -> list[Holder]:
    """The job's ranks that leave already, those that it can do without, the newest first, and the rest of it."""
    assert job.placement is not None
    return parts_in(
        job.id,
        job.placement.allocations,
        tier=tier,
        loss=lambda extra: loss(job, now, progress, extra=extra),
        runs=job.state is JobState.RUNNING,
        needed=_needed(job),
    )


def why_surplus(order: Order, waiting: Standing, running: Standing) -> str:
    """Why ranks of a job leave for another that may not preempt it; empty if it may."""
    if order.preempts is not None and order.preempts(waiting, running):
        return ""
    return "it waits for GPUs, and these ranks are beyond the core of that job"


def _needed(job: Job) -> frozenset[int]:
    """The replicas that a service should have at least, its oldest: they give way after those beyond."""
    assert job.placement is not None
    if not job.spec.is_service:
        return frozenset()
    least = sum(role.replicas.least for role in job.spec.roles.values())
    return frozenset(sorted(allocation.rank for allocation in job.placement.staying)[:least])
