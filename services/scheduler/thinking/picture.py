"""What a scheduler knows of its pool: jobs, nodes, what is free, who waits, what each node should run.

Every change of a job goes through `go`, which makes the step and draws it into the picture at once.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct, structs

from libs.domain.classes import JOB_CLASSES, class_of
from libs.domain.cluster import Node
from libs.domain.job import STEPS, Allocation, Cause, Job, JobChange, JobEvent, JobState, Placement, Step, changed
from libs.messages.nodes import JOBS, JobOrder, NodeReported, RunSeen, RunState, StartRun
from libs.messages.signals import GpuScore, WorkloadClass
from libs.planning.capacity import Room
from libs.planning.jobs import standing_of
from libs.planning.locality import Locality
from libs.planning.policy import Policy
from libs.planning.queue import Queue
from libs.planning.scores import GpuKey, Scores
from libs.planning.shape import Shape, shape_of
from services.scheduler.thinking.holdings import Holdings
from services.scheduler.thinking.orders import OrderBytes, job_order, order_bytes, ports_of, run_orders
from services.scheduler.thinking.runs import Runs

_S, _E = JobState, JobEvent

CPU_DUST = 1e-3  # what adding and subtracting cores very often may leave behind

LEARNT_MAX = 50_000  # workloads whose class is known, the newest: a tenant may name any number of them

POLICY = Policy("priority", "weft-best", "easy")


class JobGroup(Struct, frozen=True):
    """Waiting jobs of one group fit, or do not, alike; and whom one of them may overtake, the others may."""

    shape: Shape
    job_class: str
    lasts_s: float | None


class NodeChange(Struct, frozen=True):
    """A node to store as it now is, and the event that tells it."""

    node: Node
    event: str
    sentence: str
    at: float
    ask: int = 0


class Picture:
    """Begins empty; `load` fills it from the store."""

    def __init__(self, policy: Policy = POLICY, locality: Locality | None = None) -> None:
        self.policy = policy
        self.locality = locality or Locality()
        self.jobs: dict[str, Job] = {}
        self.nodes: dict[str, Node] = {}
        self.heard: dict[str, float] = {}  # when each node last reported
        self.runs = Runs()
        self.room = self._room_for(())
        self.queue = Queue(policy.ordering)
        self.holdings = Holdings(policy.ordering)
        self.pool_changes = 0  # counts every change of what there is, whoever holds it
        self.unheard: set[str] = set()  # ready nodes that have not surely reported since the load
        self.leaving: set[str] = set()
        self.strays: dict[str, tuple[RunSeen, ...]] = {}  # by node: what it reports and no job has there
        self.forgot_placements = False  # the store went back, so jobs may have been on nodes that it does not know of
        self.kept: dict[str, tuple[Allocation, ...]] = {}  # what is kept for a job that moves
        self.scored = 0  # counts every change of a score, and of what is learnt
        self.measured: dict[str, dict[GpuKey, GpuScore]] = {}  # by class: where scores are from
        self.learnt: dict[str, str] = {}  # by workload: the class of its jobs
        self.kept_out: set[str] = set()  # jobs that wait for a stray of theirs to end
        self.backing_off: set[str] = set()
        self.unexplained: set[str] = set()  # jobs that wait, and nobody has said why yet
        self.ports: dict[str, set[int]] = {}  # by address, where gangs meet
        self.desired: dict[str, dict[str, list[StartRun]]] = {}  # by node and job
        self.orders: dict[str, JobOrder] = {}  # by job: what all its ranks share
        self.order_bytes: dict[str, OrderBytes] = {}  # by job
        self.reading_jobs: set[str] = set()  # nodes that read orders in which ranks of one job share what they can
        self.put_back: dict[str, Cause] = {}  # jobs that a node could not be told of, until they are placed again
        self.hinted: set[str] = set()
        self.node_changes: list[NodeChange] = []
        self._decided: dict[tuple[str, int], JobChange] = {}  # in this turn, by job and version before the step

    def __getstate__(self) -> dict[str, object]:
        """Between two turns; without the jobs, and without the orders that follow from them: both have the jobs'
        environments."""
        state = {name: part for name, part in self.__dict__.items() if name not in ("jobs", "orders", "_decided")}
        return {**state, "desired": {node_id: tuple(of_node) for node_id, of_node in self.desired.items()}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a picture that has its `jobs`, as `keeping.py` makes it."""
        self.__dict__.update(state)
        self._decided = {}
        self.orders = {job_id: job_order(self.jobs[job_id], self.nodes) for job_id in state["order_bytes"]}
        job_ids = {job_id for of_node in state["desired"].values() for job_id in of_node}
        orders = {job_id: run_orders(self.jobs[job_id], self.nodes) for job_id in job_ids}
        self.desired = {
            node_id: {job_id: orders[job_id][node_id] for job_id in of_node}
            for node_id, of_node in state["desired"].items()
        }

    def load(
        self,
        *,
        jobs: Iterable[Job],
        nodes: Iterable[Node],
        scores: Sequence[GpuScore] = (),
        classes: Iterable[WorkloadClass] = (),
        now: float,
    ) -> None:
        """Begin from the store. Every node counts as heard of now: silence before we listened means nothing.

        None is given anything before it has reported: what runs there is not known.
        """
        self.room = self._room_for(scores)
        self._note(scores)
        self.learnt = _classes(classes)
        for node in nodes:
            self.nodes[node.id] = node
            self.heard[node.id] = now
            self.room.add(node)
            if node.ready:
                self.unheard.add(node.id)
                self.room.close([node.id])
        self._measure()
        for job in jobs:
            self.keep(job)

    def is_news(self, score: GpuScore) -> bool:
        known = self.room.scores.of(score.job_class).get((score.node_id, score.gpu_index))
        return score.job_class in JOB_CLASSES and known != score.believed

    def rescore(self, scores: Sequence[GpuScore]) -> None:
        """Other scores for some GPUs: what is placed from now on goes by them."""
        self._note(scores)
        for job_class, by_gpu in _by_class(scores).items():
            known = self.room.scores.of(job_class)
            new = {gpu: score for gpu, score in by_gpu.items() if known.get(gpu) != score}
            if new:
                self.scored += 1
                self.room.rescore(job_class, new)

    def _note(self, scores: Iterable[GpuScore]) -> None:
        for score in scores:
            self.measured.setdefault(score.job_class, {})[score.node_id, score.gpu_index] = score

    def is_learnt_anew(self, one: WorkloadClass) -> bool:
        return one.job_class in JOB_CLASSES and self.learnt.get(one.workload) != one.job_class

    def learn(self, classes: Iterable[WorkloadClass], now: float) -> None:
        """Other classes for some workloads: who of them waits stands in another group, and all are placed by it."""
        new = {workload: name for workload, name in _classes(classes).items() if self.learnt.get(workload) != name}
        if not new:
            return
        self.scored += 1
        before, learnt = self.learnt, {**self.learnt, **new}
        self.learnt = dict(islice(learnt.items(), max(0, len(learnt) - LEARNT_MAX), None))
        for job in [job for job in self.jobs.values() if job.id in self.queue]:
            if class_of(job.spec, before) != class_of(job.spec, self.learnt):
                self.stand(job, now)

    def _room_for(self, scores: Iterable[GpuScore]) -> Room:
        return Room(Scores(_by_class(scores)), placer=self.policy.placing.placer, locality=self.locality)

    def _measure(self) -> None:
        self.pool_changes += 1
        self.holdings.shares.measure(self.nodes.values())

    def group(self, job_id: str) -> JobGroup:
        """Of a job that waits in the queue."""
        group = self.queue.group(job_id)
        assert isinstance(group, JobGroup)
        return group

    def keep(self, job: Job) -> None:
        """A job that is new here."""
        self.jobs[job.id] = job
        if job.state is _S.QUEUED:
            self._enqueue(job)
        elif job.state.holding:
            self._give(job, job.since, loaded=True)

    def see(self, report: NodeReported, now: float, *, sure: bool) -> None:
        """A report that is taken, of a node that is known; `sure`: it was sent under this leader."""
        self.heard[report.node_id] = now
        (self.reading_jobs.add if JOBS in report.reads else self.reading_jobs.discard)(report.node_id)
        if sure:
            self.unheard.discard(report.node_id)
        if report.leaving:
            self.leaving.add(report.node_id)
            self.room.close([report.node_id])
        else:
            self.leaving.discard(report.node_id)
            self.reopen(report.node_id)
        self.runs.see(report, sure=sure)
        self.look_for_strays(report.node_id)

    def forget(self, node_id: str) -> None:
        """A node that is lost: what it reported last is no longer so."""
        self.unheard.discard(node_id)
        self.leaving.discard(node_id)
        self.strays.pop(node_id, None)

    def look_for_strays(self, node_id: str) -> None:
        """What runs on a ready node and is no job's there keeps its GPUs from others."""
        before = self.occupied(node_id)
        found = self.runs.strays(node_id, self.jobs) if self.nodes[node_id].ready else ()
        if found:
            self.strays[node_id] = found
        else:
            self.strays.pop(node_id, None)
        if self.occupied(node_id) != before:
            self._put_in_room(self.nodes[node_id])

    def occupied(self, node_id: str) -> frozenset[int]:
        """The GPUs that strays have; all of a node that does not say which."""
        found: set[int] = set()
        for run in self.strays.get(node_id, ()):
            if run.state is not RunState.EXITED:
                everything = (gpu.index for gpu in self.nodes[node_id].capacity.gpus)
                found.update(everything if run.gpus is None else run.gpus)
        return frozenset(found)

    @property
    def living_strays(self) -> int:
        return sum(run.state is not RunState.EXITED for runs in self.strays.values() for run in runs)

    def has_living_stray(self, job_id: str) -> bool:
        return any(
            run.job_id == job_id and run.state is not RunState.EXITED and self._may_have(run, node_id)
            for node_id, runs in self.strays.items()
            for run in runs
        )

    def _may_have(self, run: RunSeen, node_id: str) -> bool:
        """Can it be a run of its job? A node that was never given the job is believed about its own GPUs alone."""
        job = self.jobs.get(run.job_id)
        return self.forgot_placements or job is None or job.may_have_run_on(node_id)

    def strays_by_job(self) -> dict[str, tuple[str, RunSeen]]:
        """Of each job that has strays one, with its node: one that lives before one that ended."""
        found: dict[str, tuple[str, RunSeen]] = {}
        for node_id, runs in sorted(self.strays.items()):
            for run in runs:
                if not self._may_have(run, node_id):
                    continue
                known = found.get(run.job_id)
                if known is None or (known[1].state is RunState.EXITED and run.state is not RunState.EXITED):
                    found[run.job_id] = (node_id, run)
        return found

    def change_node(self, node: Node, event: str, sentence: str, *, at: float, ask: int = 0) -> None:
        self.nodes[node.id] = node
        self._put_in_room(node)
        self._measure()
        self.node_changes.append(NodeChange(node, event, sentence, at, ask))

    def remove_node(self, node: Node, sentence: str, *, at: float) -> None:
        """A lost node, on which no job has a run, is no longer part of the pool."""
        del self.nodes[node.id], self.heard[node.id]
        self.room.remove(node.id)
        self.room.grown += 1
        self.desired.pop(node.id, None)
        self.hinted.discard(node.id)
        self.strays.pop(node.id, None)
        self.runs.forget(node.id)
        for scores in self.measured.values():
            for gpu in [gpu for gpu in scores if gpu[0] == node.id]:
                del scores[gpu]
        self._measure()
        self.node_changes.append(NodeChange(node, "removed", sentence, at))

    def reopen(self, node_id: str) -> None:
        """Let a node take work again, unless it is drained or lost."""
        node = self.nodes[node_id]
        if node.ready and not node.drained and not self.room.is_open(node_id):
            self.room.reopen([node_id])

    def not_stopped(self, job: Job) -> list[Allocation]:
        """The ranks that their nodes report as alive; none as long as one is neither gone nor reported."""
        assert job.placement is not None
        left = [allocation for allocation in job.placement.allocations if not self._gone(job, allocation)]
        return left if all(self.runs.alive(job, allocation) for allocation in left) else []

    def keep_place(self, job_id: str, allocations: tuple[Allocation, ...]) -> None:
        """Nobody else is given those GPUs, whoever has them now."""
        self.kept[job_id] = allocations
        self._keep_or_not(allocations)

    def let_place_go(self, job_id: str) -> None:
        self._keep_or_not(self.kept.pop(job_id))

    def _keep_or_not(self, allocations: Iterable[Allocation]) -> None:
        for node_id in sorted({allocation.node_id for allocation in allocations} & self.nodes.keys()):
            self._put_in_room(self.nodes[node_id])

    def _put_in_room(self, node: Node) -> None:
        held = [
            allocation
            for job in (self.jobs[job_id] for job_id in sorted(self.runs.jobs_on(node.id)))
            for allocation in (job.placement.allocations if job.placement else ())
            if allocation.node_id == node.id
        ]
        kept = {
            gpu
            for allocations in self.kept.values()
            for allocation in allocations
            if allocation.node_id == node.id
            for gpu in allocation.gpus
        }
        self.room.add(node, held, occupied=self.occupied(node.id), kept=frozenset(kept))
        if node.id in self.unheard or node.id in self.leaving:
            self.room.close([node.id])
        self.room.grown += 1

    def all_gone(self, job: Job) -> bool:
        assert job.placement is not None
        return all(self._gone(job, allocation) for allocation in job.placement.allocations)

    def _gone(self, job: Job, allocation: Allocation) -> bool:
        node = self.nodes.get(allocation.node_id)
        return node is None or not node.ready or self.runs.gone(job, allocation)

    def go(
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
        attained_seconds: float | None = None,
        attained_gpu_seconds: float | None = None,
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
            attained_seconds=attained_seconds,
            attained_gpu_seconds=attained_gpu_seconds,
        )
        change = self._decided[job.id, job.version] = changed(job, step)
        self._apply(job, change.after, now)
        return [step]

    def change_of(self, step: Step) -> JobChange:
        """What a step of this turn does to its job."""
        return self._decided[step.job_id, step.version]

    def begin_turn(self) -> None:
        """What was decided before is stored."""
        self._decided.clear()

    def instead(self, job_id: str, version: int, cause: Cause, now: float) -> list[Step]:
        """The store refused the step that was decided from this version of a job: what the job takes in its place.

        The job stops where this turn left it on its nodes, else it fails; a final one stays final.
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
        if before.state.holding and not job.state.holding:
            self._release(before)
        elif job.state is _S.STOPPING and before.state is not _S.STOPPING:
            self._undesire(before)
        if before.state.holding and job.state.holding:
            if job.placement != before.placement:
                self._resize(before, job)
            self.holdings.change(job, now)
        self.queue.remove(job.id)
        self.backing_off.discard(job.id)
        self.kept_out.discard(job.id)
        if job.state.final:
            self.jobs.pop(job.id, None)
            self.put_back.pop(job.id, None)
            self.unexplained.discard(job.id)
            return
        self.jobs[job.id] = job
        if job.state is _S.QUEUED:
            if before.state is not _S.QUEUED or job.priority != before.priority:
                self.unexplained.add(job.id)
            if job.not_before > now:
                self.backing_off.add(job.id)
            else:
                self.stand(job, now)
        elif before.state is _S.QUEUED:
            self._give(job, now, loaded=False)

    def _enqueue(self, job: Job) -> None:
        self.unexplained.add(job.id)
        if job.not_before > 0:
            self.backing_off.add(job.id)  # or did once: the next look will tell
        else:
            self.stand(job, job.since)

    def stand(self, job: Job, now: float) -> None:
        """It waits in the queue, where the order puts it now."""
        lasts = None if self.policy.backfill == "none" else job.spec.time_limit_seconds
        self.queue.add(
            standing_of(job, now, self.queue.order),
            JobGroup(shape_of(job.spec), class_of(job.spec, self.learnt), lasts),
        )

    def _give(self, job: Job, now: float, *, loaded: bool) -> None:
        """A job came to hold what its placement says."""
        assert job.placement is not None
        self.unexplained.discard(job.id)
        self.runs.hold(job, loaded=loaded)
        self.holdings.hold(job, now)
        self.ports.setdefault(job.placement.master_address, set()).update(ports_of(job))
        self.room.take_all(job.placement.allocations)
        self.put_back.pop(job.id, None)
        if job.state is not _S.STOPPING:
            self._desire(job)

    def _desire(self, job: Job) -> None:
        self.orders[job.id] = job_order(job, self.nodes)
        self.order_bytes[job.id] = order_bytes(job, self.orders[job.id])
        for node_id, orders in run_orders(job, self.nodes).items():
            of_node = self.desired.setdefault(node_id, {})
            if of_node.get(job.id) != orders:
                of_node[job.id] = orders
                self.hinted.add(node_id)

    def _resize(self, before: Job, job: Job) -> None:
        """A running job has other limits on the same GPUs."""
        assert before.placement is not None
        assert job.placement is not None
        for had, has in zip(before.placement.allocations, job.placement.allocations, strict=True):
            assert (had.rank, had.node_id, had.gpus) == (has.rank, has.node_id, has.gpus), f"{job.id} would move"
            if had != has:
                self.room.resize(had, has)
        self.holdings.resize(before, job)
        if job.state is not _S.STOPPING:
            self._desire(job)

    def _undesire(self, job: Job) -> None:
        assert job.placement is not None
        for allocation in job.placement.allocations:
            if self.desired.get(allocation.node_id, {}).pop(job.id, None) is not None:
                self.hinted.add(allocation.node_id)

    def _release(self, job: Job) -> None:
        assert job.placement is not None
        self._undesire(job)
        self.order_bytes.pop(job.id, None)
        self.orders.pop(job.id, None)
        self.runs.let_go(job)
        self.holdings.let_go(job)
        ports = self.ports[job.placement.master_address]
        ports.difference_update(ports_of(job))
        if not ports:
            del self.ports[job.placement.master_address]
        self.room.give_back_all(job.placement.allocations)
        for allocation in job.placement.allocations:
            if self.runs.alive(job, allocation):
                self.look_for_strays(allocation.node_id)

    def check(self) -> None:
        """Assert what must always hold."""
        held: dict[tuple[str, int], str] = {}
        for job in self.jobs.values():
            assert not job.state.final, f"{job.id} is final and still kept"
            assert (job.placement is not None) == job.state.holding, f"{job.id}: {job.state}, {job.placement}"
            waits = job.id in self.queue or job.id in self.backing_off or job.id in self.kept_out
            assert waits == (job.state is _S.QUEUED), f"{job.id}: {job.state} but waits is {waits}"
            for allocation in job.placement.allocations if job.placement else ():
                for gpu in allocation.gpus:
                    other = held.setdefault((allocation.node_id, gpu), job.id)
                    assert other == job.id, f"GPU {gpu} of {allocation.node_id}: {other} and {job.id}"
        for node_id, room in self.room.nodes.items():
            here = [
                allocation
                for job_id in self.runs.jobs_on(node_id)
                if (placement := self.jobs[job_id].placement) is not None
                for allocation in placement.allocations
                if allocation.node_id == node_id
            ]
            cpus = room.node.capacity.cpus - sum(allocation.cpus for allocation in here)
            assert abs(room.cpus - cpus) < CPU_DUST, f"{node_id}: {room.cpus} CPUs free, which are {cpus}"
            memory = room.node.capacity.memory - sum(allocation.memory for allocation in here)
            assert room.memory == memory, f"{node_id}: {room.memory} bytes free, which are {memory}"
            for gpu in room.gpus.whole:
                assert (node_id, gpu) not in held, f"GPU {gpu} of {node_id} is free and held by {held[node_id, gpu]}"
                assert gpu not in self.occupied(node_id), f"GPU {gpu} of {node_id} is free and occupied"
        keeps = [(one.node_id, gpu) for allocations in self.kept.values() for one in allocations for gpu in one.gpus]
        assert len(keeps) == len(set(keeps)), "a GPU is kept for two"
        for node_id, gpu in keeps:
            assert node_id not in self.room.nodes or gpu not in self.room.nodes[node_id].gpus.whole, (
                f"GPU {gpu} of {node_id} is free and kept"
            )


def _classes(classes: Iterable[WorkloadClass]) -> dict[str, str]:
    return {one.workload: one.job_class for one in classes if one.job_class in JOB_CLASSES}


def _by_class(scores: Iterable[GpuScore]) -> dict[str, dict[GpuKey, float]]:
    """For every class that a job may have, the most sensitive first; others are nobody's."""
    found: dict[str, dict[GpuKey, float]] = {job_class: {} for job_class in JOB_CLASSES}
    for score in scores:
        if score.job_class in found:
            found[score.job_class][score.node_id, score.gpu_index] = score.believed
    return found
