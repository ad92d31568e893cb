"""A simulated cluster as a scheduling cycle reads it, and the effects of the cycle's decisions on it."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf

from msgspec import structs

from weft.domain.job import Allocation
from weft.health.spares import GUESTS_LEAVE, SpareUse, chosen
from weft.planning import lending
from weft.planning.backfill import Ending
from weft.planning.capacity import FreeCapacity
from weft.planning.cycle import Cycle, Decision, Nodes
from weft.planning.finding import Place, find
from weft.planning.growth import GivesBack, Grower, Growth, Joins, may_be_offered
from weft.planning.lending import Loans
from weft.planning.order import Order
from weft.planning.preemption import LEAVES_FIRST, Holder, VictimSelection, by_job
from weft.planning.queue import Rank, Served, ServedAt
from weft.planning.quota.inforce import QuotasInForce
from weft.planning.replicas import Leaves, Replicas, RunningService
from weft.planning.resource_request import PlacementRequest, ResourceRequest, gpus_least
from weft.planning.scheduling_pass import Awaits, Clears, Demand, Starts
from weft.planning.surplus import Surplus, surplus_in
from weft.simulator.job import SimulatedJob
from weft.simulator.lives import Lives


class SimulatedCluster:
    """`jobs`: all of them, by id; `known`: whether the policy knows how long they last."""

    def __init__(self, lives: Lives, jobs: Mapping[str, SimulatedJob], order: Order, *, known: bool) -> None:
        self.placements = 0
        self.lives, self.jobs = lives, jobs
        self._order, self._known = order, known
        self._queue, self._running = lives.queue, lives.running
        self._growth, self._replicas = Growth(self), Replicas(self)
        self._loans = Loans(self, stop_seconds=0.0)
        self._starting: list[SimulatedJob] = []  # jobs placed in this decision

    @property
    def now(self) -> float:
        return self._running.now

    @property
    def free_capacity(self) -> FreeCapacity:
        return self.lives.free_capacity

    @property
    def quotas(self) -> QuotasInForce:
        return self.lives.quotas

    @property
    def gpus_free(self) -> int:
        return int(self.gpus_left)

    @property
    def gpus_left(self) -> float:
        return self.free_capacity.gpus_left if self.lives.kept else self._running.free

    def served(self, rank_of: Callable[[str], Rank] | None) -> Served:
        return self._queue.served(self._running.share, rank_of)

    def keys(self, rank_of: Callable[[str], Rank] | None) -> Callable[[str], ServedAt]:
        return self._queue.keys(self._running.share, rank_of)

    def waits(self, job_id: str) -> bool:
        return job_id in self._queue

    def how_many_wait(self) -> int:
        return len(self._queue)

    @abstractmethod
    def demand(self, job_id: str) -> Demand | None: ...

    def tier(self, job_id: str) -> float:
        if self._order.tier is None:
            return 0.0
        return float(self._order.tier(self.jobs[job_id].standing(self.now, known=self._known)))

    def waited_s(self, job_id: str) -> float:
        return self.now - self.jobs[job_id].waits_since

    def asked(self, job_id: str) -> PlacementRequest:
        return self.jobs[job_id].asked

    def find(self, job_id: str, shape: ResourceRequest) -> Place | None:
        return find(self.free_capacity, shape, self.jobs[job_id].asked)

    def fits_empty(self, shape: ResourceRequest, *, without: Nodes = ()) -> bool:
        """True if the empty cluster has enough GPUs without these nodes."""
        capacity = self.free_capacity
        return not without or gpus_least(shape) <= sum(
            len(node.gpus.models) for node_id, node in capacity.nodes.items() if node_id not in without
        )

    def spare_nodes(self, spares: int) -> Nodes:
        guests: dict[str, float] = {}
        others: set[str] = set()
        for job in self._running.jobs.values():
            for each in job.allocations:
                if self.spare_use(job) is SpareUse.MEANWHILE:
                    guests[each.node_id] = guests.get(each.node_id, 0.0) + len(each.gpus)
                else:
                    others.add(each.node_id)
        capacity = self.free_capacity
        others |= {node_id for node_id in capacity.nodes if not capacity.is_open(node_id)}
        return chosen((each.node for each in capacity.nodes.values()), guests, others, spares)

    def guests(self, nodes: Nodes) -> list[Holder]:
        return [
            part
            for _, job in sorted(self._running.jobs.items())
            if self.spare_use(job) is SpareUse.MEANWHILE and not job.leaves
            for part in job.parts((GUESTS_LEAVE,), self.now)
            if any(each.node_id in nodes for each in part.allocations)
        ]

    def spare_use(self, job: SimulatedJob) -> SpareUse:
        """Every simulated job is pre-emptible; one that needs more GPUs than a node has is a gang."""
        if job.gpus_needed <= self.free_capacity.largest:
            return SpareUse.MEANWHILE
        return SpareUse.RESTARTS if job.hardware_failed else SpareUse.NEVER

    def endings(self) -> Sequence[Ending]:
        return self._running.endings

    def held(self, job_id: str) -> Sequence[Allocation]:
        return self.jobs[job_id].allocations

    def may_leave(self, job_id: str, demand: Demand, *, fresh: bool) -> list[Holder]:
        del fresh
        if self._order.tier is None:
            return self._running.leaving()
        return self._running.may_leave(int(self.tier(job_id)), missing=demand.gpus - self.gpus_left)

    def takes_surplus_at(self, job_id: str) -> int | None:
        """Services take none: they borrow."""
        job = self.jobs[job_id]
        return None if job.serves is not None else job.trace.priority

    def lenders(self) -> list[tuple[str, int]]:
        return [
            (one, job.trace.priority)
            for one, job in self._running.live.items()
            if job.lends and not (job.starts or job.leaves) and any(each.extra for each in job.allocations)
        ]

    def surplus(self, job_id: str) -> list[Surplus]:
        job = self.jobs[job_id]
        tier = self._order.tier and -float(self._order.tier_of_running(job.standing(self.now, known=self._known)))
        wanted, aims = {one.role: one.want for one in job.live}, {one.role: one.aim for one in job.live}
        return surplus_in(job.parts((tier or 0.0,), self.now), wanted, aims)

    def may_be_reclaimed(self, job_id: str) -> list[Holder]:
        return self._running.may_be_reclaimed(self.jobs[job_id])

    def still_leaves(self, holder: Holder) -> bool:
        job = self.jobs[holder.job_id]
        return job.leaves or (holder.extra and any(one.rank in job.leaving for one in holder.allocations))

    def left_on(self, node_id: str) -> float:
        return self._running.left_on(node_id, self.now)

    # services

    def serving(self) -> Iterator[tuple[int, str]]:
        for job_id, job in self._running.services.items():
            if not (job.starts or job.leaves or job.is_as_asked):
                yield job.number, job_id

    def service(self, job_id: str) -> RunningService:
        return self.jobs[job_id].service()

    def would_give_way(self, waiting_id: str, service_id: str) -> bool:
        if waiting_id not in self._queue:
            return True
        waiting, preempts = self.jobs[waiting_id], self._order.preempts
        if preempts is None or waiting.serves is not None or not waiting.gives_way:
            return False
        service = self.jobs[service_id].standing(self.now, known=self._known)
        return preempts(service, waiting.standing(self.now, known=self._known))

    # jobs that grow

    def growing(self) -> Iterator[tuple[int, str]]:
        for job_id, job in self._running.live.items():
            has = job.granted
            if not (job.starts or job.leaves) and any(has[one.role] < one.aim for one in job.live):
                yield job.number, job_id

    def may_be_offered(self) -> Iterator[tuple[int, str]]:
        for job_id, job in self._running.live.items():
            since, has = job.settled_at if job.sized_at is None else job.sized_at, job.granted
            more = any(max(one.aim, has[one.role]) < one.most for one in job.live)
            if more and job.at_rest and may_be_offered(since, self.now):
                yield job.number, job_id

    def grower(self, job_id: str, *, offered: bool) -> Grower | None:
        job = self.jobs[job_id]
        return job.grower(offered=offered) if job.at_rest else None

    def kept_from_growth(self) -> Sequence[Allocation]:
        return self.lives.freed_holds.in_room(self.free_capacity)

    def growth_news(self) -> int:
        return self.lives.freed_holds.changes

    # loans to services

    def borrower(self, job_id: str) -> lending.Borrower | None:
        job = self._running.services.get(job_id)
        if job is None or job.starts or job.leaves:
            return None
        rank = (float(job.trace.priority), self.tier(job_id))
        return lending.Borrower(service=job.service(), epoch=job.epoch, rank=rank)

    def is_there(self, node_id: str) -> bool:
        return self.free_capacity.is_open(node_id)

    def has_left(self, job_id: str, epoch: int, ranks: Sequence[int]) -> bool:
        job = self._running.jobs.get(job_id)
        if job is None or job.epoch != epoch:
            return True
        return bool(ranks) and not any(one.rank in ranks for one in job.allocations)

    def about_to_be_free(self) -> list[Holder]:
        found: list[Holder] = []
        for job_id, job in sorted(self._running.jobs.items()):
            if job.leaves:
                found.append(Holder(job_id=job_id, worth=LEAVES_FIRST, allocations=job.allocations))
            elif job.leaving:
                found += [one for one in job.parts((), self.now) if one.worth == LEAVES_FIRST]
        return found

    def spares(self, service_id: str) -> Iterator[Holder]:
        """The ranks beyond the core of jobs that resize live."""
        most = self.jobs[service_id].trace.priority
        lending_jobs = [self.jobs[one] for one, priority in self.lenders() if priority <= most]
        for job in sorted(lending_jobs, key=lambda job: (job.loss(self.now, extra=True), job.trace.id)):
            for one in sorted(job.allocations, key=lambda one: -one.rank):
                if one.extra and not one.leaving:
                    worth = (*job.loss(self.now, extra=True), -float(one.rank))
                    yield Holder(job_id=job.trace.id, worth=worth, allocations=(one,), extra=True)

    def whole(self, service_id: str, *, most: int | None) -> list[Holder]:
        del most
        if self._order.tier is None:
            return []
        found = self._running.may_leave(int(self.tier(service_id)), missing=-inf)
        whole = [one for one in found if not one.extra and one.worth != LEAVES_FIRST and one.allocations]
        return [one for one in whole if self.jobs[one.job_id].serves is None]

    def loses(self, victim: Holder, service_id: str) -> bool:
        job = self.jobs[victim.job_id]
        if job.serves is not None:
            return False
        if job.leaves:
            return job.stops_for == service_id
        has = job.granted
        return victim.worth != LEAVES_FIRST or any(one.aim > has[one.role] for one in job.live)

    def epoch(self, job_id: str) -> int:
        return self.jobs[job_id].epoch

    def grace_s(self, job_id: str) -> float:
        del job_id
        return self.lives.stop_s

    def priority(self, job_id: str) -> int | None:
        is_open = job_id in self._running.jobs or job_id in self._queue
        return self.jobs[job_id].trace.priority if is_open else None

    # what becomes of it

    def decide(self, cycle: Cycle) -> None:
        """Decide who starts, who gives way, who grows and who moves, and apply that."""
        for job in self._starting:
            job.starts = False
        self._starting.clear()
        for job in self._running.services.values():
            assert job.serves is not None
            job.serves.joining.clear()
        self._lend(self._loans.arrive(self.now))
        self._serve(closed=(*cycle.kept, *cycle.being_cleared), ahead=cycle.ahead)
        self.arrive()
        waiting = len(self._queue)
        if waiting or cycle.ahead or cycle.reserved:  # a job that waited may have been cancelled
            for decision in cycle.decide(self.now):
                self.apply(decision)
        self._serve(closed=cycle.kept)
        self.lives.freed_holds.forget_old(self.now)
        if self._running.live:
            offers = not self._replicas.short
            for change in self._growth.decide(closed=cycle.kept, ahead=cycle.ahead, offers=offers):
                self._grow(change)
        self._borrow(closed=(*cycle.kept, *cycle.being_cleared), ahead=cycle.ahead)
        self.move(closed=cycle.reserved)
        for job in self._starting:
            if job.live or job.serves is not None:
                self.lives.looks_again(job, self.now)

    def _serve(self, *, closed: Sequence[str], ahead: str = "") -> None:
        """Let replicas of services join and leave."""
        if not self._running.services and not self._replicas.short:
            return
        for change in self._replicas.decide(closed=closed, ahead=ahead):
            job = self.jobs[change.job_id]
            if isinstance(change, Leaves):
                self.lives.shrink(job, self.now, {one.rank for one in change.ranks})
            else:
                self._grow(change)

    def _borrow(self, *, closed: Sequence[str], ahead: str) -> None:
        """Let jobs lend to services that have too few replicas."""
        short = self._replicas.short
        self._lend(self._loans.decide(self.now, short=short, closed=closed, ahead=ahead))
        if self.now < self._loans.next_at < inf:
            self.lives.looks_for_moves(self._loans.next_at)

    def _lend(self, changes: Iterator[lending.Change]) -> None:
        for change in changes:
            match change:
                case lending.Lent():
                    self._join(change)
                case lending.GivesWay():
                    self._give_way(change)
                case lending.KeepsGpu():
                    self.lives.keep(change.name, (change.part,))
                case lending.LetsGpuGo():
                    self.lives.let_go(change.name)
                case lending.Back():
                    self.lives.comes_back(change.place, self.now)

    def _join(self, lent: lending.Lent) -> None:
        job = self.jobs[lent.job_id]
        assert job.serves is not None
        place = tuple(structs.replace(one, rank=rank) for rank, one in enumerate(lent.places, job.ranks_used))
        self.free_capacity.take_all(place)
        self.lives.grow(job, self.now, place)
        job.serves.loans = (*job.serves.loans, *lending.loans_of(lent, place, self.now))

    def _give_way(self, change: lending.GivesWay) -> None:
        job = self.jobs[change.job_id]
        if change.whole:
            job.stops_for = change.victims[0][0]
            self.lives.stop(job, self.now)
        elif gone := {one.rank for _, each in change.victims for one in each.allocations} - job.leaving.keys():
            self.lives.shrink(job, self.now, gone)

    def arrive(self) -> None:
        """Let the jobs start that have stopped to move."""

    def move(self, *, closed: Sequence[str]) -> None:
        """Let jobs move."""

    def _grow(self, change: Joins | GivesBack) -> None:
        if isinstance(change, GivesBack):
            self._clear(change.selection)
            return
        self.free_capacity.take_all(change.place)
        self.lives.grow(self.jobs[change.job_id], self.now, change.place)

    def apply(self, decision: Decision) -> None:
        if isinstance(decision, Starts):
            job = self.jobs[decision.job_id]
            self.free_capacity.take_all(decision.place)
            self._queue.remove(decision.job_id)
            self.placements += 1
            self.lives.settle(job, self.now, decision.place)
            job.starts = True
            self._starting.append(job)
        elif isinstance(decision, Clears):
            self._clear(decision.selection)
        elif isinstance(decision, Awaits):
            self.lives.looks_for_moves(decision.until)

    def _clear(self, selection: VictimSelection) -> None:
        """Jobs, or ranks of jobs, give way, unless they leave already."""
        for job_id, holders in by_job(selection).items():
            job = self.jobs[job_id]
            if not all(one.extra for one in holders):
                self.lives.stop(job, self.now)
            elif gone := {each.rank for one in holders for each in one.allocations} - job.leaving.keys():
                self.lives.shrink(job, self.now, gone)
