"""Decisions of the scheduler's own planning in a simulated cluster: which jobs start, give way or move."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf

from msgspec import structs

from weft.domain.job import Allocation
from weft.planning.cycle import LOOK_AGAIN_SECONDS, Cycle, Nodes
from weft.planning.finding import Place, find
from weft.planning.moves import Arrives, Candidate, Moves, gpus_of
from weft.planning.policy import ALWAYS, Policy
from weft.planning.queue import Place as PlaceInOrder
from weft.planning.queue import place_of
from weft.planning.resource_request import ResourceRequest
from weft.planning.scheduling_pass import Demand, Starts
from weft.planning.scores import GpuKey
from weft.simulator.cluster import SimulatedCluster
from weft.simulator.job import SimulatedJob
from weft.simulator.lives import Lives
from weft.simulator.model import Cluster, World
from weft.simulator.sizing import SizesOverTime


class _TraceCluster(SimulatedCluster):
    """With `sizing`, a planner gives jobs their room: others neither give way nor are held back for one that waits."""

    def __init__(
        self,
        lives: Lives,
        jobs: Mapping[str, SimulatedJob],
        *,
        cluster: Cluster,
        policy: Policy,
        world: World,
        sizing: SizesOverTime | None,
    ) -> None:
        super().__init__(lives, jobs, policy.ordering, known=world.durations_known)
        self._cluster, self._world, self._sizing = cluster, world, sizing
        self._moves = Moves(self, policy, structs.replace(world.moves, cost_seconds=world.move_s))
        self._looks_at = -inf  # when it will be looked for moves, at the latest

    def demand(self, job_id: str) -> Demand | None:
        if job_id in self._moves.targets:
            return None
        job, lasts = self.jobs[job_id], self._lasts(self.jobs[job_id])
        if self._sizing is not None:
            return Demand(job.resource_request, 0, None) if self._sizing.sizes.get(job_id) else None
        may_fit = job.gpus_needed <= self._running.free or self._order.tier is not None
        shorter_behind = lasts is not None and not self._order.by_left  # an order by remaining time tried them first
        models = job.trace.gpu_models
        return Demand(
            job.resource_request,
            job.gpus_needed,
            lasts,
            may_fit=may_fit or self.quotas.on or bool(self._running.live),
            shorter_behind=shorter_behind,
            tenant=job.trace.tenant,
            model=models[0] if len(models) == 1 else None,
            spare_use=self.spare_use(job),
            checkpoints=job.trace.checkpoint_s is not None,
        )

    def find(self, job_id: str, resource_request: ResourceRequest) -> Place | None:
        job = self.jobs[job_id]
        if self._sizing is not None:
            return self._sizing.place_for(job)
        return super().find(job_id, resource_request) if job.gpus_needed <= self._running.free else None

    def fits_empty(self, resource_request: ResourceRequest, *, without: Nodes = ()) -> bool:
        return self._sizing is None and super().fits_empty(resource_request, without=without)

    def _lasts(self, job: SimulatedJob) -> float | None:
        estimate = job.trace.work_s if self._known else job.trace.estimate_s
        if estimate is None:
            return None
        nodes = 1 if job.gpus_needed <= self._cluster.gpus_per_node else 2
        return (
            max(0.0, estimate - job.done_s)
            / job.speed
            * self.free_capacity.locality.factor(job.trace.model, nodes=nodes)
        )

    # jobs that move

    def running(self) -> Iterator[tuple[str, int]]:
        return ((job_id, job.version) for job_id, job in self._running.jobs.items() if job.at_rest)

    def candidate(self, job_id: str) -> Candidate | None:
        return self.jobs[job_id].candidate(self._world, known=self._known)

    def place_in_order(self, job_id: str) -> PlaceInOrder:
        return place_of(self._order, self.jobs[job_id].standing(self.now, known=self._known))

    def as_placed(self, job_id: str) -> ResourceRequest:
        return self.jobs[job_id].resource_request

    def score_news(self) -> int:
        return self.free_capacity.scores.changes

    def stopping_to_move(self) -> set[str]:
        return {job_id for job_id, job in self._running.leaving_jobs.items() if job.moving}

    def is_on_its_way(self, job_id: str, epoch: int) -> bool:
        job = self.jobs[job_id]
        return job.epoch == epoch if job.moving else job.epoch == epoch + 1 and not job.allocations

    def is_left(self, gpus: Collection[GpuKey]) -> bool:
        return all(gpus_of(job.allocations).isdisjoint(gpus) for job in self._running.jobs.values())

    def arrive(self) -> None:
        for change in self._moves.arrive(self.now):
            if isinstance(change, Arrives):
                self.apply(Starts(change.target.job_id, change.target.place))
            else:
                self.lives.let_go(change.job_id)

    def move(self, *, closed: Sequence[str]) -> None:
        """A look that comes too soon is made up for; so is one after a move, as others may follow."""
        again = self._moves.next_at > self.now
        for targets in self._moves.decide(self.now, closed=closed):
            again = True
            for target in targets:
                self.lives.keep(target.job_id, target.place)
            for target in targets:
                self.lives.stop(self.jobs[target.job_id], self.now, moves=True)
                if self._world.stop_s is not None:
                    self.lives.looks_for_moves(target.until)
        if self._world.stop_s is None:
            self.arrive()
        if again and self._looks_at < self._moves.next_at < inf:
            self._looks_at = self._moves.next_at
            self.lives.looks_for_moves(self._looks_at)


class Deciding:
    def __init__(
        self,
        lives: Lives,
        jobs: Mapping[str, SimulatedJob],
        *,
        cluster: Cluster,
        policy: Policy,
        world: World,
        sizing: SizesOverTime | None = None,
    ) -> None:
        self.decisions = 0
        self.cluster = _TraceCluster(lives, jobs, cluster=cluster, policy=policy, world=world, sizing=sizing)
        self.cycle = Cycle(
            self.cluster,
            policy,
            patience_s=world.patience_s,
            look_again_s=0.0 if world.stop_s is None else LOOK_AGAIN_SECONDS,
            spares_wanted=world.spares,
        )
        self._lives, self._free_capacity, self._running = lives, lives.free_capacity, lives.running
        self._placing = policy.placing
        self._sizing = sizing

    @property
    def placements(self) -> int:
        return self.cluster.placements

    def decide(self, now: float) -> None:
        self.decisions += 1
        if self._sizing is not None and self._sizing.due(now):
            self._sizing.plan(now)
        self.cluster.decide(self.cycle)
        if self._placing.moves == ALWAYS:
            self._place_all_anew(now)

    def _place_all_anew(self, now: float) -> None:
        """As the PAL artifact does in every round: all jobs give back their GPUs, and are placed one after the
        other."""
        jobs = list(self._running.jobs.values())
        if self._placing.by_class:
            jobs.sort(key=lambda job: (self._free_capacity.scores.sensitivity(job.trace.job_class), job.number))
        else:
            jobs.sort(key=lambda job: job.number)
        for job in jobs:
            self._free_capacity.give_back_all(job.allocations)
        for job in jobs:
            found = find(self._free_capacity, job.resource_request, job.asked)
            assert found is not None, "all of them fitted"
            self._free_capacity.take_all(found)
            if found != job.allocations:
                self._resettle(job, now, found)

    def _resettle(self, job: SimulatedJob, now: float, allocations: tuple[Allocation, ...]) -> None:
        self.cluster.placements += 1
        self._lives.resettle(job, now, allocations)
