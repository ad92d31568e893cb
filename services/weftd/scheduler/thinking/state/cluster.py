"""The cluster state of a pool as a scheduling cycle reads it."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from weft.domain.checkpoints import lost_seconds
from weft.domain.job import Allocation, CauseCode, Job, JobState
from weft.domain.sizes import how_resized
from weft.domain.spec import Kind, ResizeHow
from weft.health.spares import GUESTS_LEAVE, SpareUse, holding_of, spare_nodes, spare_use
from weft.planning.backfill import Ending
from weft.planning.borrowing import spare_ranks, why_never_lends, why_not_lend
from weft.planning.capacity import FreeCapacity, empty_capacity
from weft.planning.cycle import CACHED_LEAST, Nodes
from weft.planning.finding import Place, find
from weft.planning.growth import Grower, live_sizes, may_be_offered
from weft.planning.jobs import asked_by, ends_at, standing_of, wants_of
from weft.planning.lending import Borrower
from weft.planning.moves import Candidate, gpus_of
from weft.planning.preemption import LEAVES_FIRST, Holder
from weft.planning.preemption.loss import loss
from weft.planning.preemption.minimum_run import MinimumRun
from weft.planning.queue import Place as PlaceInOrder
from weft.planning.queue import Rank, Served, ServedAt, place_of
from weft.planning.quota.inforce import QuotasInForce
from weft.planning.replicas import RunningService
from weft.planning.resizing import shrink
from weft.planning.resource_request import (
    PlacementRequest,
    ResourceRequest,
    RoleRequest,
    resource_request_of,
    resource_request_of_job,
    smallest,
)
from weft.planning.scheduling_pass import Demand
from weft.planning.scores import GpuKey
from weft.planning.surplus import Surplus, only_extra
from weftd.scheduler.thinking.state.cluster_state import ClusterState
from weftd.scheduler.thinking.state.holders import about_to_be_free, parts_of

MOVING_KINDS = (Kind.TRAINING, Kind.BATCH)  # no user works in these jobs or waits for their answers


class PoolNow:
    """`aside`: waiting jobs that are not to be placed now. `now` is kept by the caller."""

    def __init__(self, cluster_state: ClusterState, aside: Collection[str]) -> None:
        self.now = 0.0
        self._cluster_state = cluster_state
        self._aside = aside
        self._empty: tuple[int, FreeCapacity] | None = None  # the `changes` of the pool, and its room without any job
        self._fits_empty: dict[tuple[ResourceRequest, Nodes], bool] = {}

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

    def fits_empty(self, resource_request: ResourceRequest, *, without: Nodes = ()) -> bool:
        """Lost nodes count, too."""
        pool = self._cluster_state.pool
        if self._empty is None or self._empty[0] != pool.changes:
            self._empty = (pool.changes, empty_capacity(pool.nodes.values()))
            self._fits_empty.clear()
        key, empty = (resource_request, without), self._empty[1]
        if key not in self._fits_empty:
            if len(self._fits_empty) > CACHED_LEAST + 4 * self.how_many_wait():
                self._fits_empty.clear()
            with empty.without(without):
                self._fits_empty[key] = bool(find(empty, smallest(resource_request)))
        return self._fits_empty[key]

    def spare_nodes(self, spares: int) -> Nodes:
        pool, jobs = self._cluster_state.pool, self._cluster_state.jobs
        return spare_nodes(pool.nodes.values(), holding_of(jobs[job_id] for job_id in pool.runs.holding), spares)

    def guests(self, nodes: Nodes) -> list[Holder]:
        jobs, runs = self._cluster_state.jobs, self._cluster_state.pool.runs
        found = {job_id for node_id in nodes for job_id in runs.jobs_on(node_id)}
        return [
            part
            for job in map(jobs.__getitem__, sorted(found))
            if spare_use(job) is SpareUse.MEANWHILE and job.state is not JobState.STOPPING
            for part in parts_of(job, (GUESTS_LEAVE,), self.now, self._progress_of(job))
        ]

    def endings(self) -> Sequence[Ending]:
        return self._cluster_state.holdings.endings()

    def held(self, job_id: str) -> Sequence[Allocation]:
        return self._cluster_state.jobs[job_id].held

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

    def growing(self) -> Iterator[tuple[int, str]]:
        jobs = self._cluster_state.jobs
        return ((jobs[one].seq, one) for one in self._cluster_state.resize_candidates.growing)

    def may_be_offered(self) -> Iterator[tuple[int, str]]:
        for job in map(self._cluster_state.jobs.__getitem__, self._cluster_state.resize_candidates.offered):
            if may_be_offered(job.held_since if job.sized_at is None else job.sized_at, self.now):
                yield job.seq, job.id

    def grower(self, job_id: str, *, offered: bool) -> Grower | None:
        """A job that restarts for its new size has then what stays of it."""
        job = self._cluster_state.jobs[job_id]
        assert job.placement is not None
        held, whole = job.placement.allocations, how_resized(job.spec) is not ResizeHow.LIVE
        if whole:
            held = staying_after_restart(job)
        elif any(allocation.leaving for allocation in held):
            return None
        aims = {one.role: one.most for one in live_sizes(job)} if offered else job.wanted
        missing: list[tuple[RoleRequest, int]] = []
        for want in resource_request_of_job(job):
            more = aims[want.role] - sum(each.role == want.role and not each.leaving for each in held)
            if more > 0:
                missing.append((want, more))
        return Grower(
            job_id=job_id,
            held=held,
            missing=tuple(missing),
            first_rank=job.placement.fresh_rank,
            tenant=job.tenant,
            preemptible=job.spec.preemptible,
            model=job.spec.only_model,
            asked=self.asked(job_id),
            whole=whole,
        )

    def kept_from_growth(self) -> list[Allocation]:
        return self._cluster_state.freed_holds.in_room(self.free_capacity)

    def growth_news(self) -> int:
        return self._cluster_state.freed_holds.changes

    def serving(self) -> Iterator[tuple[int, str]]:
        jobs = self._cluster_state.jobs
        return ((jobs[one].seq, one) for one in self._cluster_state.resize_candidates.serving)

    def service(self, job_id: str) -> RunningService:
        job = self._cluster_state.jobs[job_id]
        assert job.placement is not None
        assert job.spec.service is not None
        replicas = self._cluster_state.replicas.look(job, self._cluster_state.pool.runs, self.now)
        (want,) = resource_request_of(job.spec, job.tenant)
        return RunningService(
            job_id=job_id,
            number=job.seq,
            version=job.version,
            held=job.placement.allocations,
            want=want,
            wanted=sum(job.wanted.values()),
            first_rank=job.placement.fresh_rank,
            ready=frozenset(rank for rank, one in replicas.items() if one.ready_at is not None),
            borrowed=frozenset(loan.rank for loan in job.loans),
            revision=job.revision,
            max_surge=job.spec.service.max_surge,
            not_before=job.not_before,
            tenant=job.tenant,
            preemptible=job.spec.preemptible,
            model=job.spec.only_model,
            asked=self.asked(job_id),
        )

    def would_give_way(self, waiting_id: str, service_id: str) -> bool:
        jobs, order = self._cluster_state.jobs, self._cluster_state.waitlist.queue.order
        waiting = jobs.get(waiting_id)
        if waiting is None:
            return True
        if order.preempts is None or why_never_lends(waiting):
            return False
        return order.preempts(standing_of(jobs[service_id], self.now, order), standing_of(waiting, self.now, order))

    # loans to services

    def borrower(self, job_id: str) -> Borrower | None:
        job = self._cluster_state.jobs.get(job_id)
        if job is None or job.state is not JobState.RUNNING or job.placement is None:
            return None
        rank = (float(job.priority), self.tier(job_id))
        return Borrower(service=self.service(job_id), epoch=job.epoch, rank=rank)

    def is_there(self, node_id: str) -> bool:
        node = self._cluster_state.pool.nodes.get(node_id)
        return node is not None and node.ready

    def has_left(self, job_id: str, epoch: int, ranks: Sequence[int]) -> bool:
        job = self._cluster_state.jobs.get(job_id)
        if job is None or job.epoch != epoch or job.placement is None:
            return True
        return bool(ranks) and not any(one.rank in ranks for one in job.placement.allocations)

    def about_to_be_free(self) -> list[Holder]:
        jobs, leaving = self._cluster_state.jobs, sorted(self._cluster_state.holdings.holders.leaving)
        return [each for job_id in leaving for each in about_to_be_free(jobs[job_id])]

    def spares(self, service_id: str) -> Iterator[Holder]:
        """First ranks beyond the core of jobs that resize live, then those of jobs that shrink by a restart."""
        cluster_state, service = self._cluster_state, self._cluster_state.jobs[service_id]
        lending = map(cluster_state.jobs.__getitem__, cluster_state.holdings.holders.lending)
        may = [job for job in lending if not why_not_lend(job, service)]
        live = [job for job in may if how_resized(job.spec) is ResizeHow.LIVE]
        for job in sorted(live, key=lambda job: (loss(job, self.now, {}, extra=True), job.id)):
            yield from spare_ranks(job, service, self.now, {})
        restarting = [
            job
            for job in may
            if how_resized(job.spec) is ResizeHow.RESTART and not cluster_state.minimum_run.protects(job, self.now)
        ]
        ranks = [each for job in restarting for each in spare_ranks(job, service, self.now, self._progress_of(job))]
        yield from sorted(ranks, key=lambda holder: (holder.worth, holder.job_id))

    def whole(self, service_id: str, *, most: int | None) -> list[Holder]:
        jobs, queue = self._cluster_state.jobs, self._cluster_state.waitlist.queue
        found = self._cluster_state.holdings.holders.who_may_leave(
            standing_of(jobs[service_id], self.now, queue.order), jobs, self.now, self._progress_of, most=most
        )
        whole = [each for each in found if not each.extra and each.worth != LEAVES_FIRST and each.allocations]
        return [each for each in whole if not why_never_lends(jobs[each.job_id])]

    def loses(self, victim: Holder, service_id: str) -> bool:
        job = self._cluster_state.jobs[victim.job_id]
        if job.spec.is_service:
            return False
        if job.state is JobState.STOPPING:
            why = job.stopping_for
            return why is not None and (why.code, why.by) == (CauseCode.LENT, service_id)
        return victim.worth != LEAVES_FIRST or any(job.wanted[role] > count for role, count in job.granted.items())

    def epoch(self, job_id: str) -> int:
        return self._cluster_state.jobs[job_id].epoch

    def grace_s(self, job_id: str) -> float:
        return self._cluster_state.jobs[job_id].spec.grace_seconds

    def priority(self, job_id: str) -> int | None:
        job = self._cluster_state.jobs.get(job_id)
        return None if job is None else job.priority

    def running(self) -> Iterator[tuple[str, int]]:
        jobs = self._cluster_state.jobs
        return ((one, jobs[one].version) for one in self._cluster_state.pool.runs.holding)

    def candidate(self, job_id: str) -> Candidate | None:
        job = self._cluster_state.jobs[job_id]
        lost, spec = lost_seconds(job.spec), job.spec
        if lost is None or job.state is not JobState.RUNNING or spec.kind not in MOVING_KINDS:
            return None
        if not spec.preemptible or spec.pin is not None:
            return None
        if any(allocation.leaving or allocation.share is not None for allocation in job.held):
            return None
        return Candidate(
            allocations=job.held,
            gpus=job.gpus_held,
            cost_s=spec.grace_seconds + lost,
            stop_s=spec.grace_seconds,
            epoch=job.epoch,
            since=job.held_since,
            began=job.held_since - job.attained_seconds,
            ends=ends_at(job),
            model=job.gpu_model,
        )

    def place_in_order(self, job_id: str) -> PlaceInOrder:
        order = self._cluster_state.waitlist.queue.order
        return place_of(order, standing_of(self._cluster_state.jobs[job_id], self.now, order))

    def as_placed(self, job_id: str) -> ResourceRequest:
        job = self._cluster_state.jobs[job_id]
        has, wants = job.granted, resource_request_of(job.spec, job.tenant)
        return tuple(RoleRequest(want.role, has[want.role], has[want.role], want.request) for want in wants)

    def score_news(self) -> int:
        return self._cluster_state.score_cache.changes

    def stopping_to_move(self) -> set[str]:
        """Also those that an earlier leader stopped."""
        jobs = self._cluster_state.jobs
        return {one for one in self._cluster_state.pool.runs.holding if _stops_to_move(jobs[one])}

    def is_on_its_way(self, job_id: str, epoch: int) -> bool:
        job = self._cluster_state.jobs.get(job_id)
        if job is None:
            return False
        if job.state is JobState.STOPPING:
            return job.epoch == epoch and _stops_to_move(job)
        return job.state is JobState.QUEUED and job.epoch == epoch + 1

    def is_left(self, gpus: Collection[GpuKey]) -> bool:
        jobs, runs = self._cluster_state.jobs, self._cluster_state.pool.runs
        return all(
            gpus_of(jobs[job_id].held).isdisjoint(gpus)
            for node_id in {node_id for node_id, _ in gpus}
            for job_id in runs.jobs_on(node_id)
        )

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


def _stops_to_move(job: Job) -> bool:
    return job.stopping_for is not None and job.stopping_for.code is CauseCode.MOVED


def staying_after_restart(job: Job) -> Place:
    """The ranks of a job that keep their places when it restarts with its new size."""
    assert job.placement is not None
    stay = job.placement.allocations
    for role, count in job.wanted.items():
        fewer = job.granted[role] - count
        if fewer > 0:
            stay = shrink(stay, role, fewer, least=job.spec.roles[role].replicas.least, lonely_first=True)[0]
    return stay
