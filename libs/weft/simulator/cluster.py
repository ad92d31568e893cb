"""A simulated cluster as a scheduling cycle reads it, and what becomes of it by the cycle's decisions."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence

from weft.planning.backfill import Ending
from weft.planning.capacity import FreeCapacity
from weft.planning.cycle import Decision
from weft.planning.finding import Place, find
from weft.planning.order import Order
from weft.planning.preemption import Holder, by_job
from weft.planning.queue import Rank, Served, ServedAt
from weft.planning.quota.inforce import QuotasInForce
from weft.planning.resource_request import PlacementRequest, ResourceRequest
from weft.planning.scheduling_pass import Clears, Demand, Starts
from weft.planning.surplus import Surplus
from weft.simulator.job import SimulatedJob
from weft.simulator.lives import Lives


class SimulatedCluster:
    """`jobs`: all of them, by id; `known`: whether the policy knows how long they last."""

    def __init__(self, lives: Lives, jobs: Mapping[str, SimulatedJob], order: Order, *, known: bool) -> None:
        self.placements = 0
        self.lives, self.jobs = lives, jobs
        self._order, self._known = order, known
        self._queue, self._running = lives.queue, lives.running

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
        return int(self._running.free)

    @property
    def gpus_left(self) -> float:
        return self._running.free

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

    def fits_empty(self, shape: ResourceRequest) -> bool:
        """What the cluster cannot hold is not simulated."""
        del shape
        return True

    def endings(self) -> Sequence[Ending]:
        return self._running.endings

    def may_leave(self, job_id: str, demand: Demand, *, fresh: bool) -> list[Holder]:
        del fresh
        if self._order.tier is None:
            return []
        return self._running.may_leave(int(self.tier(job_id)), missing=demand.gpus - self.gpus_left)

    def takes_surplus_at(self, job_id: str) -> int | None:
        return self.jobs[job_id].trace.priority

    def lenders(self) -> Sequence[tuple[str, int]]:
        return ()

    def surplus(self, job_id: str) -> Iterable[Surplus]:
        del job_id
        return ()

    def may_be_reclaimed(self, job_id: str) -> list[Holder]:
        return self._running.may_be_reclaimed(self.jobs[job_id])

    def still_leaves(self, holder: Holder) -> bool:
        return self.jobs[holder.job_id].leaves

    def left_on(self, node_id: str) -> float:
        return self._running.left_on(node_id, self.now)

    def apply(self, decision: Decision) -> None:
        if isinstance(decision, Starts):
            job = self.jobs[decision.job_id]
            self.free_capacity.take_all(decision.place)
            self._queue.remove(decision.job_id)
            self.placements += 1
            self.settled(job, decision.place)
        elif isinstance(decision, Clears):
            for job_id, holders in by_job(decision.selection).items():
                if all(one.extra for one in holders):
                    self.shrunk(self.jobs[job_id], tuple(each for one in holders for each in one.allocations))
                else:
                    self.evicted(self.jobs[job_id])

    def settled(self, job: SimulatedJob, place: Place) -> None:
        self.lives.settle(job, self.now, place)

    def evicted(self, job: SimulatedJob) -> None:
        self.lives.stop(job, self.now)

    @abstractmethod
    def shrunk(self, job: SimulatedJob, gone: Place) -> None: ...
