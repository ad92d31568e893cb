"""A cluster as it will be, for the scheduler's own cycle: jobs that run end, those that give way wait again.

Times are seconds from now, also in a `Standing`: `waited_s` is what a job will have waited by now, and below 0 for one
that begins to wait later.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import lru_cache
from math import ceil, inf
from typing import Protocol

from msgspec import Struct, structs

from weft.domain.job import Allocation
from weft.planning.backfill import Ending
from weft.planning.capacity import FreeCapacity
from weft.planning.eta.spread import TimeSpread
from weft.planning.finding import Place, find
from weft.planning.giving_way import loss_of
from weft.planning.minimum_run import MinimumRun
from weft.planning.order import Key, Order, Standing
from weft.planning.preemption import LEAVES_FIRST, Holder
from weft.planning.queue import Place as QueuePlace
from weft.planning.queue import Queue, Rank, Served, ServedAt
from weft.planning.quota.inforce import QuotasInForce
from weft.planning.resource_request import PlacementRequest, ResourceRequest, gpus_in
from weft.planning.scheduling_pass import Demand
from weft.planning.tiers import Tiers

GRAIN_S = 1e-3  # ends that are so near count as one moment
HOLDERS_PER_LOOK = 32  # jobs of which it is looked whether they may give way, for the price of one decision


class Stopping(Struct, frozen=True, kw_only=True):
    """The cost of giving way. `lost_s`: the work that it does again (None: all since it has its GPUs);
    `tries`: how often it was stopped before; `stop_s`: how long it may take to stop; `at_once`: no minimum run."""

    lost_s: float | None = None
    tries: int = 0
    stop_s: float = 0.0
    at_once: bool = False


class WaitingJob(Struct, frozen=True, kw_only=True):
    """A job that waits. `place`: in the order; `group`: of jobs that fit alike; `lasts`: once it has started;
    `limit_s`: what the backfill knows of that; `after_s`: it is not tried before; `standing`: in the order, now."""

    job_id: str
    place: QueuePlace
    group: Hashable
    resource_request: ResourceRequest
    asked: PlacementRequest
    gpus: float
    lasts: TimeSpread
    standing: Standing
    limit_s: float | None = None
    tenant: str = ""
    pinned: bool = False
    after_s: float = 0.0
    preemptible: bool = True
    model: str | None = None
    stopping: Stopping = Stopping()

    @property
    def demand(self) -> Demand:
        return Demand(
            self.resource_request,
            self.gpus,
            self.limit_s,
            pinned=self.pinned,
            tenant=self.tenant,
            preemptible=self.preemptible,
            model=self.model,
        )


class Holds(Struct, frozen=True, kw_only=True):
    """The resources that a job holds, and for how long. `reports`: it reports its steps, even if they are too few to
    estimate its end. `since_s`, `began_s`: since when it holds them, and runs; `attained_s`: for how long it has held
    any, in all its tries; `standing`: in the order, now (None: it gives way to nobody). `leaves`: it stops already."""

    job_id: str
    allocations: Place
    gpus: float
    left: TimeSpread
    tenant: str = ""
    limit_left_s: float | None = None
    reports: bool = False
    since_s: float = 0.0
    began_s: float = 0.0
    attained_s: float = 0.0
    standing: Standing | None = None
    stopping: Stopping = Stopping()
    leaves: bool = False


class Run(Struct, frozen=True, kw_only=True):
    """A job that holds something in a projected cluster; `counted_s`: the time of its standing and its
    `attained_s`."""

    job_id: str
    number: int
    tenant: str
    gpus: float
    place: Place
    lasts: TimeSpread
    limit_at: float | None
    since_s: float
    began_s: float
    counted_s: float
    attained_s: float
    standing: Standing | None
    stopping: Stopping

    def at(self, now: float) -> Standing:
        standing, more = self.standing, now - self.counted_s
        assert standing is not None, "it gives way to nobody"
        return structs.replace(
            standing,
            attained_s=standing.attained_s + more,
            attained_gpu_s=standing.attained_gpu_s + more * self.gpus,
            left_s=None if standing.left_s is None else max(0.0, standing.left_s - more),
        )

    def lost_s(self, now: float) -> float:
        held, mean = now - self.since_s, self.stopping.lost_s
        return held if mean is None else min(held, mean)

    def loss(self, now: float) -> Key:
        assert self.standing is not None
        return loss_of(
            now,
            rested=self.since_s if self.stopping.tries else None,
            extra=False,
            gpu_seconds=self.lost_s(now) * (self.gpus or 1),
            held_since=self.since_s,
            seq=self.standing.seq,
        )

    def protected_until(self, minimum_run: MinimumRun, *, reclaimed: bool = False) -> float:
        if minimum_run.seconds <= 0.0 or self.stopping.at_once:
            return -inf
        tries = 0 if reclaimed else self.stopping.tries
        return self.began_s + minimum_run.after(self.stopping.lost_s, tries, reclaimed=reclaimed)

    def runs_on_s(self, now: float) -> float:
        """For how long the scheduler expects it to run on: until its limit, or as long again as it has run."""
        return self.attained_s + now - self.counted_s if self.limit_at is None else max(0.0, self.limit_at - now)


class Space(Protocol):
    """Where jobs are placed: the real room (`is_exact`), or a number of GPUs."""

    free: float
    is_exact: bool
    free_capacity: FreeCapacity

    def supposing(self) -> AbstractContextManager[None]: ...
    def find(self, waiting: WaitingJob, resource_request: ResourceRequest) -> Place | None: ...
    def take(self, place: Place) -> None: ...
    def give_back(self, place: Place, gpus: float) -> None: ...


class RealRoom:
    """The real room, in a scope of `supposing`."""

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
    """GPUs as a number: whether they are on one node, of one model, with CPUs beside them, is left aside. So nothing
    gives way, and no node is kept."""

    is_exact = False

    def __init__(self, free: float) -> None:
        self.free_capacity = FreeCapacity()  # without a node: it counts how often something was given back
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
    """`now` and `looks_left` are kept by the caller. `waiting`: the jobs that wait, by id; `gpus`: all of them, of
    which an order by shares takes each tenant's part."""

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
    ) -> None:
        self.now = 0.0
        self.looks_left = 0
        self.space, self.order, self.quotas_now = space, order, quotas
        self.queue = Queue(order, by_tenant=quotas.on)
        self.waiting = {one.job_id: one for one in waiting}
        self.tiers = Tiers()
        self.changes: list[tuple[float, str]] = []  # when the jobs that run now change their tiers, in any order
        self.minimum_run = minimum_run
        self._gpus = gpus
        self._demands: dict[str, Demand] = {}
        self._held_by: dict[str, float] = {}
        self._limits: dict[str, Ending] = {}
        self._on: dict[str, list[str]] = {}  # by node, the jobs that run there now,
        self._started_on: dict[str, list[str]] = {}  # and those that started since
        for one in self.waiting.values():
            self.queue.add(one.standing, one.group)
        self.runs = {one.job_id: _run_of(one, number) for number, one in enumerate(held)}
        self.leaving = {one.job_id: self.runs[one.job_id] for one in held if one.leaves}
        for run in self.runs.values():
            self._count(run, self._on)
            if run.job_id not in self.leaving and (after := self.rank(run)) is not None:
                self.changes.append((after, run.job_id))

    def copy(self) -> "ProjectedCluster":
        """The same for another course of things."""
        other = copy(self)
        other.queue, other.tiers, other.quotas_now = self.queue.copy(), self.tiers.copy(), self.quotas_now.again()
        other.waiting, other.runs, other.leaving = dict(self.waiting), dict(self.runs), dict(self.leaving)
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
        demand = self._demands.get(job_id)
        if demand is None:
            demand = self._demands[job_id] = one.demand
        if self.order.tier is None and one.gpus > self.space.free + GRAIN_S:
            return structs.replace(demand, may_fit=False)
        return demand

    def tier(self, job_id: str) -> float:
        return 0.0 if self.order.tier is None else float(self.order.tier(self.waiting[job_id].standing))

    def waited_s(self, job_id: str) -> float:
        return self.now + self.waiting[job_id].standing.waited_s if self.space.is_exact else 0.0

    def asked(self, job_id: str) -> PlacementRequest:
        return self.waiting[job_id].asked

    def find(self, job_id: str, resource_request: ResourceRequest) -> Place | None:
        return self.space.find(self.waiting[job_id], resource_request)

    def fits_empty(self, resource_request: ResourceRequest) -> bool:
        """A job that never fits is not among those that wait."""
        del resource_request
        return True

    # jobs that run

    def endings(self) -> Sequence[Ending]:
        return sorted(Ending(max(self.now, one.at_s), one.gpus, one.job_id) for one in self._limits.values())

    def may_leave(self, job_id: str, demand: Demand, *, fresh: bool) -> list[Holder]:
        if self.order.tier is None or not self.space.is_exact:
            return []
        missing = demand.gpus - self.gpus_left - sum(run.gpus for run in self.leaving.values())
        higher = self.tiers.above(int(self.tier(job_id)), gpus=missing)
        if higher is None:
            return []
        self.looks_left -= len(higher) // HOLDERS_PER_LOOK
        leaving = [
            Holder(job_id=one, worth=LEAVES_FIRST, allocations=run.place) for one, run in sorted(self.leaving.items())
        ]
        return leaving + [
            Holder(job_id=one, worth=(-float(tier), *run.loss(self.now)), allocations=run.place)
            for tier, one in higher
            if self.now >= (run := self.runs[one]).protected_until(self.minimum_run) or fresh
        ]

    def may_be_reclaimed(self, job_id: str) -> list[Holder]:
        run = self.runs.get(job_id)
        if run is None or run.standing is None or not self.space.is_exact:
            return []
        if self.now < run.protected_until(self.minimum_run, reclaimed=True):
            return []
        worth = (float(run.standing.priority), *run.loss(self.now))
        return [Holder(job_id=job_id, worth=worth, allocations=run.place)]

    def still_leaves(self, holder: Holder) -> bool:
        return holder.job_id in self.leaving

    def left_on(self, node_id: str) -> float:
        there = (*self._on.get(node_id, ()), *self._started_on.get(node_id, ()))
        runs = (run for one in there if one not in self.leaving and (run := self.runs.get(one)) is not None)
        return max(
            (run.runs_on_s(self.now) for run in runs if any(each.node_id == node_id for each in run.place)), default=0.0
        )

    # what becomes of it

    def _count(self, run: Run, on: dict[str, list[str]]) -> None:
        self._held_by[run.tenant] = self._held_by.get(run.tenant, 0.0) + run.gpus
        if run.limit_at is not None:
            self._limits[run.job_id] = Ending(run.limit_at, run.gpus, run.job_id)
        for node_id in {each.node_id for each in run.place}:
            on.setdefault(node_id, []).append(run.job_id)

    def start(self, one: WaitingJob, place: Place, number: int) -> Run:
        now, gpus = self.now, gpus_in(place) if self.space.is_exact else one.gpus
        standing = structs.replace(one.standing, waited_s=0.0, gpus=gpus, left_s=one.limit_s)
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
        )
        self.queue.remove(one.job_id)
        self.space.take(place)
        self._count(run, self._started_on)
        if self.space.is_exact:
            self.quotas.hold(one.job_id, one.tenant, place, since=now, preemptible=one.preemptible)
        else:
            self.quotas.hold_somewhere(one.job_id, one.tenant, one.resource_request, preemptible=one.preemptible)
        return run

    def leave(self, run: Run) -> None:
        """It stops, to give way, and holds its place until it has."""
        self.tiers.remove(run.job_id)
        self.leaving[run.job_id] = run
        self._limits[run.job_id] = Ending(self.now + run.stopping.stop_s, run.gpus, run.job_id)

    def gone(self, run: Run) -> None:
        """It holds nothing any more."""
        self.tiers.remove(run.job_id)
        self.leaving.pop(run.job_id, None)
        self._limits.pop(run.job_id, None)
        del self.runs[run.job_id]
        self.space.give_back(run.place, run.gpus)
        self._held_by[run.tenant] -= run.gpus
        self.quotas.let_go(run.job_id)

    def wait_again(self, one: WaitingJob) -> None:
        self.waiting[one.job_id] = one
        self._demands.pop(one.job_id, None)
        self.queue.add(one.standing, one.group)

    def rank(self, run: Run) -> float | None:
        """File a running job by its tier. Returns after how long that changes, if it runs on."""
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


def _run_of(one: Holds, number: int) -> Run:
    return Run(
        job_id=one.job_id,
        number=number,
        tenant=one.tenant,
        gpus=one.gpus,
        place=one.allocations,
        lasts=one.left,
        limit_at=one.limit_left_s,
        since_s=one.since_s,
        began_s=one.began_s,
        counted_s=0.0,
        attained_s=one.attained_s,
        standing=one.standing,
        stopping=one.stopping,
    )
