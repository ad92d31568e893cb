"""A scheduler's thinking. No clock, no I/O: the same history decides the same.

Every decision is a `Step`. The core draws it into its own picture at once; the shell then takes it to the store. If the
store refuses one, the picture was wrong, and it is loaded anew.
"""

from collections.abc import Iterable

from msgspec import Struct, structs

from libs.domain.cluster import Node
from libs.domain.job import Cause, CauseCode, Job, JobEvent, JobState, Step
from libs.domain.quantity import duration_text
from libs.messages.asks import Ask, AskKind
from libs.messages.nodes import NodeReported, RunState, StartRun
from libs.messages.signals import GpuScore
from services.scheduler import lives
from services.scheduler.picture import NodeChange, Picture
from services.scheduler.waiting import Waiting

_S, _E, _C = JobState, JobEvent, CauseCode

DEADLINES_SECONDS = 1.0  # between two looks at who is past its time


class Settings(Struct, frozen=True, kw_only=True):
    """All in seconds."""

    lease_seconds: float = 150.0  # a node silent for this long is lost, and its jobs are given away
    start_seconds: float = 900.0  # from placed to running, image pull included
    patience_seconds: float = 300.0  # a job that waited this long holds back the smaller ones behind it
    steps_max: int = 500  # decided in one tick; the rest in the next


