"""Moves of running jobs to better GPUs: a job is stopped, requeued for a moment, then placed on GPUs kept for it.

`weft.planning` decides which jobs move, and where to.
docs/decisions/0008-how-a-running-job-moves.md describes how a move works.
"""

from collections.abc import Mapping, Sequence
from heapq import nsmallest
from math import inf

from msgspec import Struct

from weft.domain.checkpoints import lost_seconds
from weft.domain.job import Allocation, Cause, CauseCode, Job, JobState, Step
from weft.domain.quantity import duration_text
from weft.domain.spec import Kind
from weft.planning.choosing_again import Movable
from weft.planning.finding import fits_there
from weft.planning.jobs import asked_by, ends_at, standing_of
from weft.planning.moves import REST, Move, MoveRules, gpus_of, moves_for, together
from weft.planning.policy import GAINFUL
from weft.planning.queue import place_of
from weft.planning.resource_request import PlacementRequest, ResourceRequest, RoleRequest, resource_request_of
from weft.planning.scores import TYPICAL
from weftd.scheduler.thinking.decide import lifecycle
from weftd.scheduler.thinking.decide.placing import place
from weftd.scheduler.thinking.state.cluster_state import ClusterState

_S, _C = JobState, CauseCode

KEEP_SECONDS = 60.0  # beyond the job's grace, how long GPUs are kept for a job that moves
LOOKED_AT_MAX = 32  # jobs tried at once on every node: those with most to gain
MOVING_KINDS = (Kind.TRAINING, Kind.BATCH)  # no user works in these jobs or waits for their answers


class Target(Struct, frozen=True):
    """The place of a job that was stopped in `epoch` to move, kept for it until `until`, and why it moves."""

    allocations: tuple[Allocation, ...]
    epoch: int
    until: float
    sentence: str


class _Chance(Struct, frozen=True, kw_only=True):
    """The most that a job in this version could gain: `part` of its time, on the best GPUs of all.

    The job is expected to run until its time limit (`ends`), or as long again as it has run since `began`.
    """

    version: int
    gpus: float
    part: float
    needed: float
    not_before: float
    began: float
    ends: float | None

    def left(self, now: float) -> float:
        return max(0.0, now - self.began if self.ends is None else self.ends - now)

    def gain(self, now: float) -> float:
        """The possible gain in GPU-seconds, beyond the least that a move must gain."""
        if not self.part or now < self.not_before:
            return 0.0
        return self.gpus * (self.left(now) * self.part - self.needed)


