"""What the scheduler's own planning decides in a simulated cluster: who starts, who gives way, who moves."""

from collections.abc import Mapping
from math import inf

from weft.domain.job import Allocation
from weft.planning.choosing_again import ChoosingAgain, Movable
from weft.planning.cycle import LOOK_AGAIN_SECONDS, Cycle, Nodes
from weft.planning.finding import Place, find
from weft.planning.moves import JOINT_MOST, REST, moves_for, together
from weft.planning.order import Order
from weft.planning.policy import ALWAYS, GAINFUL, Policy
from weft.planning.queue import place_of
from weft.planning.resource_request import ResourceRequest
from weft.planning.scheduling_pass import Demand
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
        order: Order,
        world: World,
        sizing: SizesOverTime | None,
    ) -> None:
        super().__init__(lives, jobs, order, known=world.durations_known)
        self._cluster, self._sizing = cluster, sizing

    def demand(self, job_id: str) -> Demand | None:
        job, lasts = self.jobs[job_id], self._lasts(self.jobs[job_id])
        if self._sizing is not None:
            return Demand(job.resource_request, 0, None) if self._sizing.sizes.get(job_id) else None
        may_fit = job.gpus_needed <= self._running.free or self._order.tier is not None
        shorter_behind = lasts is not None and not self._order.by_left  # where it goes by that, those come first
        return Demand(
            job.resource_request,
            job.gpus_needed,
            lasts,
            may_fit=may_fit or self.quotas.on or bool(self._running.live),
            shorter_behind=shorter_behind,
            tenant=job.trace.tenant,
            spare_use=self.spare_use(job),
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


class Deciding:
    """`sees_truth`: whether what is believed of GPUs is true, so that a job's speed need not be worked out again."""

    def __init__(
        self,
        lives: Lives,
        jobs: Mapping[str, SimulatedJob],
        *,
        cluster: Cluster,
        policy: Policy,
        world: World,
        sees_truth: bool,
        sizing: SizesOverTime | None = None,
    ) -> None:
        self.decisions = 0
        self.cluster = _TraceCluster(lives, jobs, cluster=cluster, order=policy.ordering, world=world, sizing=sizing)
        self.cycle = Cycle(
            self.cluster,
            policy,
            patience_s=world.patience_s,
            look_again_s=0.0 if world.stop_s is None else LOOK_AGAIN_SECONDS,
            spares_wanted=world.spares,
        )
        self._lives, self._free_capacity, self._queue, self._running = (
            lives,
            lives.free_capacity,
            lives.queue,
            lives.running,
        )
        self._jobs = jobs
        self._order = policy.ordering
        self._placing = policy.placing
        self._world = world
        self._sees_truth = sees_truth
        self._sizing = sizing
        self._reviewed_at = -inf
        self._choosing = ChoosingAgain()

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
        elif self._placing.moves == GAINFUL:
            self._move_for_gain(now)

    def _place_all_anew(self, now: float) -> None:
        """As the PAL artifact does in every round: all give back what they have, and are placed one after the other."""
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

    def _move_for_gain(self, now: float) -> None:
        few = len(self._running.jobs) <= JOINT_MOST
        if not few and now < self._reviewed_at + self._world.review_s:
            return
        self._reviewed_at = now
        known = self._world.durations_known
        jobs = list(self._running.jobs.values())
        if few:
            jobs.sort(key=lambda job: place_of(self._order, job.standing(now, known=known)))
        movable = [
            Movable(
                job_id=job.trace.id,
                resource_request=job.resource_request,
                asked=job.asked,
                allocations=job.allocations,
                gpus=job.gpus_needed,
                left_s=job.left_s(now, known=known) / job.speed,
                cost_s=0.0 if job.settled_at == now else job.move_cost_s(self._world),
                slowdown=job.slowdown if self._sees_truth else None,
            )
            for job in jobs
            if job.gpus_needed and self._may_move(job, now)
        ]
        rules = self._world.moves
        found = moves_for(self._free_capacity, movable, margin=rules.margin, choosing=self._choosing)
        held = {job.job_id: job.allocations for job in movable}
        moves = [move for group in together(found, held, most=rules.at_once_max) for move in group]
        for move in moves:
            self._free_capacity.give_back_all(self._jobs[move.job_id].allocations)
        for move in moves:
            self._free_capacity.take_all(move.allocations)
        for move in moves:
            self._resettle(self._jobs[move.job_id], now, move.allocations)

    def _may_move(self, job: SimulatedJob, now: float) -> bool:
        """It loses little by it, and has rested since it was stopped last."""
        if job.trace.checkpoint_s is None or job.leaves:
            return False
        stopped_before = job.moves + job.evictions > 0 and job.settled_at < now
        return not stopped_before or now >= job.settled_at + REST * job.move_cost_s(self._world)

    def _resettle(self, job: SimulatedJob, now: float, allocations: tuple[Allocation, ...]) -> None:
        self.cluster.placements += 1
        self._lives.resettle(job, now, allocations)
