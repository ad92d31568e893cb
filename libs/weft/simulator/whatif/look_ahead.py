"""From now on: the jobs that run end, those that wait start, by the scheduler's own cycle. Pure.

Less happens than in a real pool: no job arrives, fails or moves, and a job, or a rank, that gives way is gone at once.
"""

from collections.abc import Mapping
from math import inf
from random import Random

from msgspec import Struct, structs

from weft.planning.capacity import FreeCapacity, empty_capacity
from weft.planning.cycle import Cycle, Nodes
from weft.planning.finding import Place, find
from weft.planning.order import Order
from weft.planning.queue import Queue
from weft.planning.quota.inforce import QuotasInForce
from weft.planning.reserving import PATIENCE_SECONDS
from weft.planning.resource_request import ResourceRequest, smallest
from weft.planning.scheduling_pass import Demand
from weft.planning.scores import Scores
from weft.simulator.cluster import SimulatedCluster
from weft.simulator.event_queue import EventQueue, What
from weft.simulator.lives import Lives
from weft.simulator.model import Cluster, World
from weft.simulator.running import Running
from weft.simulator.truth import Truth
from weft.simulator.whatif.present import Present
from weft.simulator.whatif.running_job import GoingLives, RunningJob

DAY_S = 86400.0


class WhatIfOutcome(Struct, frozen=True, kw_only=True):
    """Outcome of a job, in seconds from now; None if it lies beyond the simulated time. Of a job that runs
    now, `starts_s` is None."""

    starts_s: float | None = None
    ends_s: float | None = None


class _PoolOnward(SimulatedCluster):
    def __init__(self, lives: Lives, jobs: Mapping[str, RunningJob], order: Order, *, empty: FreeCapacity) -> None:
        super().__init__(lives, jobs, order, known=False)
        self._going = jobs
        self._empty = empty
        self._fits_empty: dict[ResourceRequest, bool] = {}
        self._shares = any(want.request.share is not None for job in jobs.values() for want in job.resource_request)

    @property
    def gpus_free(self) -> int:
        return self.free_capacity.gpus_free

    @property
    def gpus_left(self) -> float:
        return self.free_capacity.gpus_left if self._shares else self.free_capacity.gpus_free

    def demand(self, job_id: str) -> Demand:
        return self._going[job_id].demand

    def find(self, job_id: str, resource_request: ResourceRequest) -> Place | None:
        found = super().find(job_id, resource_request)
        return tuple(structs.replace(each, rank=rank) for rank, each in enumerate(found)) if found else None

    def fits_empty(self, resource_request: ResourceRequest, *, without: Nodes = ()) -> bool:
        del without  # a look ahead knows of no spares
        if resource_request not in self._fits_empty:
            self._fits_empty[resource_request] = bool(find(self._empty, smallest(resource_request)))
        return self._fits_empty[resource_request]

    def takes_surplus_at(self, job_id: str) -> int | None:
        now = self._going[job_id].now
        return None if now.asked.is_service else now.priority


class LookAhead:
    """Simulates the queue ahead; call `fates` once. `grain`: the time between two decisions, as a part of how
    far ahead they are; 0: after each event."""

    def __init__(self, present: Present, *, until_s: float = 30 * DAY_S, grain: float = 0.0) -> None:
        self._policy = policy = present.policy
        self._order = policy.ordering
        self._until_s, self._grain = until_s, grain
        backfills = policy.backfill != "none"
        every = sorted(present.jobs, key=lambda job: (job.seq, job.id))
        self._jobs = [RunningJob(number, job, backfills=backfills) for number, job in enumerate(every)]
        self._free_capacity = FreeCapacity(
            Scores(present.scores), placer=policy.placing.placer, locality=present.locality
        )
        self._free_capacity.model_speeds = present.model_speeds
        for node in present.nodes:
            self._free_capacity.add(node)
        gpus = sum(len(node.capacity.gpus) for node in present.nodes)
        self._event_queue = EventQueue()
        self._quotas = QuotasInForce(present.quotas, {node.id: node for node in present.nodes})
        self._queue = Queue(self._order, by_tenant=self._quotas.on)
        world = World(move_s=0.0, minimum_run=present.minimum_run)
        self._running = Running(
            gpus,
            self._order,
            durations_known=False,
            minimum_run=world.minimum_run,
            quotas=self._quotas,
            tenants={job.tenant for job in present.jobs},
        )
        self._lives = GoingLives(
            free_capacity=self._free_capacity,
            queue=self._queue,
            running=self._running,
            event_queue=self._event_queue,
            order=self._order,
            world=world,
            truth=Truth(Cluster(nodes=0, gpus_per_node=0), world, belief="oracle", dice=Random(0)),
            foreseen=backfills or present.model_speeds is not None,
            keep_spells=False,
            quotas=self._quotas,
            some_live=any(job.live for job in self._jobs),
        )
        by_id = {job.now.id: job for job in self._jobs}
        self._pool = _PoolOnward(self._lives, by_id, policy.ordering, empty=empty_capacity(present.nodes))
        self._cycle = Cycle(self._pool, policy, patience_s=PATIENCE_SECONDS)
        self.decisions = 0

    def outcomes(self) -> Mapping[str, WhatIfOutcome]:
        """The outcome of each job, by its id."""
        self._begin()
        due, next_decision = True, 0.0
        while due or self._event_queue.next_at < inf:
            now = min(self._event_queue.next_at, next_decision) if due else self._event_queue.next_at
            if now > self._until_s:
                break
            self._running.now = now
            while self._event_queue.next_at <= now:
                due |= self._happens(*self._event_queue.take())
            if due and now >= next_decision:
                self._decide()
                due, next_decision = False, now * (1 + self._grain)
        return {job.now.id: self._fate(job) for job in self._jobs}

    def _begin(self) -> None:
        for job in self._jobs:
            if job.now.held:
                self._lives.goes_on(job, 0.0, job.now.held, since=job.now.since_s)
                job.begun = job.now.since_s
        for job in self._jobs:
            if job.now.held:
                continue
            if job.now.not_before_s > 0:
                self._event_queue.add(job.now.not_before_s, What.ARRIVES, job.number)
            else:
                self._lives.wait(job, 0.0)

    def _happens(self, now: float, what: What, number: int, version: int) -> bool:
        """Take the next event in; whether a new decision is needed."""
        job = self._jobs[number]
        if what is What.ARRIVES:
            self._lives.wait(job, now)
        elif what is What.MAY_MOVE:
            return True
        elif what is What.MAY_GROW:
            return bool(job.allocations)
        elif what is What.RANKS_GONE:
            self._lives.ranks_gone(job, now)
        elif version != job.version:
            return False
        elif what is What.ENDS:
            self._lives.end(job, now)
        elif what is What.CHANGES:
            self._lives.rank(job, now)
        elif what is What.IS_PROMOTED:
            self._lives.promote(job, now)
        return True

    def _decide(self) -> None:
        self.decisions += bool(len(self._queue))
        self._pool.decide(self._cycle)

    def _fate(self, job: RunningJob) -> WhatIfOutcome:
        ended = self._lives.ended.get(job.number)
        starts = None if job.now.held else job.begun
        return WhatIfOutcome(starts_s=starts, ends_s=None if ended is None else ended.completed_s)