class Migration:
    def __init__(self, cluster_state: ClusterState, rules: MoveRules) -> None:
        self._cluster_state = cluster_state
        self._rules = rules
        self.targets: dict[str, Target] = {}
        self._looked_at = -inf
        self._chances: dict[str, _Chance] = {}  # by job
        self._scored = 0  # the `changes` of the score cache when `_chances` were computed
        self._fastest: dict[str, float] = {}  # by class, the best score of any GPU

    def arrive(self, now: float) -> list[Step]:
        """Place requeued jobs on the GPUs kept for them; release GPUs that were kept for too long."""
        steps: list[Step] = []
        for job_id, target in sorted(self.targets.items()):
            job = self._cluster_state.jobs.get(job_id)
            if job is None or not _on_its_way(job, target):
                self._let_go(job_id)
            elif job_id in self._cluster_state.waitlist.queue and self._is_free(target):
                self._let_go(job_id)
                if self._fits(job, target):
                    steps += place(self._cluster_state, job, target.allocations, now, moved_for=target.sentence)
            elif now >= target.until:
                self._let_go(job_id)
        return steps

    def waits(self, job_id: str) -> Cause | None:
        """Why a queued job that moves waits: its new place is not free yet. None if the job does not move."""
        target = self.targets.get(job_id)
        if target is None:
            return None
        nodes = sorted({allocation.node_id for allocation in target.allocations})
        return Cause(code=_C.MOVED, sentence=f"waits for its new place on {', '.join(nodes)} to be free")

    def decide(self, now: float, *, closed: Sequence[str]) -> list[Step]:
        """Every `every_seconds`: the steps of jobs that move. `closed` nodes are kept for a waiting job."""
        if not self._rules.on or self._cluster_state.policy.placing.moves != GAINFUL:
            return []
        if now < self._looked_at + self._rules.every_seconds:
            return []
        self._looked_at = now
        most = self._rules.at_once_max - self._under_way()
        movable = self._movable(now) if most > 0 else []
        if not movable:
            return []
        free_capacity = self._cluster_state.pool.free_capacity
        with free_capacity.supposing(closed=closed):
            moves = moves_for(free_capacity, movable, margin=self._rules.margin)
        steps: list[Step] = []
        jobs = {job.job_id: job for job in movable}
        for group in together(moves, {job_id: job.allocations for job_id, job in jobs.items()}, most=most):
            steps += self._move(group, jobs, now)
        return steps

    def _move(self, group: Sequence[Move], jobs: Mapping[str, Movable], now: float) -> list[Step]:
        for_whom = max(group, key=lambda move: (move.gain, move.job_id)).job_id
        causes = [self._why(move, jobs[move.job_id], for_whom) for move in group]
        for move, cause in zip(group, causes, strict=True):
            job = self._cluster_state.jobs[move.job_id]
            until = now + job.spec.grace_seconds + KEEP_SECONDS
            self.targets[job.id] = Target(move.allocations, job.epoch, until, cause.sentence)
            self._cluster_state.pool.keep_place(job.id, move.allocations)
        steps: list[Step] = []
        for move, cause in zip(group, causes, strict=True):
            steps += lifecycle.stop(self._cluster_state, self._cluster_state.jobs[move.job_id], cause, now)
        return steps

    def _why(self, move: Move, job: Movable, for_whom: str) -> Cause:
        free_capacity = self._cluster_state.pool.free_capacity
        was = free_capacity.slowdown(job.allocations, job.asked)
        becomes = free_capacity.slowdown(move.allocations, job.asked)
        saved = job.left_s * (was - becomes)
        numbers = {
            "slowdown_before": was,
            "slowdown_after": becomes,
            "saves_seconds": saved,
            "cost_seconds": job.cost_s,
        }
        nodes = ", ".join(sorted({allocation.node_id for allocation in move.allocations}))
        if saved > 0:
            what = (
                f"slowdown {was:.2f} → {becomes:.2f} saves about {duration_text(saved)} for {duration_text(job.cost_s)}"
            )
        else:
            what = f"makes room for {for_whom}, which gains more than both moves cost"
        return Cause(code=_C.MOVED, sentence=f"moved to {nodes}: {what}", by=for_whom, numbers=numbers)

    def _under_way(self) -> int:
        """How many moves are under way, also those that an earlier leader began."""
        jobs = self._cluster_state.jobs
        stopping = {
            job_id
            for job_id in self._cluster_state.pool.runs.holding
            if (cause := jobs[job_id].stopping_for) is not None and cause.code is _C.MOVED
        }
        return len(stopping | self.targets.keys())

    def _movable(self, now: float) -> list[Movable]:
        """The jobs with most to gain on the best GPUs of all, in the order of service."""
        self._forget_old()
        jobs = self._cluster_state.jobs
        gains: list[tuple[float, str]] = []
        for job_id in self._cluster_state.pool.runs.holding:
            job, chance = jobs[job_id], self._chances.get(job_id)
            if chance is None or chance.version != job.version:
                chance = self._chances[job_id] = self._chance(job)
            gain = chance.gain(now)
            if gain > 0:
                gains.append((-gain, job_id))
        chosen = [jobs[job_id] for _, job_id in nsmallest(LOOKED_AT_MAX, gains)]
        order = self._cluster_state.waitlist.queue.order
        chosen.sort(key=lambda job: place_of(order, standing_of(job, now, order)))
        return [self._as_movable(job, now) for job in chosen]

    def _chance(self, job: Job) -> "_Chance":
        cost = self._cost(job)
        asked = asked_by(job, self._cluster_state.score_cache.learnt)
        slowdown = self._slowdown(job, asked)
        may = (
            job.state is _S.RUNNING
            and job.spec.preemptible
            and job.spec.pin is None
            and job.spec.kind in MOVING_KINDS
            and lost_seconds(job.spec) is not None
            and not any(allocation.leaving or allocation.share is not None for allocation in job.held)
        )
        return _Chance(
            version=job.version,
            gpus=job.gpus_held,
            part=1.0 - self._fastest_of(asked.job_class) / slowdown if may else 0.0,
            needed=self._rules.margin * cost,
            not_before=job.held_since + REST * cost if job.epoch else 0.0,
            began=job.held_since - job.attained_seconds,
            ends=ends_at(job),
        )

    def _cost(self, job: Job) -> float:
        return self._rules.cost_seconds + job.spec.grace_seconds + (lost_seconds(job.spec) or 0.0)

    def _as_movable(self, job: Job, now: float) -> Movable:
        assert job.placement is not None
        asked = asked_by(job, self._cluster_state.score_cache.learnt)
        return Movable(
            job_id=job.id,
            resource_request=_as_placed(job),
            asked=asked,
            allocations=job.placement.allocations,
            gpus=job.gpus_held,
            left_s=self._chances[job.id].left(now) / self._slowdown(job, asked),
            cost_s=self._cost(job),
        )

    def _slowdown(self, job: Job, asked: PlacementRequest) -> float:
        assert job.placement is not None
        return self._cluster_state.pool.free_capacity.slowdown(job.placement.allocations, asked)

    def _fastest_of(self, job_class: str) -> float:
        if job_class not in self._fastest:
            scores = self._cluster_state.pool.free_capacity.scores.of(job_class)
            self._fastest[job_class] = min([TYPICAL, *scores.values()])  # a GPU without a score counts as typical
        return self._fastest[job_class]

    def _forget_old(self) -> None:
        running = self._cluster_state.pool.runs.holding
        if self._scored != self._cluster_state.score_cache.changes:
            self._scored = self._cluster_state.score_cache.changes
            self._chances.clear()
            self._fastest.clear()
        elif len(self._chances) > 2 * len(running) + LOOKED_AT_MAX:
            self._chances = {job_id: chance for job_id, chance in self._chances.items() if job_id in running}

    def _is_free(self, target: Target) -> bool:
        """Have all jobs that held the target's GPUs given them back?"""
        wanted = gpus_of(target.allocations)
        for node_id in {allocation.node_id for allocation in target.allocations}:
            for job_id in self._cluster_state.pool.runs.jobs_on(node_id):
                if not wanted.isdisjoint(gpus_of(self._cluster_state.jobs[job_id].held)):
                    return False
        return True

    def _fits(self, job: Job, target: Target) -> bool:
        """Does the job still fit? Only GPUs are kept: CPUs and memory may be taken, the node closed or lost."""
        free_capacity, needs = self._cluster_state.pool.free_capacity, resource_request_of(job.spec, job.tenant)
        nodes = [node for one in target.allocations if (node := free_capacity.nodes.get(one.node_id)) is not None]
        return fits_there(free_capacity, target.allocations) and all(
            node.starts(want.request) for node in nodes for want in needs
        )

    def _let_go(self, job_id: str) -> None:
        del self.targets[job_id]
        self._cluster_state.pool.let_place_go(job_id)


def _on_its_way(job: Job, target: Target) -> bool:
    """Is the job still stopping for this move, or requeued by it?"""
    if job.state is _S.STOPPING:
        return job.epoch == target.epoch and job.stopping_for is not None and job.stopping_for.code is _C.MOVED
    return job.state is _S.QUEUED and job.epoch == target.epoch + 1


def _as_placed(job: Job) -> ResourceRequest:
    """The shape of the ranks that the job has, which may be fewer than it wanted."""
    assert job.placement is not None
    ranks: dict[str, int] = {}
    for allocation in job.placement.allocations:
        ranks[allocation.role] = ranks.get(allocation.role, 0) + 1
    resource_request = resource_request_of(job.spec, job.tenant)
    return tuple(RoleRequest(want.role, ranks[want.role], ranks[want.role], want.request) for want in resource_request)
