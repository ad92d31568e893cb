"""The scheduler's core. No clock, no I/O: the same history leads to the same decisions.

Every decision is a `Step`. The core applies it to its own cluster state at once; the scheduler loop then stores it. If
the store refuses a step, the cluster state was wrong, and it is loaded again.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import structs

from weft.domain.cluster import (
    NO_SHARES,
    NOT_HELD_TO_SHARES,
    NeededVolume,
    Node,
)
from weft.domain.dependencies import Ends
from weft.domain.job import Cause, CauseCode, Job, JobEvent, JobState, Step
from weft.domain.labels import NOT_MARKED, changed
from weft.domain.quantity import duration_text
from weft.domain.quotas import Quota
from weft.messages.asks import Ask, AskKind
from weft.messages.nodes import JobOrder, NodeReported, RankOrder, RunState
from weft.messages.signals import GpuScore, PairSlowdown, WorkloadClass, WorkloadPenalty
from weft.planning.locality import Locality
from weft.planning.preemption.minimum_run import MinimumRun
from weft.planning.reasons.refusals import never_fits
from weft.planning.resource_request import ResourceRequest, resource_request_of_job
from weft.variability.models import WorkloadRatios
from weftd.scheduler.thinking.answers import ANSWER_BYTES_MAX, ANSWER_RUNS_MAX, carried, for_ranks, key_of
from weftd.scheduler.thinking.core_settings import Settings
from weftd.scheduler.thinking.decide import (
    draining,
    health,
    inactivity,
    lifecycle,
    marking,
    serving,
    sharing,
    sizing,
    tuning,
    updating,
)
from weftd.scheduler.thinking.decide.leader_warmup import LeaderWarmup
from weftd.scheduler.thinking.decide.loans import Loans
from weftd.scheduler.thinking.decide.migration import Migration
from weftd.scheduler.thinking.decide.node_failure import NodeFailures
from weftd.scheduler.thinking.decide.waiting import Waiting
from weftd.scheduler.thinking.state.cluster_state import ClusterState
from weftd.scheduler.thinking.state.pool import NodeChange

_S, _E, _C = JobState, JobEvent, CauseCode

HELD_MAX = 5_000  # held jobs that are judged in one cycle
DEADLINES_SECONDS = 1.0  # between two checks of the deadlines


class Scheduler:
    """`load` from the store, take in events (`report`, `ask`, `admit`), then `decide`."""

    def __init__(self, *, pool: str, settings: Settings) -> None:
        self.pool = pool
        self.settings = settings
        self._begin()

    def _begin(
        self,
        held_until: float | None = None,
        scores: Iterable[GpuScore] = (),
        classes: Iterable[WorkloadClass] = (),
        slowdowns: Iterable[PairSlowdown] = (),
        penalties: Iterable[WorkloadPenalty] = (),
        ratios: Iterable[WorkloadRatios] = (),
    ) -> None:
        locality = Locality(across_nodes=self.settings.locality_penalty, across_racks=self.settings.rack_penalty)
        self.cluster_state = ClusterState(
            self.settings.policy,
            locality,
            scores=scores,
            classes=classes,
            slowdowns=slowdowns,
            penalties=penalties,
            ratios=ratios,
            quota_runtime_seconds=self.settings.quota_runtime_seconds,
            minimum_run=MinimumRun(self.settings.preemption_after_seconds),
            half_life_seconds=self.settings.half_life_seconds,
            spares=self.settings.spares,
            preflight=self.settings.preflight,
        )
        self._migration = Migration(self.cluster_state, self.settings.moves)
        self._sizing = sizing.Sizing(self.cluster_state)
        self._loans = Loans(self.cluster_state, stop_seconds=self.settings.stop_seconds)
        self._waiting = Waiting(
            self.cluster_state,
            self._migration,
            patience_seconds=self.settings.patience_seconds,
            steps_max=self.settings.steps_max,
        )
        self.node_failures = NodeFailures(lease_seconds=self.settings.lease_seconds, held_until=held_until)
        self._leader_warmup = self._settle(0.0, None)
        self._not_yet: Cause | None = None  # why nothing is placed or started now
        # By job whose ranks did not fit an answer: the node, and whether no answer could carry them.
        self._left_out: dict[str, tuple[str, bool]] = {}
        self._withheld: set[str] = set()  # nodes whose answer left out runs because of `_not_yet`
        self._asked_again: set[str] = set()
        self._deadlines_at = 0.0
        self._more_held = False  # jobs are left for which others came first, to be judged in the next cycle

    def _settle(self, now: float, went_back_at: float | None) -> LeaderWarmup:
        return LeaderWarmup(
            now=now,
            settle_seconds=self.settings.settle_seconds,
            lease_seconds=self.settings.lease_seconds,
            went_back_at=went_back_at,
        )

    def load(
        self,
        *,
        jobs: Iterable[Job],
        nodes: Iterable[Node],
        scores: Sequence[GpuScore] = (),
        classes: Iterable[WorkloadClass] = (),
        slowdowns: Iterable[PairSlowdown] = (),
        penalties: Iterable[WorkloadPenalty] = (),
        ratios: Iterable[WorkloadRatios] = (),
        quotas: Sequence[Quota] = (),
        used: Mapping[str, float] | None = None,
        now: float,
        went_back_at: float | None = None,
        held_until: float | None = None,
    ) -> None:
        """Begin from the store. Every node counts as having reported now; its silence before this leader listened does
        not count.

        `went_back_at`: when the scheduler found that the store was restored from a backup. `held_until`: until then an
        earlier leader may hold nodes that this one has not answered.
        """
        self._begin(held_until, scores, classes, slowdowns, penalties, ratios)
        self._leader_warmup = self._settle(now, went_back_at)
        self.cluster_state.load(jobs=jobs, nodes=nodes, quotas=quotas, used=used, now=now)
        self.cluster_state.pool.orphans.forgot_placements = went_back_at is not None

    # input

    def tell_ends(self, found: Iterable[Ends], now: float) -> None:
        """Take in what the store says of jobs and arrays that other jobs wait for (`cluster_state.holds.wanted`)."""
        self.cluster_state.holds.tell(found, now)

    def begin_turn(self) -> None:
        """Begin a cycle: all earlier decisions are stored."""
        self.cluster_state.begin_turn()

    def not_stored(self, job_id: str, version: int, now: float) -> list[Step]:
        """Replace the step from this version of a job in this cycle, which the store refused as unlawful."""
        sentence = "the store refused its next step: a value from its nodes or its user fits no column"
        return self.cluster_state.instead(job_id, version, Cause(code=_C.NOT_STORED, sentence=sentence), now)

    def admit(self, jobs: Iterable[Job]) -> None:
        """Take in jobs that are new in the queue."""
        for job in jobs:
            self.cluster_state.keep(job)

    def report(self, report: NodeReported, now: float) -> str:
        """Take in a node's report; returns why it is refused, or an empty string.

        A report that names a leader was sent after this leader answered the node. Any other may be late: a scheduler
        that hung receives old reports, and a run that such a report leaves out may have been started since.
        """
        if refused := self.cluster_state.pool.runs.refuses(report):
            return refused
        if not report.leaving or report.node_id not in self.cluster_state.pool.nodes:
            self._know_node(report, now)
        if report.leader is not None:
            self.node_failures.follows(report.node_id)
        self.cluster_state.see(report, now, sure=report.leader is not None or self._leader_warmup.past(now))
        health.judge(self.cluster_state, report, now, self.settings.health)
        return ""

    def _know_node(self, report: NodeReported, now: float) -> None:
        known = self.cluster_state.pool.nodes.get(report.node_id)
        given = known.marking if known else NOT_MARKED
        node = Node(
            id=report.node_id,
            pool=report.pool,
            address=report.address,
            capacity=report.capacity,
            runtime=report.runtime,
            not_enforced=self._not_enforced(report),
            drain=draining.announced(known.drain if known else None, ending=report.ending),
            seen_at=now,
            rack=report.rack,
            health=known.health if known else (),
            labels=changed(report.labels, given.labels),
            taints=changed(report.taints, given.taints),
            marking=given,
        )
        if known is None:
            gpus = len(node.capacity.gpus)
            emulated = " emulated" if any(gpu.emulated for gpu in node.capacity.gpus) else ""
            self.cluster_state.change_node(node, "joined", f"joined with {gpus}{emulated} GPUs", at=now)
        elif not known.ready:
            self.cluster_state.change_node(node, "returned", "reports again", at=now)
        elif known.drain != node.drain:
            event, sentence = (
                ("drained", draining.ENDING) if report.ending else ("resumed", "it no longer announces its shutdown")
            )
            self.cluster_state.change_node(node, event, sentence, at=now)
        elif structs.replace(known, seen_at=now) != node:
            self.cluster_state.change_node(
                node, "changed", "has other capacity, address, rack, labels or runtime than before", at=now
            )

    def _not_enforced(self, report: NodeReported) -> tuple[str, ...]:
        """The limits that the node does not hold jobs to. It gives no shares in a strict pool if a job is not held to
        them there."""
        if not (self.settings.shares_strict and NOT_HELD_TO_SHARES in report.not_enforced):
            return report.not_enforced
        return (*(word for word in report.not_enforced if word != NOT_HELD_TO_SHARES), NO_SHARES)

    def ask(self, ask: Ask, now: float, *, job: Job | None = None) -> list[Step]:
        """The steps that an ask leads to; none if it is done already. `job`: a final one, as the core keeps none."""
        if ask.kind in (AskKind.DRAIN, AskKind.RESUME):
            draining.drain(self.cluster_state, ask, now)
            return []
        if ask.kind is AskKind.MARK:
            marking.mark(self.cluster_state, ask, now)
            return []
        if ask.kind is AskKind.RETURN:
            health.give_back(self.cluster_state, ask, now, self.settings.health)
            return []
        if job is None:
            job = self.cluster_state.jobs.get(ask.subject_id)
        if job is None:
            return []
        match ask.kind:
            case AskKind.CANCEL:
                cause = ask.why or Cause(code=_C.CANCEL_ASKED, sentence=f"cancelled by {ask.by}", by=ask.by)
                if job.state is _S.QUEUED:
                    return self.cluster_state.go(job, _E.CANCELLED, cause, now, ask=ask.id)
                return lifecycle.stop(self.cluster_state, job, cause, now, ask=ask.id)
            case AskKind.REQUEUE:
                cause = Cause(code=_C.REQUEUE_ASKED, sentence=f"requeued by {ask.by}", by=ask.by)
                if job.state.final:
                    return self.cluster_state.go(job, _E.REQUEUED, cause, now, ask=ask.id, attempts=0, not_before=now)
                return lifecycle.stop(self.cluster_state, job, cause, now, ask=ask.id)
            case AskKind.PRIORITISE:
                if job.state.final:
                    return []
                sentence = f"priority {job.priority} → {ask.priority} by {ask.by}"
                cause = Cause(code=_C.PRIORITY_ASKED, sentence=sentence, by=ask.by)
                return self.cluster_state.go(job, _E.REPRIORITISED, cause, now, ask=ask.id, priority=ask.priority)
            case AskKind.SCALE:
                return sizing.scale(self.cluster_state, ask, now)
            case AskKind.UPDATE:
                return updating.update(self.cluster_state, ask, now)
            case AskKind.SHARE:
                return sharing.share(self.cluster_state, ask, now, closed=self._waiting.cycle.kept)
            case AskKind.ENTER:
                return lifecycle.enter(self.cluster_state, ask, job, now)
            case AskKind.TUNE:
                return tuning.tune(self.cluster_state, ask, now, closed=self._waiting.cycle.kept)
            case _:
                return []

    # decisions

    def follow(self, report: NodeReported, now: float) -> list[Step]:
        """The steps that a report makes due, for every job that has a rank on its node."""
        steps = health.end_runs(self.cluster_state, report.node_id, now)
        for job_id in sorted(self.cluster_state.pool.runs.jobs_on(report.node_id)):
            job = self.cluster_state.jobs[job_id]
            steps += (serving if job.spec.is_service else lifecycle).follow(self.cluster_state, job, now)
        return steps + (self._let_leave(report, now) if report.leaving else [])

    def _let_leave(self, report: NodeReported, now: float) -> list[Step]:
        """A leaving node takes no new runs; once all its runs have exited it is lost, without waiting for its lease."""
        node = self.cluster_state.pool.nodes[report.node_id]
        if not node.ready or any(run.state is not RunState.EXITED for run in report.runs):
            return []
        return self._lose(node, "left: its executor was stopped", now)

    def decide(self, now: float) -> list[Step]:
        """Lost nodes, passed deadlines, places for waiting jobs, why the other jobs wait, and which jobs move."""
        health.count_failures(self.cluster_state, now, self.settings.health, self.settings.lemons)
        steps = self._lose_nodes(now)
        if now >= self._deadlines_at + DEADLINES_SECONDS:
            self._deadlines_at = now
            steps += self._deadlines(now)
            steps += draining.decide(self.cluster_state, now)
            steps += self._remove_nodes(now)
        steps += self._put_back(now)
        self._not_yet = self._leader_warmup.why_not_yet(now, unheard=len(self.cluster_state.pool.unheard))
        if self._not_yet is None and self._withheld:
            self.cluster_state.desired.hint(self._withheld)
            self._withheld.clear()
        self._more_held = False
        if self._not_yet is None:
            steps += self._judge_held(now)
            steps += self._loans.arrive(now)
            # Before jobs start: what starts now would be the first to give way to a service in the same moment.
            cleared = (*self._waiting.cycle.kept, *self._waiting.cycle.being_cleared)
            steps += self._sizing.serve(now, closed=cleared, ahead=self._waiting.cycle.ahead)
        steps += self._waiting.decide(now, why_not_yet=self._not_yet)
        if self._not_yet is None:
            closed = self._waiting.cycle.kept
            steps += self._sizing.decide(now, closed=closed, ahead=self._waiting.cycle.ahead)
            cleared = (*closed, *self._waiting.cycle.being_cleared)
            steps += self._loans.decide(now, short=self._sizing.short, closed=cleared, ahead=self._waiting.cycle.ahead)
            steps += self._migration.decide(now, closed=closed)
        return steps

    def _judge_held(self, now: float) -> list[Step]:
        """Judge held jobs again: each enters the queue, is held for another cause, or ends because it can never start.
        Jobs that waited for ended ones follow at once, up to the limit of a cycle."""
        steps: list[Step] = []
        judged = 0
        while judged < HELD_MAX and len(steps) < self.settings.steps_max:
            job_id = self.cluster_state.holds.take_changed()
            if job_id is None:
                return steps
            judged += 1
            job = self.cluster_state.jobs.get(job_id)
            if job is None or job.state is not _S.QUEUED:
                continue
            if (cause := self.cluster_state.holds.never(job)) is not None:
                steps += self.cluster_state.go(job, _E.CANCELLED, cause, now)
            else:
                self.cluster_state.waitlist.judge_again(job, now)
        self._more_held = True
        return steps

    def _lose_nodes(self, now: float) -> list[Step]:
        heard = self.cluster_state.pool.heard
        if unseen := self.node_failures.not_listening(now):
            self.cluster_state.pool.excuse(unseen, now)
        if not self.node_failures.may_be_due(now):  # as in most cycles: the look costs the most at rest
            return []
        since = self.node_failures.silent_since
        ready = {
            node.id: since(node.id, heard[node.id]) for node in self.cluster_state.pool.nodes.values() if node.ready
        }
        steps: list[Step] = []
        for node_id in self.node_failures.lost(ready, now, leaving=self.cluster_state.pool.leaving):
            sentence = f"sent no report for {duration_text(now - heard[node_id])}"
            steps += self._lose(self.cluster_state.pool.nodes[node_id], sentence, now)
        return steps

    def _lose(self, node: Node, sentence: str, now: float) -> list[Step]:
        heard_at = self.cluster_state.pool.heard.get(node.id, node.seen_at)
        self.cluster_state.pool.forget(node.id)
        self.cluster_state.change_node(structs.replace(node, ready=False, seen_at=heard_at), "lost", sentence, at=now)
        cause = Cause(code=_C.NODE_LOST, sentence=f"node {node.id} {sentence}", by=node.id)
        steps: list[Step] = []
        for job in [
            self.cluster_state.jobs[job_id] for job_id in sorted(self.cluster_state.pool.runs.jobs_on(node.id))
        ]:
            if job.spec.is_service and job.state is not _S.STOPPING:
                steps += serving.lose_node(self.cluster_state, job, cause, now)
            elif job.state is _S.RUNNING and _has_only_extras_on(job, node.id):
                steps += lifecycle.release(self.cluster_state, job, now)
            elif job.state is not _S.STOPPING:
                steps += lifecycle.stop(self.cluster_state, job, cause, now)
            elif self.cluster_state.pool.all_gone(job):
                steps += lifecycle.stopped(self.cluster_state, job, now)
        return steps

    def _remove_nodes(self, now: float) -> list[Step]:
        """Remove nodes that were lost for longer than `nodes_kept_seconds`; a queued job that none of the other nodes
        could hold then gives that as its reason."""
        kept = self.settings.nodes_kept_seconds
        if kept is None:
            return []
        lost = [node for node in self.cluster_state.pool.nodes.values() if not node.ready and now - node.seen_at > kept]
        gone = [node for node in lost if not self.cluster_state.pool.runs.jobs_on(node.id)]
        for node in gone:
            sentence = f"removed: sent no report for {duration_text(now - node.seen_at)}"
            self.cluster_state.remove_node(node, sentence, at=now)
        return self._too_big(now) if gone else []

    def _too_big(self, now: float) -> list[Step]:
        nodes = list(self.cluster_state.pool.nodes.values())
        causes: dict[ResourceRequest, Cause | None] = {}
        steps: list[Step] = []
        for job in [job for job in self.cluster_state.jobs.values() if job.state is _S.QUEUED]:
            if job.id in self.cluster_state.waitlist.held:
                continue
            resource_request = resource_request_of_job(job)
            if resource_request not in causes:
                causes[resource_request] = never_fits(job.spec, nodes, job.tenant) if nodes else None
            cause = causes[resource_request]
            if cause is not None and (job.waiting_for is None or job.waiting_for.code is not cause.code):
                steps += self.cluster_state.go(job, _E.WAITING, cause, now)
        return steps

    def _deadlines(self, now: float) -> list[Step]:
        steps: list[Step] = []
        inactivity.forget_idle(self.cluster_state)
        for job_id in sorted(self.cluster_state.pool.runs.holding):
            job = self.cluster_state.jobs[job_id]
            limit = job.spec.time_limit_seconds
            # Before `begins_at` there was no leader, or it started nothing.
            since = max(job.since, self._leader_warmup.begins_at)
            if job.state in (_S.PLACED, _S.STARTING) and now - since > self.settings.start_seconds:
                sentence = f"not running {duration_text(now - job.since)} after it was {job.state}"
                steps += lifecycle.stop(self.cluster_state, job, Cause(code=_C.START_TIMEOUT, sentence=sentence), now)
            elif job.state is _S.RUNNING and limit is not None and now - (job.started_at or now) > limit:
                sentence = f"ran longer than its time limit of {job.spec.time_limit}"
                steps += lifecycle.stop(self.cluster_state, job, Cause(code=_C.TIME_LIMIT, sentence=sentence), now)
            elif job.state is _S.RUNNING and (hung := inactivity.watch_hung(self.cluster_state, job, now)):
                steps += hung
            elif job.state is _S.RUNNING and (idle := inactivity.watch_idle(self.cluster_state, job, now)):
                steps += idle
            elif job.state is _S.RUNNING:
                steps += (serving if job.spec.is_service else lifecycle).overdue(
                    self.cluster_state,
                    job,
                    now,
                    since=since,
                    start_seconds=self.settings.start_seconds,
                    stop_seconds=self.settings.stop_seconds,
                )
            elif job.state is _S.STOPPING and now - since > self._leave_seconds(job):
                steps += lifecycle.give_up(self.cluster_state, job, now)
        return steps

    def _leave_seconds(self, job: Job) -> float:
        """Seconds that the ranks of a stopping job may take."""
        return job.spec.drain_seconds + job.spec.grace_seconds + self.settings.stop_seconds

    @property
    def unfollowing(self) -> list[str]:
        """Ready nodes not surely answered by this leader: an earlier leader may hold them."""
        return self.node_failures.unfollowing(node.id for node in self.cluster_state.pool.nodes.values() if node.ready)

    @property
    def holding_back(self) -> bool:
        """True while the leader settles: the last decision placed nothing on purpose."""
        return self._not_yet is not None

    @property
    def unfinished(self) -> bool:
        """True if the last tick left decisions that the next one should make at once."""
        return self._waiting.unfinished or self._more_held

    # answers

    def answer(self, node_id: str) -> tuple[JobOrder, ...]:
        """All runs that the node should have, as the answer to its newest report."""
        wanted = self.cluster_state.desired.on(node_id)
        permitted = [self._permitted(node_id, order) for order in wanted]
        orders = self._carried(node_id, [order for order in permitted if order.ranks])
        if self._not_yet is not None and orders != tuple(wanted):
            self._withheld.add(node_id)
        self.cluster_state.pool.runs.offered(node_id, orders)
        self.cluster_state.desired.answered(node_id)
        if node_id in self.cluster_state.pool.unheard and node_id not in self._asked_again:
            self._asked_again.add(node_id)
            self.cluster_state.desired.hint([node_id])  # so that a sure report comes soon
        return orders

    def _carried(self, node_id: str, orders: list[JobOrder]) -> tuple[JobOrder, ...]:
        """As many of `orders` as one answer carries; jobs left out are put back with the next decision."""
        cluster_state = self.cluster_state
        found = carried(orders, cluster_state.pool.runs.reported_by(node_id), cluster_state.desired.order_bytes)
        for job_id in found.left_out:
            self._left_out[job_id] = (node_id, job_id in found.never)
        return found.orders

    def _put_back(self, now: float) -> list[Step]:
        """Stop jobs whose ranks did not fit an answer: they are requeued, or fail if no answer could carry them."""
        left_out, self._left_out = self._left_out, {}
        steps: list[Step] = []
        for job_id, (node_id, never) in sorted(left_out.items()):
            job = self.cluster_state.jobs.get(job_id)
            if (
                job is None
                or job.state not in (_S.PLACED, _S.STARTING)
                or job_id not in self.cluster_state.pool.runs.jobs_on(node_id)
            ):
                continue
            cause = _orders_full(node_id, never=never)
            if not never:
                self.cluster_state.waitlist.put_back(job_id, cause)
            steps += lifecycle.stop(self.cluster_state, job, cause, now)
        return steps

    def _permitted(self, node_id: str, order: JobOrder) -> JobOrder:
        """The order without the ranks that may not run now. A node keeps the runs that it has; it starts none while the
        leader settles or an orphan of the job lives, none on a GPU that is out of use, and none with a share or a
        volume that it does not give."""
        known = self.cluster_state.pool.runs.reported_by(node_id)
        if all(key_of(order, rank) in known for rank in order.ranks):
            return order
        job, node = self.cluster_state.jobs[order.job_id], self.cluster_state.pool.nodes[node_id]
        # The replicas of a service do not meet: an orphan of the same epoch is in the way of none.
        but_of = job.epoch if job.spec.is_service else -1
        starts = (
            self._not_yet is None
            and _offers_volumes(node, order)
            and not self.cluster_state.pool.orphans.has_living(order.job_id, but_of=but_of)
        )
        closed = node.closed_gpus

        def permits(rank: RankOrder) -> bool:
            gives = (node.gives_shares or rank.share is None) and closed.isdisjoint(rank.gpus)
            return key_of(order, rank) in known or (starts and gives)

        return for_ranks(order, permits)

    def take_hinted(self) -> set[str]:
        """Nodes whose desired runs changed since the last call."""
        return self.cluster_state.desired.take_hinted()

    def take_node_changes(self) -> list[NodeChange]:
        return self.cluster_state.pool.take_changes()


def _offers_volumes(node: Node, order: JobOrder) -> bool:
    needed = [NeededVolume(volume.name, order.tenant, not volume.read_only) for volume in order.named_volumes]
    return all(map(node.offers, needed))


def _has_only_extras_on(job: Job, node_id: str) -> bool:
    here = [allocation for allocation in job.held if allocation.node_id == node_id]
    return all(allocation.extra for allocation in here)


def _orders_full(node_id: str, *, never: bool) -> Cause:
    limit = f"{ANSWER_BYTES_MAX >> 20} MiB of orders and {ANSWER_RUNS_MAX} ranks"
    numbers = {"orders_bytes_max": float(ANSWER_BYTES_MAX), "ranks_max": float(ANSWER_RUNS_MAX)}
    if never:
        sentence = f"its ranks on node {node_id} take more than the {limit} that a node can receive at once"
        return Cause(code=_C.TOO_BIG, sentence=sentence, by=node_id, numbers=numbers)
    sentence = f"node {node_id} can receive {limit} at once, and other jobs there use most of that"
    return Cause(code=_C.ORDERS_FULL, sentence=sentence, by=node_id, numbers=numbers)