class Scheduler:
    """`load` the truth, take in what happened (`report`, `ask`, `admit`), `decide` what follows."""

    def __init__(self, *, pool: str, settings: Settings) -> None:
        self.pool = pool
        self.settings = settings
        self._begin()

    def _begin(self) -> None:
        self.picture = Picture()
        self._waiting = Waiting(
            self.picture, patience_seconds=self.settings.patience_seconds, steps_max=self.settings.steps_max
        )
        self._deadlines_at = 0.0
        self._loaded_at = 0.0

    def load(self, *, jobs: Iterable[Job], nodes: Iterable[Node], scores: Iterable[GpuScore] = (), now: float) -> None:
        """Begin from the store. Every node counts as heard of now: silence before we listened means nothing."""
        self._begin()
        self._loaded_at = now
        self.picture.load(jobs=jobs, nodes=nodes, scores=scores, now=now)

    # what happened

    def admit(self, jobs: Iterable[Job]) -> None:
        """Jobs that are new in the queue."""
        for job in jobs:
            self.picture.keep(job)

    def report(self, report: NodeReported, now: float) -> str:
        """Take in what a node sees; returns why the report is refused, or nothing."""
        if refused := self.picture.runs.refuses(report):
            return refused
        self.picture.heard[report.node_id] = now
        if not report.leaving or report.node_id not in self.picture.nodes:
            self._know_node(report, now)
        if not report.leaving:
            self.picture.reopen(report.node_id)  # it may have been closed while an executor before this one was leaving
        self.picture.runs.see(report)
        return ""

    def _know_node(self, report: NodeReported, now: float) -> None:
        known = self.picture.nodes.get(report.node_id)
        node = Node(
            id=report.node_id,
            pool=report.pool,
            address=report.address,
            capacity=report.capacity,
            runtime=report.runtime,
            not_enforced=report.not_enforced,
            drained=known.drained if known else False,
            seen_at=now,
        )
        if known is None:
            gpus = len(node.capacity.gpus)
            emulated = " emulated" if any(gpu.emulated for gpu in node.capacity.gpus) else ""
            self.picture.change_node(node, "joined", f"joined with {gpus}{emulated} GPUs", at=now)
        elif not known.ready:
            self.picture.change_node(node, "returned", "is heard of again", at=now)
        elif structs.replace(known, seen_at=now) != node:
            self.picture.change_node(node, "changed", "has other capacity, address or runtime than before", at=now)

    def ask(self, ask: Ask, now: float, *, job: Job | None = None) -> list[Step]:
        """What follows from what a user asks; nothing if it is done already. `job`: a final one; we keep none."""
        if ask.kind in (AskKind.DRAIN, AskKind.RESUME):
            self._drain(ask, drained=ask.kind is AskKind.DRAIN, now=now)
            return []
        if job is None:
            job = self.picture.jobs.get(ask.subject_id)
        if job is None:
            return []
        match ask.kind:
            case AskKind.CANCEL:
                cause = Cause(code=_C.CANCEL_ASKED, sentence=f"cancelled by {ask.tenant}", by=ask.tenant)
                if job.state is _S.QUEUED:
                    return self.picture.go(job, _E.CANCELLED, cause, now, ask=ask.id)
                return lives.stop(self.picture, job, cause, now, ask=ask.id)
            case AskKind.REQUEUE:
                cause = Cause(code=_C.REQUEUE_ASKED, sentence=f"requeued by {ask.tenant}", by=ask.tenant)
                if job.state.final:
                    return self.picture.go(job, _E.REQUEUED, cause, now, ask=ask.id, attempts=0, not_before=now)
                return lives.stop(self.picture, job, cause, now, ask=ask.id)
            case AskKind.PRIORITISE:
                if job.state.final:
                    return []
                sentence = f"priority {job.priority} → {ask.priority} by {ask.tenant}"
                cause = Cause(code=_C.PRIORITY_ASKED, sentence=sentence, by=ask.tenant)
                return self.picture.go(job, _E.REPRIORITISED, cause, now, ask=ask.id, priority=ask.priority)
            case _:
                return []

    def _drain(self, ask: Ask, *, drained: bool, now: float) -> None:
        node = self.picture.nodes.get(ask.subject_id)
        if node is None or node.drained == drained:
            return
        event = "drained" if drained else "resumed"
        node = structs.replace(node, drained=drained, seen_at=self.picture.heard[node.id])
        self.picture.change_node(node, event, f"{event} by {ask.tenant}", at=now, ask=ask.id)

    # what follows

    def follow(self, report: NodeReported, now: float) -> list[Step]:
        """The steps that a report makes due, for every job that has a rank on its node."""
        steps: list[Step] = []
        for job_id in sorted(self.picture.runs.jobs_on(report.node_id)):
            steps += lives.follow(self.picture, self.picture.jobs[job_id], now)
        return steps + (self._let_leave(report, now) if report.leaving else [])

    def _let_leave(self, report: NodeReported, now: float) -> list[Step]:
        """A node that goes takes nothing new; once nothing runs there it is lost, without waiting for its lease."""
        node = self.picture.nodes[report.node_id]
        self.picture.room.close([node.id])
        if not node.ready or any(run.state is not RunState.EXITED for run in report.runs):
            return []
        return self._lose(node, "left: its executor was stopped", now)

    def decide(self, now: float) -> list[Step]:
        """Lost nodes, passed deadlines, then places for waiting jobs, and why the others go on waiting."""
        steps = self._lose_nodes(now)
        if now >= self._deadlines_at + DEADLINES_SECONDS:
            self._deadlines_at = now
            steps += self._deadlines(now)
        return steps + self._waiting.decide(now)

    def _lose_nodes(self, now: float) -> list[Step]:
        steps: list[Step] = []
        for node in [node for node in self.picture.nodes.values() if node.ready]:
            silent = now - self.picture.heard[node.id]
            if silent > self.settings.lease_seconds:
                steps += self._lose(node, f"was not heard of for {duration_text(silent)}", now)
        return steps

    def _lose(self, node: Node, sentence: str, now: float) -> list[Step]:
        self.picture.change_node(structs.replace(node, ready=False), "lost", sentence, at=now)
        cause = Cause(code=_C.NODE_LOST, sentence=f"node {node.id} {sentence}", by=node.id)
        steps: list[Step] = []
        for job in [self.picture.jobs[job_id] for job_id in sorted(self.picture.runs.jobs_on(node.id))]:
            if job.state is not _S.STOPPING:
                steps += lives.stop(self.picture, job, cause, now)
            elif self.picture.all_gone(job):
                steps += lives.stopped(self.picture, job, now)
        return steps

    def _deadlines(self, now: float) -> list[Step]:
        steps: list[Step] = []
        for job_id in sorted(self.picture.runs.holding):
            job = self.picture.jobs[job_id]
            limit = job.spec.time_limit_seconds
            since = max(job.since, self._loaded_at)  # what a node did while nobody led is not known yet
            if job.state in (_S.PLACED, _S.STARTING) and now - since > self.settings.start_seconds:
                sentence = f"not running {duration_text(now - job.since)} after it was {job.state}"
                steps += lives.stop(self.picture, job, Cause(code=_C.START_TIMEOUT, sentence=sentence), now)
            elif job.state is _S.RUNNING and limit is not None and now - (job.started_at or now) > limit:
                sentence = f"ran longer than its time limit of {job.spec.time_limit}"
                steps += lives.stop(self.picture, job, Cause(code=_C.TIME_LIMIT, sentence=sentence), now)
        return steps

    # what is said

    def answer(self, node_id: str) -> tuple[StartRun, ...]:
        """All that the node should be running, as the answer to its newest report."""
        runs = tuple(run for of_job in self.picture.desired.get(node_id, {}).values() for run in of_job)
        self.picture.runs.offered(node_id, runs)
        self.picture.hinted.discard(node_id)
        return runs

    def take_hinted(self) -> set[str]:
        """Nodes whose desired runs changed since the last call."""
        hinted, self.picture.hinted = self.picture.hinted, set()
        return hinted

    def take_node_changes(self) -> list[NodeChange]:
        changes, self.picture.node_changes = self.picture.node_changes, []
        return changes
