"""A projected cluster for the scheduler's own cycle: running jobs end, and jobs that give way wait again.

Times are seconds from now.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import lru_cache
from math import ceil
from typing import Protocol

from msgspec import structs

from weft.domain.job import Allocation
from weft.health.spares import GUESTS_LEAVE, SpareUse, spare_nodes
from weft.planning.backfill import Ending
from weft.planning.capacity import FreeCapacity
from weft.planning.eta.runs import RIGID, Holds, Run, WaitingJob, run_of
from weft.planning.finding import Place, find
from weft.planning.growth import Grower, may_be_offered
from weft.planning.order import Order
from weft.planning.preemption import LEAVES_FIRST, Holder
from weft.planning.preemption.minimum_run import MinimumRun
from weft.planning.queue import Queue, Rank, Served, ServedAt
from weft.planning.quota.inforce import QuotasInForce
from weft.planning.resource_request import PlacementRequest, ResourceRequest, gpus_in, smallest
from weft.planning.scheduling_pass import Demand
from weft.planning.surplus import Surplus, only_extra, surplus_in, with_extras
from weft.planning.tiers import Tiers

FITS_MAX = 1024  # cached answers of `fits_empty`
GRAIN_S = 1e-3  # ends this close count as one moment
HOLDERS_PER_LOOK = 32  # jobs checked as victims for the price of one decision


class Space(Protocol):
    """The capacity in which jobs are placed: the real one (`is_exact`), or a number of GPUs."""

    free: float
    is_exact: bool
    free_capacity: FreeCapacity

    def supposing(self) -> AbstractContextManager[None]: ...
    def find(self, waiting: WaitingJob, resource_request: ResourceRequest) -> Place | None: ...
    def take(self, place: Place) -> None: ...
    def give_back(self, place: Place, gpus: float) -> None: ...


class RealRoom:
    """The real capacity, in a scope of `supposing`."""

    is_exact = True

    def __init__(self, free_capacity: FreeCapacity) -> None:
        self.free_capacity = free_capacity
        self.free = free_capacity.gpus_left

    def supposing(self) -> AbstractContextManager[None]:
        self.free = self.free_capacity.gpus_left
        return self.free_capacity.supposing()

    def find(self, waiting: WaitingJob, resource_request: ResourceRequest) -> Place | None:
        return find(self.free_capacity, resource_request, waiting.asked)

    def take(self, place: Place) -> None:
        self.free_capacity.take_all(place)
        self.free -= gpus_in(place)

    def give_back(self, place: Place, gpus: float) -> None:
        del gpus
        self.free_capacity.give_back_all(place)
        self.free += gpus_in(one for one in place if self.free_capacity.is_open(one.node_id))


class CountedGpus:
    """GPUs as a number, without nodes, models and CPUs. So no job gives way, and no node is reserved."""

    is_exact = False

    def __init__(self, free: float) -> None:
        self.free_capacity = FreeCapacity()  # without a node: counts releases
        self.free = self._free = free

    def supposing(self) -> AbstractContextManager[None]:
        self.free = self._free
        return nullcontext()

    def find(self, waiting: WaitingJob, resource_request: ResourceRequest) -> Place | None:
        del resource_request
        return _somewhere(ceil(waiting.gpus)) if waiting.gpus <= self.free else None

    def take(self, place: Place) -> None:
        self.free -= len(place[0].gpus)

    def give_back(self, place: Place, gpus: float) -> None:
        del place
        self.free_capacity.grown += 1
        self.free += ceil(gpus)


@lru_cache(maxsize=1024)
def _somewhere(gpus: int) -> Place:
    return (Allocation(rank=0, role="", node_id="", gpus=tuple(range(gpus)), cpus=0.0, memory=0),)


class ProjectedCluster:
    """The caller sets `now` and `looks_left`. `waiting`: waiting jobs by id; `gpus`: number in the pool, the base of
    shares of tenants; `empty`: nodes without jobs, in a pool with spares."""

    def __init__(
        self,
        space: Space,
        order: Order,
        waiting: Iterable[WaitingJob],
        held: Iterable[Holds],
        *,
        gpus: float,
        minimum_run: MinimumRun,
        quotas: QuotasInForce,
        empty: FreeCapacity | None = None,
    ) -> None:
        self.now = 0.0
        self.looks_left = 0
        self.space, self.order, self.quotas_now = space, order, quotas
        self.queue = Queue(order, by_tenant=quotas.on)
        self.waiting = {one.job_id: one for one in waiting}
        self.tiers = Tiers()
        self.changes: list[tuple[float, str]] = []  # times at which running jobs change their tiers, in any order
        self.minimum_run = minimum_run
        self._gpus = gpus
        self._empty = empty
        self._fits_empty: dict[tuple[ResourceRequest, tuple[str, ...]], bool] = {}
        self._looks_only = order.tier is None and not quotas.on and empty is None
        self._demands: dict[str, Demand] = {}
        self._too_large: dict[str, Demand] = {}  # the same for jobs that need more GPUs than are free
        self._held_by: dict[str, float] = {}
        self._limits: dict[str, Ending] = {}
        self._on: dict[str, list[str]] = {}  # by node, the jobs that run there now,
        self._started_on: dict[str, list[str]] = {}  # and those that started since
        for one in self.waiting.values():
            self.queue.add(one.standing, one.group)
        self.runs = {one.job_id: run_of(one, number) for number, one in enumerate(held)}
        self.leaving = {one.job_id: self.runs[one.job_id] for one in held if one.leaves}
        resizing = {one: run for one, run in self.runs.items() if run.resizes.sizes and one not in self.leaving}
        self.resizing = resizing if space.is_exact else {}
        self.lending = {one: run for one, run in self.resizing.items() if run.has_surplus}
        for run in self.runs.values():
            self._count(run, self._on)
            if run.job_id not in self.leaving and (after := self.rank(run)) is not None:
                self.changes.append((after, run.job_id))

    def copy(self) -> "ProjectedCluster":
        """A copy for another scenario."""
        other = copy(self)
        other.queue, other.tiers, other.quotas_now = self.queue.copy(), self.tiers.copy(), self.quotas_now.again()
        other.waiting, other.runs, other.leaving = dict(self.waiting), dict(self.runs), dict(self.leaving)
        other.lending, other.resizing = dict(self.lending), dict(self.resizing)
        other._held_by, other._limits, other._started_on = dict(self._held_by), dict(self._limits), {}
        return other

    @property
    def free_capacity(self) -> FreeCapacity:
        return self.space.free_capacity

    @property
    def quotas(self) -> QuotasInForce:
        return self.quotas_now

    @property
    def gpus_free(self) -> int:
        return int(self.space.free)

    @property
    def gpus_left(self) -> float:
        return self.space.free

    # jobs that wait

    def served(self, rank_of: Callable[[str], Rank] | None) -> Served:
        return self.queue.served(self._share, rank_of)

    def keys(self, rank_of: Callable[[str], Rank] | None) -> Callable[[str], ServedAt]:
        return self.queue.keys(self._share, rank_of)

    def _share(self, tenant: str) -> float:
        return self._held_by.get(tenant, 0.0) / self._gpus

    def waits(self, job_id: str) -> bool:
        return job_id in self.queue

    def how_many_wait(self) -> int:
        return len(self.queue)

    def demand(self, job_id: str) -> Demand | None:
        one = self.waiting[job_id]
        if one.after_s > self.now:
            return None
        too_few = self._looks_only and one.gpus > self.space.free + GRAIN_S
        demands = self._too_large if too_few else self._demands
        demand = demands.get(job_id)
        if demand is None:
            demand = demands[job_id] = structs.replace(one.demand, may_fit=not too_few)
        return demand

    def tier(self, job_id: str) -> float:
        return 0.0 if self.order.tier is None else float(self.order.tier(self.waiting[job_id].standing))

    def waited_s(self, job_id: str) -> float:
        return self.now + self.waiting[job_id].standing.waited_s if self.space.is_exact else 0.0

    def asked(self, job_id: str) -> PlacementRequest:
        return self.waiting[job_id].asked

    def find(self, job_id: str, resource_request: ResourceRequest) -> Place | None:
        return self.space.find(self.waiting[job_id], resource_request)

    def fits_empty(self, resource_request: ResourceRequest, *, without: tuple[str, ...] = ()) -> bool:
        """True if the job fits the empty cluster; other jobs are not among the waiting ones."""
        if not without or self._empty is None:
            return True
        key = (resource_request, without)
        if key not in self._fits_empty:
            if len(self._fits_empty) >= FITS_MAX:
                self._fits_empty.clear()
            with self._empty.without(without):
                self._fits_empty[key] = bool(find(self._empty, smallest(resource_request)))
        return self._fits_empty[key]

    def spare_nodes(self, spares: int) -> tuple[str, ...]:
        nodes = (each.node for each in self.free_capacity.nodes.values())
        return spare_nodes(nodes, ((run.spare_use, run.place) for run in self.runs.values()), spares)

    # jobs that run

    def endings(self) -> Sequence[Ending]:
        return sorted(Ending(max(self.now, one.at_s), one.gpus, one.job_id) for one in self._limits.values())

    def held(self, job_id: str) -> Sequence[Allocation]:
        return self.runs[job_id].place if self.space.is_exact else ()

    def may_leave(self, job_id: str, demand: Demand, *, fresh: bool) -> list[Holder]:
        if self.order.tier is None or not self.space.is_exact:
            return []
        missing = demand.gpus - self.space.free
        for run in (*self.leaving.values(), *self.lending.values()):
            missing -= run.gpus
        higher = self.tiers.above(int(self.tier(job_id)), gpus=missing)
        if higher is None:
            return []
        self.looks_left -= len(higher) // HOLDERS_PER_LOOK
        leaving = [
            Holder(job_id=one, worth=LEAVES_FIRST, allocations=run.place) for one, run in sorted(self.leaving.items())
        ]
        for tier, one in higher:
            run = self.runs[one]
            ran = fresh or self.now >= run.protected_until(self.minimum_run)
            if ran or one in self.lending:
                parts = run.parts(-float(tier), self.now)
                leaving += parts if ran else only_extra(parts)
        return leaving

    def takes_surplus_at(self, job_id: str) -> int | None:
        if (run := self.runs.get(job_id)) is not None:  # it runs, and grows
            return None if run.standing is None else run.standing.priority
        one = self.waiting[job_id]
        return None if one.asked.is_service or not self.space.is_exact else one.standing.priority

    def lenders(self) -> list[tuple[str, int]]:
        return [(one, run.standing.priority) for one, run in self.lending.items() if run.standing is not None]

    def surplus(self, job_id: str) -> list[Surplus]:
        run = self.runs[job_id]
        tier = self.tiers.of(job_id) if self.order.tier is not None else None
        wanted = {one.role: one.want for one in run.resizes.sizes}
        aims = {one.role: one.aim for one in run.resizes.sizes}
        return surplus_in(run.parts(0.0 if tier is None else -float(tier), self.now), wanted, aims)

    def may_be_reclaimed(self, job_id: str) -> list[Holder]:
        run = self.runs.get(job_id)
        if run is None or run.standing is None or not self.space.is_exact:
            return []
        parts = run.parts(float(run.standing.priority), self.now)
        kept = self.now < run.protected_until(self.minimum_run, reclaimed=True)
        return [one for one in (only_extra(parts) if kept else parts) if one.worth != LEAVES_FIRST]

    # jobs that grow

    def growing(self) -> Iterator[tuple[int, str]]:
        for one, run in self.resizing.items():
            has = run.granted
            if run.standing is not None and any(has[each.role] < each.aim for each in run.resizes.sizes):
                yield run.standing.seq, one

    def may_be_offered(self) -> Iterator[tuple[int, str]]:
        for one, run in self.resizing.items():
            has, how = run.granted, run.resizes
            more = any(max(each.aim, has[each.role]) < each.most for each in how.sizes)
            since = run.since_s if how.sized_s is None else how.sized_s
            if more and run.standing is not None and may_be_offered(since, self.now):
                yield run.standing.seq, one

    def grower(self, job_id: str, *, offered: bool) -> Grower | None:
        return self.resizing[job_id].grower(offered=offered)

    def kept_from_growth(self) -> Sequence[Allocation]:
        return ()

    def growth_news(self) -> int:
        return 0

    def guests(self, nodes: tuple[str, ...]) -> list[Holder]:
        return [
            part
            for job_id, run in sorted(self.runs.items())
            if run.spare_use is SpareUse.MEANWHILE and run.standing is not None and job_id not in self.leaving
            for part in run.parts(GUESTS_LEAVE, self.now)
            if any(each.node_id in nodes for each in part.allocations)
        ]

    def still_leaves(self, holder: Holder) -> bool:
        return holder.job_id in self.leaving

    def left_on(self, node_id: str) -> float:
        most = 0.0
        for on in (self._on, self._started_on):
            for job_id in on.get(node_id, ()):
                run = None if job_id in self.leaving else self.runs.get(job_id)
                if run is not None and (seconds := run.runs_on_s(self.now)) > most and run.is_on(node_id):
                    most = seconds
        return most

    # its next states

    def _count(self, run: Run, on: dict[str, list[str]]) -> None:
        self._held_by[run.tenant] = self._held_by.get(run.tenant, 0.0) + run.gpus
        if run.limit_at is not None:
            self._limits[run.job_id] = Ending(run.limit_at, run.gpus, run.job_id)
        for node_id in {each.node_id for each in run.place}:
            on.setdefault(node_id, []).append(run.job_id)

    def start(self, one: WaitingJob, place: Place, number: int) -> Run:
        now, gpus = self.now, gpus_in(place) if self.space.is_exact else one.gpus
        standing = structs.replace(one.standing, waited_s=0.0, gpus=gpus, left_s=one.limit_s)
        sizes = one.resizes.sizes if self.space.is_exact and one.preemptible else ()
        if sizes:
            place = with_extras(place, {each.role: each.least for each in sizes})
        run = self.runs[one.job_id] = Run(
            job_id=one.job_id,
            number=number,
            tenant=one.tenant,
            gpus=gpus,
            place=place,
            lasts=one.lasts,
            limit_at=None if one.limit_s is None else now + one.limit_s,
            since_s=now,
            began_s=now,
            counted_s=now,
            attained_s=one.standing.attained_s,
            standing=standing if one.preemptible else None,
            stopping=one.stopping,
            resizes=one.resizes if sizes else RIGID,
            spare_use=one.spare_use,
        )
        if sizes:
            self.resizing[one.job_id] = run
        if run.has_surplus:
            self.lending[one.job_id] = run
        self.queue.remove(one.job_id)
        self.space.take(place)
        self._count(run, self._started_on)
        if self.space.is_exact:
            self.quotas.hold(one.job_id, one.tenant, place, since=now, preemptible=one.preemptible)
        else:
            self.quotas.hold_somewhere(one.job_id, one.tenant, one.resource_request, preemptible=one.preemptible)
        return run

    def leave(self, run: Run) -> None:
        """Stop the job to give way; it holds its place until it has stopped."""
        self.tiers.remove(run.job_id)
        self.lending.pop(run.job_id, None)
        self.resizing.pop(run.job_id, None)
        self.leaving[run.job_id] = run
        self._limits[run.job_id] = Ending(self.now + run.stopping.stop_s, run.gpus, run.job_id)

    def gone(self, run: Run) -> None:
        """Release everything that the job holds."""
        self.tiers.remove(run.job_id)
        self.lending.pop(run.job_id, None)
        self.resizing.pop(run.job_id, None)
        self.leaving.pop(run.job_id, None)
        self._limits.pop(run.job_id, None)
        del self.runs[run.job_id]
        self.space.give_back(run.place, run.gpus)
        self._held_by[run.tenant] -= run.gpus
        self.quotas.let_go(run.job_id)

    def shrink(self, run: Run, gone: Place, number: int) -> Run:
        """Remove these ranks of the job; it continues with the others, under a new number."""
        ranks = {one.rank for one in gone}
        self.space.give_back(gone, gpus_in(gone))
        return self._resized(run, tuple(one for one in run.place if one.rank not in ranks), number)

    def grow(self, run: Run, place: Place, number: int) -> Run:
        """Add these ranks to the job; it continues under a new number."""
        self.space.take(place)
        return self._resized(run, (*run.place, *(structs.replace(one, extra=True) for one in place)), number)

    def _resized(self, run: Run, place: Place, number: int) -> Run:
        now = self.now
        after = self.runs[run.job_id] = self.resizing[run.job_id] = structs.replace(
            run,
            number=number,
            gpus=gpus_in(place),
            place=place,
            attained_s=run.attained_s + now - run.counted_s,
            counted_s=now,
            standing=run.at(now),
            resizes=structs.replace(run.resizes, sized_s=now),
        )
        self.lending.pop(run.job_id, None)
        if after.has_surplus:
            self.lending[run.job_id] = after
        self._held_by[run.tenant] += after.gpus - run.gpus
        if run.limit_at is not None:
            self._limits[run.job_id] = Ending(run.limit_at, after.gpus, run.job_id)
        self.quotas.hold(run.job_id, run.tenant, after.place, since=run.since_s)
        return after

    def wait_again(self, one: WaitingJob) -> None:
        self.waiting[one.job_id] = one
        self._demands.pop(one.job_id, None)
        self._too_large.pop(one.job_id, None)
        self.queue.add(one.standing, one.group)

    def rank(self, run: Run) -> float | None:
        """File a running job by its tier. Return the seconds until its tier changes if it runs on."""
        if self.order.tier is None or run.standing is None or not self.space.is_exact:
            return None
        standing = run.at(self.now)
        self.tiers.put(run.job_id, self.order.tier_of_running(standing), number=standing.seq, gpus=run.gpus)
        after = self.order.changes_after_s(standing)
        return None if after is None else max(after, GRAIN_S)

    def is_awaited(self, job_id: str) -> bool:
        """Return True if a waiting job may take the place of this one, by their tiers."""
        tier = self.tiers.of(job_id)
        return tier is not None and any(self.tier(head) < tier for head in self.queue.heads())
