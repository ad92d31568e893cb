"""The scheduler's state of its pool: the open jobs, the score cache, and four parts that each own their data.

Every change of a job goes through `go`, which makes the step and applies it to every part at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict, Unpack

from msgspec import structs

from weft.domain.classes import class_of
from weft.domain.cluster import Node
from weft.domain.job import (
    NEW_EPOCH,
    STEPS,
    Cause,
    Job,
    JobChange,
    JobEvent,
    JobState,
    Loan,
    Placement,
    Revision,
    Step,
    changed,
)
from weft.domain.quotas import Quota
from weft.domain.sizes import how_resized, is_elastic
from weft.domain.spec import ResizeHow
from weft.messages.nodes import NodeReported
from weft.messages.signals import GpuScore, PairSlowdown, WorkloadClass, WorkloadPenalty
from weft.planning.borrowing import loans_text, still_owed
from weft.planning.capacity import FreeCapacity
from weft.planning.growth import live_sizes
from weft.planning.lending.freed_holds import FreedHolds
from weft.planning.locality import Locality
from weft.planning.partition.seen import models_of, most_of
from weft.planning.policy import Policy
from weft.planning.preemption.minimum_run import MinimumRun
from weft.planning.quota.decay import HALF_LIFE_SECONDS
from weft.planning.scores import Scores
from weft.variability.models import WorkloadRatios
from weftd.scheduler.thinking.state.desired import Desired
from weftd.scheduler.thinking.state.hold_reasons import HoldReasons
from weftd.scheduler.thinking.state.holdings import Holdings
from weftd.scheduler.thinking.state.openjobs import OpenJobs
from weftd.scheduler.thinking.state.pool import Pool
from weftd.scheduler.thinking.state.quotas import Quotas
from weftd.scheduler.thinking.state.replicas import ReplicaWatch
from weftd.scheduler.thinking.state.run_outcomes import RunOutcomes
from weftd.scheduler.thinking.state.score_cache import ScoreCache
from weftd.scheduler.thinking.state.waitlist import Waitlist

_S, _E = JobState, JobEvent
DEFAULT = Policy()


class StepValues(TypedDict, total=False):
    """The fields of a step beyond the job's state; a missing one leaves the job's value as it is."""

    ask: int
    priority: int | None
    attempts: int | None
    not_before: float | None
    placement: Placement | None
    next_placement: Placement | None
    exit_code: int | None
    progress: dict[str, float] | None
    attained_seconds: float | None
    attained_gpu_seconds: float | None
    size: dict[str, int] | None
    gpu_model: str | None
    worked: dict[str, int] | None
    revisions: tuple[Revision, ...] | None
    loans: tuple[Loan, ...] | None


class ClusterState:
    """Begins with no job and no node; `load` fills it from the store."""

    def __init__(
        self,
        policy: Policy = DEFAULT,
        locality: Locality | None = None,
        *,
        scores: Iterable[GpuScore] = (),
        classes: Iterable[WorkloadClass] = (),
        slowdowns: Iterable[PairSlowdown] = (),
        penalties: Iterable[WorkloadPenalty] = (),
        ratios: Iterable[WorkloadRatios] = (),
        quota_runtime_seconds: float = 0.0,
        minimum_run: MinimumRun | None = None,
        half_life_seconds: float = HALF_LIFE_SECONDS,
        spares: int = 0,
        preflight: bool = False,
    ) -> None:
        self.policy = policy
        self.spares = spares
        self.jobs = OpenJobs()
        locality = locality or Locality()
        self.score_cache = ScoreCache(
            scores, classes, slowdowns, penalties, ratios, usual_penalty=locality.across_nodes
        )
        locality = structs.replace(locality, by_workload=self.score_cache.penalties)
        free_capacity = FreeCapacity(
            Scores(self.score_cache.by_class()), placer=policy.placing.placer, locality=locality
        )
        free_capacity.model_speeds = self.score_cache.model_speeds
        free_capacity.scores.slow(self.score_cache.slowdowns)
        self.pool = Pool(self.jobs, free_capacity)
        self.minimum_run = minimum_run or MinimumRun()
        self.holdings = Holdings(policy.ordering, half_life_seconds, self.minimum_run)
        self.quotas = Quotas(self.pool.nodes, runtime_seconds=quota_runtime_seconds)
        self.holds = HoldReasons()
        self.waitlist = Waitlist(policy, self.score_cache, self.holds, spares=spares)
        self.desired = Desired(self.jobs, self.pool.nodes, preflight=preflight)
        self.resize_candidates = ResizeCandidates()
        self.replicas = ReplicaWatch()
        self.outcomes = RunOutcomes()
        self.idle_warned: dict[tuple[str, int], float] = {}  # when jobs, by epoch, were warned that their GPUs idle
        self.freed_holds = FreedHolds()
        self._loaded_at = 0.0
        self._decided: dict[tuple[str, int], JobChange] = {}  # in this cycle, by job and version before the step

    def __getstate__(self) -> dict[str, object]:
        """The state between two cycles, without the decisions of the last cycle, which hold jobs."""
        return {**self.__dict__, "_decided": {}}

    def load(
        self,
        *,
        jobs: Iterable[Job],
        nodes: Iterable[Node],
        quotas: Sequence[Quota] = (),
        used: Mapping[str, float] | None = None,
        now: float,
    ) -> None:
        """Begin from the store. `used`: what tenants used in stretches that are over, decayed until now."""
        self.pool.load(nodes, now)
        self._measure()
        if quotas:
            self.limit(quotas, now)
        known = list(jobs)
        for job in known:  # first all that hold something: an array may be at its limit
            self.jobs[job.id] = job
        for job in known:
            self.holds.see(job, self.jobs)
        if self.policy.ordering.by_use:
            self.holdings.begin_use(used or {}, [job for job in known if job.state.holding], now)
        self._loaded_at = now
        for job in known:
            self.keep(job)

    def rescore(self, scores: Sequence[GpuScore]) -> None:
        """Take in new scores of GPUs: later placements use them."""
        for job_class, by_gpu in self.score_cache.rescore(scores).items():
            self.pool.free_capacity.rescore(job_class, by_gpu)

    def slow(self, slowdowns: Iterable[PairSlowdown]) -> None:
        """Take in how jobs of two classes slow each other down on one GPU: later placements use it."""
        self.score_cache.slow(slowdowns)
        self.pool.free_capacity.scores.slow(self.score_cache.slowdowns)

    def learn_penalties(self, penalties: Iterable[WorkloadPenalty]) -> None:
        """Take in what gangs of these workloads lose across nodes: later placements use it."""
        if self.score_cache.learn_penalties(penalties):
            free_capacity = self.pool.free_capacity
            free_capacity.locality = structs.replace(free_capacity.locality, by_workload=self.score_cache.penalties)

    def learn_ratios(self, ratios: Iterable[WorkloadRatios]) -> None:
        """Take in how many times as fast these workloads are on one model of GPUs as on another: later placements use
        it."""
        if self.score_cache.learn_ratios(ratios):
            self.pool.free_capacity.model_speeds = self.score_cache.model_speeds

    def limit(self, quotas: Sequence[Quota], now: float) -> None:
        """Replace the quotas in force."""
        self.quotas.adopt(quotas, [self.jobs[job_id] for job_id in sorted(self.pool.runs.holding)])
        self.waitlist.by_quota(self.quotas.on, self.jobs.values(), now)

    def _measure(self) -> None:
        self.holdings.shares.measure(self.pool.nodes.values())
        self.quotas.measure()

    def learn(self, classes: Iterable[WorkloadClass], now: float) -> None:
        """Take in new classes of workloads: their waiting jobs change their group, and are placed by it."""
        before = self.score_cache.learnt
        if not self.score_cache.learn(classes):
            return
        for job in [job for job in self.jobs.values() if job.id in self.waitlist.queue]:
            if class_of(job.spec, before) != class_of(job.spec, self.score_cache.learnt):
                self.waitlist.stand(job, now)

    def keep(self, job: Job) -> None:
        """Take in a job that is new to the cluster state."""
        self.jobs[job.id] = job
        self.holds.see(job, self.jobs)
        if job.state is _S.QUEUED:
            self.waitlist.admit(job)
        elif job.state.holding:
            self._hold(job, self._loaded_at if self.policy.ordering.by_use else job.since, loaded=True)
        self.resize_candidates.note(job, on_model=self._on_model(job))

    def see(self, report: NodeReported, now: float, *, sure: bool) -> None:
        """Take in an accepted report of a known node; `sure`: it was sent under this leader."""
        self.pool.see(report, now, sure=sure)

    def change_node(self, node: Node, event: str, sentence: str, *, at: float, ask: int = 0) -> None:
        self.pool.change(node, event, sentence, at=at, ask=ask)
        self._measure()

    def remove_node(self, node: Node, sentence: str, *, at: float) -> None:
        """Remove a lost node, on which no job has a run, from the pool."""
        self.pool.remove(node, sentence, at=at)
        self.desired.forget(node.id)
        self.score_cache.forget(node.id)
        self.outcomes.forget(node.id)
        self._measure()

    def go(
        self,
        job: Job,
        event: JobEvent,
        cause: Cause,
        now: float,
        **values: Unpack[StepValues],
    ) -> list[Step]:
        placement = values.get("placement")
        if job.spec.is_service and event is _E.RESIZED and values.get("loans") is None and placement is not None:
            loans = values["loans"] = self.owed(job, placement)
            paid = tuple(loan for loan in job.loans if loan not in loans)
            if paid and len(placement.staying) >= sum(job.wanted.values()):  # else the replica begins again there
                cause = structs.replace(cause, sentence=f"{cause.sentence}; paid back: {loans_text(paid)}")
        step = Step(
            job_id=job.id,
            version=job.version,
            event=event,
            to=STEPS[job.state, event],
            at=now,
            cause=cause,
            epoch=job.epoch + (event in NEW_EPOCH),
            **values,
        )
        change = self._decided[job.id, job.version] = changed(job, step)
        self._apply(job, change.after, now)
        self.outcomes.note(job, change.after, step)
        return [step]

    def owed(self, job: Job, placement: Placement) -> tuple[Loan, ...]:
        """The loans of a service that are still owed with this placement."""
        had = {one.rank for one in job.placement.allocations} if job.placement is not None else set[int]()
        joined = [one for one in placement.allocations if one.rank not in had]
        loans = (*job.loans, *self.freed_holds.borrowed_again(job.id, joined))
        return still_owed(loans, {one.rank for one in placement.allocations}, self.jobs)

    def change_of(self, step: Step) -> JobChange:
        """The change of a job by a step of this cycle."""
        return self._decided[step.job_id, step.version]

    def begin_turn(self) -> None:
        """Begin a cycle: all earlier decisions are stored."""
        self._decided.clear()

    def instead(self, job_id: str, version: int, cause: Cause, now: float) -> list[Step]:
        """The step that replaces the one from this version of a job, which the store refused.

        The job stops if this cycle left it on its nodes, else it fails; a final job stays final.
        """
        refused = self._decided[job_id, version]
        job = refused.before
        known = self.jobs.get(job_id, structs.replace(job, state=_S.FAILED))
        if job.state.final:
            self._apply(known, job, now)
            return []
        stops = job.state.holding and known.state.holding and known.epoch == job.epoch
        event = _E.STOPPING if stops else _E.FAILED
        step = Step(
            job_id=job_id,
            version=version,
            event=event,
            to=STEPS[job.state, event],
            at=now,
            cause=cause,
            epoch=job.epoch,
            ask=refused.step.ask,
        )
        change = self._decided[job_id, version] = changed(job, step)
        self._apply(known, change.after, now)
        return [step]

    def _apply(self, before: Job, job: Job, now: float) -> None:
        anew = job.epoch != before.epoch  # no run of the epoch before is left
        if before.state.holding and (anew or not job.state.holding):
            self._release(before, now)
        elif job.state is _S.STOPPING and before.state is not _S.STOPPING:
            self.desired.stop(before)
        if not job.state.final:
            self.jobs[job.id] = job
        if before.state.holding and job.state.holding:
            if anew:
                self._hold(job, now, loaded=False)
            elif job.placement != before.placement or job.next_placement != before.next_placement:
                self._resize(before, job, now)
            elif job.hung_since != before.hung_since and job.state is _S.RUNNING:
                self.desired.want(job, before=before)
            self.holdings.change(job, now)
        self.freed_holds.see(before, job, now)
        self.resize_candidates.note(job, on_model=self._on_model(job))
        if job.state.final:
            self.jobs.pop(job.id, None)
            self.waitlist.leave(job.id)
        self.holds.see(job, self.jobs)
        if job.state.final:
            return
        if job.state is _S.QUEUED:
            wants = (before.priority, before.size, before.gpu_model)
            news = before.state is not _S.QUEUED or (job.priority, job.size, job.gpu_model) != wants
            self.waitlist.wait(job, now, news=news)
        elif before.state is _S.QUEUED:
            self.waitlist.leave(job.id)
            self._hold(job, now, loaded=False)

    def _on_model(self, job: Job) -> str:
        """The model of most GPUs of a job for which the planner chose one; empty for every other job."""
        if not job.gpu_model or not job.state.holding:
            return ""
        held = {one.node_id for one in job.held}
        return most_of(job.held, models_of(node for node in map(self.pool.nodes.get, held) if node is not None))

    def _hold(self, job: Job, now: float, *, loaded: bool) -> None:
        """A job begins to hold its placement."""
        self.pool.hold(job, loaded=loaded)
        self.holdings.hold(job, now)
        self.quotas.holds(job)
        if job.state is not _S.STOPPING:
            self.desired.want(job)

    def _resize(self, before: Job, job: Job, now: float) -> None:
        """A job has other limits, or other ranks in the same epoch."""
        self.pool.resize(before, job)
        self.holdings.resize(before, job, now)
        self.quotas.holds(job)
        if job.state is not _S.STOPPING:
            self.desired.want(job, before=before)

    def _release(self, job: Job, now: float) -> None:
        self.replicas.forget(job.id)
        self.desired.drop(job)
        self.holdings.let_go(job, now)
        self.quotas.let_go(job.id)
        self.pool.let_go(job)

    def check(self) -> None:
        """Assert that the parts agree with each other about every job."""
        for job in self.jobs.values():
            assert not job.state.final, f"{job.id} is final and still kept"
            assert (job.placement is not None) == job.state.holding, f"{job.id}: {job.state}, {job.placement}"
            for there, part in ((job.state is _S.QUEUED, self.waitlist), (job.state.holding, self.pool.runs.holding)):
                assert there == (job.id in part), f"{job.id}: {job.state}, but {there} of {type(part).__name__}"
        self.pool.check()


class ResizeCandidates:
    """`shrinking`: jobs of which replicas should leave, and none join before; `growing`: all others that should have
    another size; `offered`: jobs that may have idle GPUs beyond their size; `changing`: those of the first two that
    should run on GPUs of another model, and those that should do that with the same size; `serving`: services of which
    replicas should join, leave, or be replaced."""

    def __init__(self) -> None:
        self.shrinking: set[str] = set()
        self.growing: set[str] = set()
        self.offered: set[str] = set()
        self.changing: set[str] = set()
        self.serving: set[str] = set()

    def note(self, job: Job, *, on_model: str = "") -> None:
        """Replace the job by this state of it. A job that restarts with another size does so only on request.
        `on_model`: the model of most of its GPUs."""
        self.changing.discard(job.id)
        self.shrinking.discard(job.id)
        self.growing.discard(job.id)
        self.offered.discard(job.id)
        self.serving.discard(job.id)
        if job.spec.is_service:
            if job.state is JobState.RUNNING and not _as_it_should_be(job):
                self.serving.add(job.id)
            return
        if job.state is not JobState.RUNNING or not (job.size or is_elastic(job.spec)):
            return
        how = how_resized(job.spec)
        if how is ResizeHow.NEVER or (how is ResizeHow.RESTART and not job.size):
            return
        granted, wanted = job.granted, job.wanted
        more = any(wanted[role] > count for role, count in granted.items())
        most = {one.role: one.most for one in live_sizes(job)} or wanted
        fewer = any(most[role] < count for role, count in granted.items())
        if any(most[role] > max(wanted[role], count) for role, count in granted.items()):
            self.offered.add(job.id)
        if how is ResizeHow.RESTART and job.gpu_model and on_model not in ("", job.gpu_model):
            self.changing.add(job.id)
            return
        if fewer and (how is ResizeHow.LIVE or not more):
            self.shrinking.add(job.id)
        elif more:
            self.growing.add(job.id)


def _as_it_should_be(job: Job) -> bool:
    """Return True if the service has its full number of replicas, all of the newest revision."""
    assert job.placement is not None
    return job.granted == job.wanted and all(each.revision == job.revision for each in job.placement.staying)
