"""The cluster state of a pool as a scheduling cycle reads it."""

from collections.abc import Callable, Collection, Mapping, Sequence

from weft.domain.job import Job, JobState
from weft.planning.backfill import Ending
from weft.planning.capacity import FreeCapacity, empty_capacity
from weft.planning.cycle import CACHED_LEAST
from weft.planning.finding import Place, find
from weft.planning.jobs import asked_by, ends_at, standing_of, wants_of
from weft.planning.preemption import LEAVES_FIRST, Holder
from weft.planning.preemption.minimum_run import MinimumRun
from weft.planning.queue import Rank, Served, ServedAt
from weft.planning.quota.inforce import QuotasInForce
from weft.planning.resource_request import PlacementRequest, ResourceRequest, smallest
from weft.planning.scheduling_pass import Demand
from weft.planning.surplus import Surplus
from weftd.scheduler.thinking.state.cluster_state import ClusterState
from weftd.scheduler.thinking.state.holders import only_extra, parts_of


class PoolNow:
    """`aside`: waiting jobs that are not to be placed now. `now` is kept by the caller."""

    def __init__(self, cluster_state: ClusterState, aside: Collection[str]) -> None:
        self.now = 0.0
        self._cluster_state = cluster_state
        self._aside = aside
        self._empty: tuple[int, FreeCapacity] | None = None  # the `changes` of the pool, and its room without any job
        self._fits_empty: dict[ResourceRequest, bool] = {}

    @property
    def free_capacity(self) -> FreeCapacity:
        return self._cluster_state.pool.free_capacity

    @property
    def quotas(self) -> QuotasInForce:
        return self._cluster_state.quotas

    @property
    def gpus_free(self) -> int:
        return self.free_capacity.gpus_free

    @property
    def gpus_left(self) -> float:
        return self.free_capacity.gpus_left

    def served(self, rank_of: Callable[[str], Rank] | None) -> Served:
        return self._cluster_state.waitlist.queue.served(self._share_of(), rank_of)

    def keys(self, rank_of: Callable[[str], Rank] | None) -> Callable[[str], ServedAt]:
        return self._cluster_state.waitlist.queue.keys(self._share_of(), rank_of)

    def _share_of(self) -> Callable[[str], float]:
        cluster_state = self._cluster_state
        return cluster_state.holdings.share_of(cluster_state.quotas, cluster_state.jobs.values(), self.now)

    def waits(self, job_id: str) -> bool:
        return job_id in self._cluster_state.waitlist.queue

    def how_many_wait(self) -> int:
        return len(self._cluster_state.waitlist.queue)

    def demand(self, job_id: str) -> Demand | None:
        if job_id in self._aside:
            return None
        job, group = self._cluster_state.jobs[job_id], self._cluster_state.waitlist.group(job_id)
        return wants_of(job, group.resource_request, group.lasts_s)

    def tier(self, job_id: str) -> float:
        order = self._cluster_state.waitlist.queue.order
        return (
            0.0
            if order.tier is None
            else float(order.tier(standing_of(self._cluster_state.jobs[job_id], self.now, order)))
        )

    def waited_s(self, job_id: str) -> float:
        return self.now - self._cluster_state.jobs[job_id].since

    def asked(self, job_id: str) -> PlacementRequest:
        return asked_by(self._cluster_state.jobs[job_id], self._cluster_state.score_cache.learnt)

    def find(self, job_id: str, resource_request: ResourceRequest) -> Place | None:
        return find(self.free_capacity, resource_request, self.asked(job_id))

    def fits_empty(self, resource_request: ResourceRequest) -> bool:
        """Lost nodes count, too."""
        pool = self._cluster_state.pool
        if self._empty is None or self._empty[0] != pool.changes:
            self._empty = (pool.changes, empty_capacity(pool.nodes.values()))
            self._fits_empty.clear()
        if resource_request not in self._fits_empty:
            if len(self._fits_empty) > CACHED_LEAST + 4 * self.how_many_wait():
                self._fits_empty.clear()
            self._fits_empty[resource_request] = bool(find(self._empty[1], smallest(resource_request)))
        return self._fits_empty[resource_request]

    def endings(self) -> Sequence[Ending]:
        return self._cluster_state.holdings.endings()

    def may_leave(self, job_id: str, demand: Demand, *, fresh: bool) -> list[Holder]:
        del demand
        jobs, queue = self._cluster_state.jobs, self._cluster_state.waitlist.queue
        return self._cluster_state.holdings.holders.who_may_leave(
            standing_of(jobs[job_id], self.now, queue.order),
            jobs,
            self.now,
            self._progress_of,
            minimum_run=MinimumRun() if fresh else None,
        )

    def takes_surplus_at(self, job_id: str) -> int | None:
        """Services take none: they borrow."""
        job = self._cluster_state.jobs[job_id]
        return None if job.spec.is_service else job.priority

    def lenders(self) -> list[tuple[str, int]]:
        jobs = self._cluster_state.jobs
        return [(one, jobs[one].priority) for one in self._cluster_state.holdings.holders.lending]

    def surplus(self, job_id: str) -> list[Surplus]:
        job = self._cluster_state.jobs[job_id]
        return self._cluster_state.holdings.holders.surplus(job, self.now, self._progress_of(job))

    def may_be_reclaimed(self, job_id: str) -> list[Holder]:
        job = self._cluster_state.jobs[job_id]
        parts = parts_of(job, (float(job.priority),), self.now, self._progress_of(job))
        kept = self._cluster_state.minimum_run.protects(job, self.now, reclaimed=True)
        return [one for one in (only_extra(parts) if kept else parts) if one.worth != LEAVES_FIRST]

    def still_leaves(self, holder: Holder) -> bool:
        job = self._cluster_state.jobs.get(holder.job_id)
        if job is None or job.state is JobState.STOPPING:
            return job is not None
        ranks = {allocation.rank for allocation in holder.allocations}
        return holder.extra and any(each.leaving and each.rank in ranks for each in job.held)

    def left_on(self, node_id: str) -> float:
        jobs = self._cluster_state.jobs
        return max((self._left(jobs[job_id]) for job_id in self._cluster_state.pool.runs.jobs_on(node_id)), default=0.0)

    def _left(self, job: Job) -> float:
        """The seconds that a job is expected to run on: until its limit, or as long again as it has run."""
        ends = ends_at(job)
        return self.now - job.held_since + job.attained_seconds if ends is None else max(0.0, ends - self.now)

    def _progress_of(self, job: Job) -> Mapping[str, float]:
        return self._cluster_state.pool.runs.of(job).progress or {}
