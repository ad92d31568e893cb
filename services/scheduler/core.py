"""What a scheduler knows of its pool, and what it decides. No clock, no I/O: the same history decides the same.

Every decision is a `Step`. The core applies it to its own picture at once; the shell then takes it to the store. If the
store refuses one, the picture was wrong, and it is loaded anew.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct, structs

from libs.domain.cluster import Node
from libs.domain.job import STEPS, Allocation, Cause, CauseCode, Job, JobEvent, JobState, Placement, Step, after
from libs.domain.quantity import duration_text
from libs.messages.asks import Ask, AskKind
from libs.messages.nodes import NodeReported, StartRun
from libs.messages.signals import GpuScore
from libs.planning.preemption import Holder, victims_for
from libs.planning.queue import Queue
from libs.planning.room import NoRoom, Room, Shape, gpus_of
from services.scheduler.orders import master_port, run_orders
from services.scheduler.runs import Runs

_S, _E, _C = JobState, JobEvent, CauseCode


class Settings(Struct, frozen=True, kw_only=True):
    """All in seconds."""

    lease_seconds: float = 150.0  # a node silent for this long is lost, and its jobs are given away
    start_seconds: float = 900.0  # from placed to running, image pull included
    patience_seconds: float = 300.0  # a job that waited this long holds back the smaller ones behind it
    steps_max: int = 500  # decided in one tick; the rest in the next


class NodeChange(Struct, frozen=True):
    """A node to store as it now is, and the event that tells it."""

    node: Node
    event: str
    sentence: str
    at: float
    ask: int = 0


class Scheduler:
    """`load` the truth, `observe` what happened, `decide` what follows."""

    def __init__(self, *, pool: str, settings: Settings) -> None:
        self.pool = pool
        self.settings = settings
        self.clear()

    def clear(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.nodes: dict[str, Node] = {}
        self.heard: dict[str, float] = {}
        self.runs = Runs()
        self.room = Room()
        self.queue = Queue()
        self.backing_off: set[str] = set()
        self.unexplained: set[str] = set()
        self.unfit: dict[Shape, tuple[int, Cause]] = {}
        self.making_room: dict[str, set[str]] = {}
        self.looked_at: dict[str, float] = {}  # when room was last sought to be made for a job
        self.deadlines_at = 0.0
        self.ports: dict[str, set[int]] = {}
        self.desired: dict[str, dict[str, list[StartRun]]] = {}
        self.hinted: set[str] = set()
        self.node_changes: list[NodeChange] = []

    # what is true

    def load(self, *, jobs: Iterable[Job], nodes: Iterable[Node], scores: Iterable[GpuScore] = (), now: float) -> None:
        """Begin from the store. Every node counts as heard of now: silence before we listened means nothing."""
        self.clear()
        self.room = Room(_by_gpu(scores))
        for node in nodes:
            self.nodes[node.id] = node
            self.heard[node.id] = now
            self.room.add(node)
        for job in jobs:
            self._keep(job)

    def rescore(self, scores: Iterable[GpuScore]) -> None:
        """Other scores for some GPUs: what is placed from now on goes by them."""
        new = {gpu: score for gpu, score in _by_gpu(scores).items() if self.room.scores.get(gpu, 1.0) != score}
        self.room.scores.update(new)
        for node_id in sorted({node_id for node_id, _ in new} & self.nodes.keys()):
            self._put_in_room(self.nodes[node_id])

    def admit(self, jobs: Iterable[Job]) -> None:
        """Jobs that are new in the queue."""
        for job in jobs:
            self._keep(job)

    def _keep(self, job: Job) -> None:
        self.jobs[job.id] = job
        if job.state is _S.QUEUED:
            self._enqueue(job)
        elif job.state.holding:
            self._give(job, loaded=True)

    # what happened

    def report(self, report: NodeReported, now: float) -> str:
        """Take in what a node sees; returns why the report is refused, or nothing."""
        if refused := self.runs.refuses(report):
            return refused
        self.heard[report.node_id] = now
        self._know_node(report, now)
        self.runs.see(report)
        return ""

    def _know_node(self, report: NodeReported, now: float) -> None:
        known = self.nodes.get(report.node_id)
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
            self._change_node(node, "joined", f"joined with {gpus}{emulated} GPUs", at=now)
        elif not known.ready:
            self._change_node(node, "returned", "is heard of again", at=now)
        elif structs.replace(known, seen_at=now) != node:
            self._change_node(node, "changed", "has other capacity, address or runtime than before", at=now)

    def _change_node(self, node: Node, event: str, sentence: str, *, at: float, ask: int = 0) -> None:
        self.nodes[node.id] = node
        self._put_in_room(node)
        self.node_changes.append(NodeChange(node, event, sentence, at, ask))

    def _put_in_room(self, node: Node) -> None:
        held = [
            allocation
            for job in self.jobs.values()
            if job.placement is not None
            for allocation in job.placement.allocations
            if allocation.node_id == node.id
        ]
        self.room.add(node, held)
        self.room.grown += 1

    def ask(self, ask: Ask, now: float, *, job: Job | None = None) -> list[Step]:
        """What follows from what a user asks; nothing if it is done already. `job`: a final one; we keep none."""
        if ask.kind in (AskKind.DRAIN, AskKind.RESUME):
            self._drain(ask, drained=ask.kind is AskKind.DRAIN, now=now)
            return []
        if job is None:
            job = self.jobs.get(ask.subject_id)
        if job is None:
            return []
        match ask.kind:
            case AskKind.CANCEL:
                cause = Cause(code=_C.CANCEL_ASKED, sentence=f"cancelled by {ask.tenant}", by=ask.tenant)
                if job.state is _S.QUEUED:
                    return self._go(job, _E.CANCELLED, cause, now, ask=ask.id)
                return self._stop(job, cause, now, ask=ask.id)
            case AskKind.REQUEUE:
                cause = Cause(code=_C.REQUEUE_ASKED, sentence=f"requeued by {ask.tenant}", by=ask.tenant)
                if job.state.final:
                    return self._go(job, _E.REQUEUED, cause, now, ask=ask.id, attempts=0, not_before=now)
                return self._stop(job, cause, now, ask=ask.id)
            case AskKind.PRIORITISE:
                if job.state.final:
                    return []
                sentence = f"priority {job.priority} → {ask.priority} by {ask.tenant}"
                cause = Cause(code=_C.PRIORITY_ASKED, sentence=sentence, by=ask.tenant)
                return self._go(job, _E.REPRIORITISED, cause, now, ask=ask.id, priority=ask.priority)
            case _:
                return []

    def _drain(self, ask: Ask, *, drained: bool, now: float) -> None:
        node = self.nodes.get(ask.subject_id)
        if node is None or node.drained == drained:
            return
        event = "drained" if drained else "resumed"
        node = structs.replace(node, drained=drained)
        self._change_node(node, event, f"{event} by {ask.tenant}", at=now, ask=ask.id)

    # what follows

    def follow(self, report: NodeReported, now: float) -> list[Step]:
        """The steps that a report makes due, for every job that has a rank on its node."""
        steps: list[Step] = []
        for job_id in sorted(self.desired_or_stopping(report.node_id)):
            steps += self._follow_job(self.jobs[job_id], now)
        return steps

    def desired_or_stopping(self, node_id: str) -> set[str]:
        return {job_id for job_id in self.runs.jobs_on(node_id) if job_id in self.jobs}

    def decide(self, now: float) -> list[Step]:
        """Lost nodes, passed deadlines, then places for waiting jobs, and why the others go on waiting."""
        steps = self._lose_nodes(now)
        if now >= self.deadlines_at + 1.0:
            self.deadlines_at = now
            steps += self._deadlines(now)
        for job_id in sorted(job_id for job_id in self.backing_off if self.jobs[job_id].not_before <= now):
            self.backing_off.remove(job_id)
            self.queue.add(self.jobs[job_id])
            self.unexplained.add(job_id)
        placed, causes = self._place_waiting(now)
        steps += placed
        return steps + self._explain_waiting(causes, now)

    def take_node_changes(self) -> list[NodeChange]:
        changes, self.node_changes = self.node_changes, []
        return changes

    def take_hinted(self) -> set[str]:
        """Nodes whose desired runs changed since the last call."""
        hinted, self.hinted = self.hinted, set()
        return hinted

    def answer(self, node_id: str) -> tuple[StartRun, ...]:
        """All that the node should be running, as the answer to its newest report."""
        runs = tuple(run for of_job in self.desired.get(node_id, {}).values() for run in of_job)
        self.runs.offered(node_id, runs)
        self.hinted.discard(node_id)
        return runs

    # one job

    def _follow_job(self, job: Job, now: float) -> list[Step]:
        """Take a job as far as what its nodes see allows."""
        assert job.placement is not None, f"{job.id} is {job.state} without a placement"
        ranks = self.runs.of(job)
        steps: list[Step] = []
        if job.state is _S.PLACED and ranks.any_seen:
            steps += self._go(job, _E.STARTING, _reported(ranks.first_node), now)
        job = self.jobs[job.id]
        if job.state is _S.STARTING and ranks.all_began:
            sentence = "runs" if len(ranks.seen) == 1 else f"all {len(ranks.seen)} ranks run"
            steps += self._go(job, _E.STARTED, _reported(ranks.first_node, sentence), ranks.began_at or now)
        job = self.jobs[job.id]
        if job.state is _S.STOPPING:
            return steps + (self._stopped(job, now) if self._all_gone(job) else [])
        if job.state is _S.RUNNING and ranks.all_succeeded:
            cause = Cause(code=_C.EXITED, sentence="every rank ended with status 0")
            return steps + self._go(job, _E.SUCCEEDED, cause, now, exit_code=0, progress=ranks.progress)
        ended = ranks.first_ended_badly or self.runs.first_lost(job)
        if ended is not None:
            steps += self._ended_badly(job, ended, now, exit_code=ranks.exit_code, progress=ranks.progress)
        return steps

    def _ended_badly(
        self, job: Job, cause: Cause, now: float, *, exit_code: int | None, progress: dict[str, float] | None
    ) -> list[Step]:
        if not self._all_gone(job):
            return self._stop(job, cause, now, exit_code=exit_code, progress=progress)
        return self._over(job, cause, now, exit_code=exit_code, progress=progress)

    def _stopped(self, job: Job, now: float) -> list[Step]:
        """Every rank is gone: what becomes of the job is what it was stopped for."""
        assert job.stopping_for is not None
        ranks = self.runs.of(job)
        cause = job.stopping_for
        if cause.code is _C.CANCEL_ASKED:
            return self._go(job, _E.CANCELLED, cause, now, exit_code=ranks.exit_code, progress=ranks.progress)
        if ranks.all_succeeded:
            done = Cause(code=_C.EXITED, sentence="ended with status 0 while it was being stopped")
            return self._go(job, _E.SUCCEEDED, done, now, exit_code=0, progress=ranks.progress)
        return self._over(job, cause, now, exit_code=ranks.exit_code, progress=ranks.progress)

    def _over(
        self, job: Job, cause: Cause, now: float, *, exit_code: int | None, progress: dict[str, float] | None
    ) -> list[Step]:
        """This epoch is over without success: back to the queue, or failed."""
        if cause.code in _NOT_ITS_FAULT:
            return self._go(job, _E.REQUEUED, cause, now, exit_code=exit_code, progress=progress, not_before=now)
        retries = job.spec.retries
        if cause.code is _C.TIME_LIMIT or job.attempts >= retries.max:
            attempts = job.attempts + (cause.code is not _C.TIME_LIMIT)
            return self._go(job, _E.FAILED, cause, now, exit_code=exit_code, progress=progress, attempts=attempts)
        wait = retries.wait_seconds(job.attempts + 1)
        sentence = f"{cause.sentence}; retry {job.attempts + 1} of {retries.max} in {duration_text(wait)}"
        return self._go(
            job,
            _E.REQUEUED,
            structs.replace(cause, sentence=sentence),
            now,
            exit_code=exit_code,
            progress=progress,
            attempts=job.attempts + 1,
            not_before=now + wait,
        )

    def _stop(
        self,
        job: Job,
        cause: Cause,
        now: float,
        *,
        ask: int = 0,
        exit_code: int | None = None,
        progress: dict[str, float] | None = None,
    ) -> list[Step]:
        """Tell a job to stop. One that is stopping already goes on, unless a cancel now overrides what it stops for."""
        if not job.state.holding:
            return []
        if job.state is _S.STOPPING:
            assert job.stopping_for is not None
            if cause.code is not _C.CANCEL_ASKED or job.stopping_for.code is _C.CANCEL_ASKED:
                return []
        steps = self._go(job, _E.STOPPING, cause, now, ask=ask, exit_code=exit_code, progress=progress)
        job = self.jobs[job.id]
        return steps + (self._stopped(job, now) if self._all_gone(job) else [])

    def _all_gone(self, job: Job) -> bool:
        assert job.placement is not None
        return all(self._gone(job, allocation) for allocation in job.placement.allocations)

    def _gone(self, job: Job, allocation: Allocation) -> bool:
        node = self.nodes.get(allocation.node_id)
        return node is None or not node.ready or self.runs.gone(job, allocation)

    # nodes and deadlines

    def _lose_nodes(self, now: float) -> list[Step]:
        steps: list[Step] = []
        for node in [node for node in self.nodes.values() if node.ready]:
            silent = now - self.heard[node.id]
            if silent <= self.settings.lease_seconds:
                continue
            sentence = f"not heard of for {duration_text(silent)}"
            self._change_node(structs.replace(node, ready=False), "lost", sentence, at=now)
            cause = Cause(code=_C.NODE_LOST, sentence=f"node {node.id} was {sentence}", by=node.id)
            for job_id in sorted(self.runs.jobs_on(node.id)):
                job = self.jobs.get(job_id)
                if job is None:
                    continue
                if job.state is _S.STOPPING:
                    steps += self._stopped(job, now) if self._all_gone(job) else []
                else:
                    steps += self._stop(job, cause, now)
        return steps

    def _deadlines(self, now: float) -> list[Step]:
        steps: list[Step] = []
        for job_id in sorted(self.runs.holding):
            job = self.jobs[job_id]
            limit = job.spec.time_limit_seconds
            if job.state in (_S.PLACED, _S.STARTING) and now - job.since > self.settings.start_seconds:
                sentence = f"not running {duration_text(now - job.since)} after it was {job.state}"
                steps += self._stop(job, Cause(code=_C.START_TIMEOUT, sentence=sentence), now)
            elif job.state is _S.RUNNING and limit is not None and now - (job.started_at or now) > limit:
                sentence = f"ran longer than its time limit of {job.spec.time_limit}"
                steps += self._stop(job, Cause(code=_C.TIME_LIMIT, sentence=sentence), now)
        return steps

    # waiting jobs

    def _place_waiting(self, now: float) -> tuple[list[Step], dict[Shape, Cause]]:
        """Places for those who fit, in order; and for each shape that does not, why."""
        steps: list[Step] = []
        causes: dict[Shape, Cause] = {}
        reserved: list[str] = []
        grown = 0
        walk = self.queue.served()
        while len(steps) < self.settings.steps_max and (head := walk.next()) is not None:
            job, shape = self.jobs[head[0]], head[1]
            found = self._find(shape, remember=not reserved)
            if not isinstance(found, Cause):
                steps += self._place(job, found, now)
                walk.placed()
                continue
            causes[shape] = _held_back(found) if reserved else found
            walk.blocked()
            steps += self._make_room(job, shape, now)
            if not reserved and (reserved := self._claim(job, shape, now)):
                grown = self.room.grown
                self.room.close(reserved)
        if reserved:
            self.room.reopen(reserved)
            self.room.grown = grown
        return steps, causes

    def _find(self, shape: Shape, *, remember: bool) -> tuple[Allocation, ...] | Cause:
        """Ask the room; what did not fit need not be asked again until something was given back."""
        known = self.unfit.get(shape)
        if remember and known is not None and known[0] == self.room.grown:
            return known[1]
        found = self.room.place(shape)
        if not isinstance(found, NoRoom):
            return found
        if remember:
            self.unfit[shape] = (self.room.grown, found.cause)
        return found.cause

    def _place(self, job: Job, allocations: tuple[Allocation, ...], now: float) -> list[Step]:
        address = self.nodes[allocations[0].node_id].address
        port = master_port(job, self.ports.setdefault(address, set()))
        why = _why_there(allocations)
        placement = Placement(allocations=allocations, master_address=address, master_port=port, why=why)
        return self._go(job, _E.PLACED, Cause(code=_C.FITS, sentence=why), now, placement=placement)

    def _make_room(self, job: Job, shape: Shape, now: float) -> list[Step]:
        """Pre-empt for a job that does not fit. While those who give way are stopping, no others are asked."""
        if self.making_room.get(job.id, set()) & self.runs.holding or now < self.looked_at.get(job.id, 0.0) + 1.0:
            return []
        self.making_room.pop(job.id, None)
        self.looked_at[job.id] = now
        holders = self._who_may_leave(job)
        victims = victims_for(shape, priority=job.priority, room=self.room, holders=holders) if holders else []
        if not victims:
            return []
        self.making_room[job.id] = {victim.job_id for victim in victims}
        steps: list[Step] = []
        names: list[str] = []
        for held in (self.jobs[victim.job_id] for victim in victims):
            names.append(f"{held.name} ({held.id})")
            sentence = f"pre-empted by {job.name} ({job.id}): priority {job.priority} over {held.priority}"
            steps += self._stop(held, Cause(code=_C.PREEMPTED, sentence=sentence, by=job.id), now)
        sentence = f"room is being made: {', '.join(names)} must stop first"
        cause = Cause(code=_C.MAKING_ROOM, sentence=sentence, numbers={"stopping": float(len(victims))})
        self.unexplained.discard(job.id)
        return steps + self._go(job, _E.WAITING, cause, now)

    def _who_may_leave(self, job: Job) -> list[Holder]:
        """Whoever is stopping anyhow, before all others; then those that `job` may pre-empt."""
        holders: list[Holder] = []
        for held in (self.jobs[job_id] for job_id in self.runs.holding):
            stopping = held.state is _S.STOPPING
            if held.placement is not None and (stopping or (held.spec.preemptible and held.priority < job.priority)):
                holders.append(
                    Holder(
                        job_id=held.id,
                        priority=-(10**9) if stopping else held.priority,
                        started_at=held.started_at or held.since,
                        allocations=held.placement.allocations,
                    )
                )
        return holders

    def _claim(self, job: Job, shape: Shape, now: float) -> list[str]:
        """Nodes kept from the jobs behind it: those being cleared for it or, once it waited long, the emptiest."""
        clearing = self.making_room.get(job.id)
        if clearing:
            return sorted(
                {
                    allocation.node_id
                    for job_id in clearing
                    if (held := self.jobs.get(job_id)) is not None and held.placement is not None
                    for allocation in held.placement.allocations
                }
            )
        if now - job.since < self.settings.patience_seconds:
            return []
        return self._emptiest(shape)

    def _emptiest(self, shape: Shape) -> list[str]:
        """The nodes that would hold the whole shape if they were empty, those with most GPUs free first."""
        wanted = gpus_of(shape)
        nodes = sorted(self.room.open_nodes, key=lambda room: (-len(room.free), room.node.id))
        claimed: list[str] = []
        for room in nodes:
            if wanted <= 0:
                break
            if room.models:
                claimed.append(room.node.id)
                wanted -= len(room.models)
        return claimed

    def _explain_waiting(self, causes: dict[Shape, Cause], now: float) -> list[Step]:
        """Say once why each job waits that was not placed; `weft explain` says it anew whenever asked."""
        steps: list[Step] = []
        for job_id in sorted(self.unexplained):
            if len(steps) >= self.settings.steps_max:
                break
            job = self.jobs.get(job_id)
            if job is None or job.state is not _S.QUEUED:
                self.unexplained.discard(job_id)
                continue
            if job_id in self.backing_off:
                sentence = f"tries again in {duration_text(job.not_before - now)}"
                cause = Cause(code=_C.BACKOFF, sentence=sentence, numbers={"not_before": job.not_before})
            elif (known := causes.get(self.queue.shape(job_id))) is not None:
                cause = known
            else:
                continue  # its turn comes in the next tick
            self.unexplained.discard(job_id)
            if job.waiting_for is None or job.waiting_for.code is not cause.code:
                steps += self._go(job, _E.WAITING, cause, now)
        return steps

    # a step, and what it changes in our picture

    def _go(
        self,
        job: Job,
        event: JobEvent,
        cause: Cause,
        now: float,
        *,
        ask: int = 0,
        priority: int | None = None,
        attempts: int | None = None,
        not_before: float | None = None,
        placement: Placement | None = None,
        exit_code: int | None = None,
        progress: dict[str, float] | None = None,
    ) -> list[Step]:
        step = Step(
            job_id=job.id,
            version=job.version,
            event=event,
            to=STEPS[job.state, event],
            at=now,
            cause=cause,
            epoch=job.epoch + (event is _E.REQUEUED),
            ask=ask,
            priority=priority,
            attempts=attempts,
            not_before=not_before,
            placement=placement,
            exit_code=exit_code,
            progress=progress,
        )
        self._apply(job, after(job, step), now)
        return [step]

    def _apply(self, before: Job, job: Job, now: float) -> None:
        if before.state.holding and not job.state.holding:
            self._release(before)
        elif job.state is _S.STOPPING and before.state is not _S.STOPPING:
            self._undesire(before)
        self.queue.remove(job.id)
        self.backing_off.discard(job.id)
        if job.state.final:
            self.jobs.pop(job.id, None)
            self.unexplained.discard(job.id)
            self.making_room.pop(job.id, None)
            self.looked_at.pop(job.id, None)
            return
        self.jobs[job.id] = job
        if job.state is _S.QUEUED:
            if before.state is not _S.QUEUED or job.priority != before.priority:
                self.unexplained.add(job.id)
            if job.not_before > now:
                self.backing_off.add(job.id)
            else:
                self.queue.add(job)
        elif before.state is _S.QUEUED:
            self._give(job, loaded=False)

    def _enqueue(self, job: Job) -> None:
        self.unexplained.add(job.id)
        self.queue.add(job)  # one that must back off is put aside by its first look, in `decide`
        if job.not_before > 0:
            self.queue.remove(job.id)
            self.backing_off.add(job.id)

    def _give(self, job: Job, *, loaded: bool) -> None:
        """A job came to hold what its placement says."""
        assert job.placement is not None
        self.unexplained.discard(job.id)
        self.making_room.pop(job.id, None)
        self.looked_at.pop(job.id, None)
        self.runs.hold(job, loaded=loaded)
        self.ports.setdefault(job.placement.master_address, set()).add(job.placement.master_port)
        for allocation in job.placement.allocations:
            self.room.take(allocation)
        if job.state is not _S.STOPPING:
            for node_id, orders in run_orders(job, self.nodes).items():
                self.desired.setdefault(node_id, {})[job.id] = orders
                self.hinted.add(node_id)

    def _undesire(self, job: Job) -> None:
        assert job.placement is not None
        for allocation in job.placement.allocations:
            if self.desired.get(allocation.node_id, {}).pop(job.id, None) is not None:
                self.hinted.add(allocation.node_id)

    def _release(self, job: Job) -> None:
        assert job.placement is not None
        self._undesire(job)
        self.runs.let_go(job)
        self.ports.get(job.placement.master_address, set()).discard(job.placement.master_port)
        for allocation in job.placement.allocations:
            self.room.give_back(allocation)

    def check(self) -> None:
        """Assert what must always hold. Tests call it after every step."""
        held: dict[tuple[str, int], str] = {}
        for job in self.jobs.values():
            assert not job.state.final, f"{job.id} is final and still kept"
            assert (job.placement is not None) == job.state.holding, f"{job.id}: {job.state}, {job.placement}"
            waits = job.id in self.queue or job.id in self.backing_off
            assert waits == (job.state is _S.QUEUED), f"{job.id}: {job.state} but waits is {waits}"
            for allocation in job.placement.allocations if job.placement else ():
                for gpu in allocation.gpus:
                    other = held.setdefault((allocation.node_id, gpu), job.id)
                    assert other == job.id, f"GPU {gpu} of {allocation.node_id}: {other} and {job.id}"
        for node_id, room in self.room.nodes.items():
            for gpu in room.free:
                assert (node_id, gpu) not in held, f"GPU {gpu} of {node_id} is free and held by {held[node_id, gpu]}"


_NOT_ITS_FAULT = frozenset({_C.PREEMPTED, _C.NODE_LOST, _C.NODE_DRAINED, _C.REQUEUE_ASKED, _C.RUN_LOST})


def _by_gpu(scores: Iterable[GpuScore]) -> dict[tuple[str, int], float]:
    """Of each GPU the score that placement goes by: as long as jobs have no class, that of the mixed one."""
    return {(score.node_id, score.gpu_index): score.score for score in scores if score.job_class == "mixed"}


def _reported(node_id: str, sentence: str = "") -> Cause:
    return Cause(code=_C.NODE_REPORTED, sentence=sentence or f"node {node_id} prepares it", by=node_id)


def _held_back(cause: Cause) -> Cause:
    sentence = f"an older or more important job ahead of it needs the room; besides, it {cause.sentence}"
    return Cause(code=_C.HELD_BACK, sentence=sentence, numbers=cause.numbers)


def _why_there(allocations: Sequence[Allocation]) -> str:
    nodes = list(dict.fromkeys(allocation.node_id for allocation in allocations))
    gpus = sum(len(allocation.gpus) for allocation in allocations)
    if len(nodes) == 1:
        what = f"{gpus} GPU{'' if gpus == 1 else 's'}" if gpus else "its CPUs and memory"
        return f"{nodes[0]} is the fullest node that still had {what} free together"
    return f"no node holds all {len(allocations)} ranks; these {len(nodes)} nodes, the emptiest first, are the fewest"
