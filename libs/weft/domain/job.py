"""A job, its states, and the only steps that are legal between them.

The table `STEPS` is written three times on purpose: here, in the database's own `job_steps`, and as the diagram in
docs/job-states.md. A test holds the three against each other.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from msgspec import Struct, structs

from weft.domain.cause import CANCELS as CANCELS
from weft.domain.cause import HELD_FOR as HELD_FOR
from weft.domain.cause import Cause as Cause
from weft.domain.cause import CauseCode as CauseCode
from weft.domain.failure import FAILURES_KEPT, Failure, blamed_of, class_of_cause
from weft.domain.shares import ALL, WHOLE, Share, gpus_held
from weft.domain.spec import JobSpec


class JobState(StrEnum):
    QUEUED = "queued"  # waits for room; owner: scheduler
    PLACED = "placed"  # has its GPUs; its nodes have not been seen to start it
    STARTING = "starting"  # a node prepares it: image, volumes, container
    RUNNING = "running"  # every rank runs
    STOPPING = "stopping"  # told to stop; still holds its GPUs until its nodes say it is gone
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in FINAL

    @property
    def holding(self) -> bool:
        """Does a job in this state hold GPUs?"""
        return self in HOLDING


FINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
HOLDING = frozenset({JobState.PLACED, JobState.STARTING, JobState.RUNNING, JobState.STOPPING})


class JobEvent(StrEnum):
    """What can happen to a job; each is told on `weft.events.jobs.<event>`."""

    SUBMITTED = "submitted"
    WAITING = "waiting"  # why it waits is new
    REPRIORITISED = "reprioritised"
    TUNED = "tuned"  # has other CPUs, memory, network or shares of GPUs from now on, and goes on running
    UPDATED = "updated"  # should run another image, command or environment from now on: its replicas are replaced
    SCALED = "scaled"  # should have another size from now on; whether it gets it depends on room
    RESIZED = "resized"  # ranks joined, leave or have left; the others go on running
    ENTERED = "entered"  # a person entered one of its runs, or left it: a shell, a command, a connection
    NOTED = "noted"  # its node saw something that the job may not show itself
    RESTARTED = "restarted"  # begins anew with another size, in the place that was kept for it
    PLACED = "placed"
    STARTING = "starting"
    STARTED = "started"
    STOPPING = "stopping"
    REQUEUED = "requeued"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


_S, _E = JobState, JobEvent
STEPS: dict[tuple[JobState, JobEvent], JobState] = {
    (_S.QUEUED, _E.WAITING): _S.QUEUED,
    (_S.QUEUED, _E.REPRIORITISED): _S.QUEUED,
    (_S.QUEUED, _E.SCALED): _S.QUEUED,
    (_S.QUEUED, _E.UPDATED): _S.QUEUED,
    (_S.QUEUED, _E.PLACED): _S.PLACED,
    (_S.QUEUED, _E.CANCELLED): _S.CANCELLED,
    (_S.QUEUED, _E.FAILED): _S.FAILED,
    (_S.PLACED, _E.REPRIORITISED): _S.PLACED,
    (_S.PLACED, _E.SCALED): _S.PLACED,
    (_S.PLACED, _E.UPDATED): _S.PLACED,
    (_S.PLACED, _E.STARTING): _S.STARTING,
    (_S.PLACED, _E.STOPPING): _S.STOPPING,
    (_S.PLACED, _E.REQUEUED): _S.QUEUED,
    (_S.PLACED, _E.FAILED): _S.FAILED,
    (_S.STARTING, _E.REPRIORITISED): _S.STARTING,
    (_S.STARTING, _E.SCALED): _S.STARTING,
    (_S.STARTING, _E.UPDATED): _S.STARTING,
    (_S.STARTING, _E.ENTERED): _S.STARTING,
    (_S.STARTING, _E.STARTED): _S.RUNNING,
    (_S.STARTING, _E.STOPPING): _S.STOPPING,
    (_S.STARTING, _E.REQUEUED): _S.QUEUED,
    (_S.STARTING, _E.FAILED): _S.FAILED,
    (_S.RUNNING, _E.REPRIORITISED): _S.RUNNING,
    (_S.RUNNING, _E.TUNED): _S.RUNNING,
    (_S.RUNNING, _E.SCALED): _S.RUNNING,
    (_S.RUNNING, _E.UPDATED): _S.RUNNING,
    (_S.RUNNING, _E.RESIZED): _S.RUNNING,
    (_S.RUNNING, _E.ENTERED): _S.RUNNING,
    (_S.RUNNING, _E.NOTED): _S.RUNNING,
    (_S.RUNNING, _E.STOPPING): _S.STOPPING,
    (_S.RUNNING, _E.REQUEUED): _S.QUEUED,
    (_S.RUNNING, _E.SUCCEEDED): _S.SUCCEEDED,
    (_S.RUNNING, _E.FAILED): _S.FAILED,
    (_S.STOPPING, _E.REPRIORITISED): _S.STOPPING,
    (_S.STOPPING, _E.SCALED): _S.STOPPING,
    (_S.STOPPING, _E.ENTERED): _S.STOPPING,
    (_S.STOPPING, _E.RESTARTED): _S.PLACED,
    (_S.STOPPING, _E.STOPPING): _S.STOPPING,
    (_S.STOPPING, _E.REQUEUED): _S.QUEUED,
    (_S.STOPPING, _E.SUCCEEDED): _S.SUCCEEDED,
    (_S.STOPPING, _E.FAILED): _S.FAILED,
    (_S.STOPPING, _E.CANCELLED): _S.CANCELLED,
    (_S.SUCCEEDED, _E.REQUEUED): _S.QUEUED,
    (_S.FAILED, _E.REQUEUED): _S.QUEUED,
    (_S.CANCELLED, _E.REQUEUED): _S.QUEUED,
}


NEW_EPOCH = frozenset({JobEvent.REQUEUED, JobEvent.RESTARTED})
PLACES = frozenset({JobEvent.PLACED, JobEvent.RESIZED, JobEvent.RESTARTED})
"""The events with which a job comes onto nodes."""


class Allocation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one rank holds: GPUs by index on one node, CPU cores, memory in bytes.

    With a `share` it holds that part of its one GPU, else all of each.
    """

    rank: int
    role: str
    node_id: str
    gpus: tuple[int, ...] = ()
    cpus: float
    memory: int
    egress: int | None = None  # bytes per second that it may send; None: no limit
    extra: bool = False  # beyond the core of a job that resizes live: it may come and go alone
    leaving: bool = False  # told to stop; it holds its GPUs until its node says that it is gone
    share: Share | None = None
    revision: int = 0  # of a service: what it runs, see `Revision`


class Revision(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the replicas of a service run, where it differs from the specification. Number 0 is the specification.

    None: as in the specification. `at`: since when it is wanted. `back_to`: the revision that comes back if no replica
    of this one becomes ready; None once one did. Image, command and environment are its text, which never changes.
    """

    number: int
    image: str | None = None
    command: tuple[str, ...] | None = None
    env: dict[str, str] | None = None
    at: float = 0.0
    back_to: int | None = None

    @property
    def text(self) -> dict[str, Any]:
        """The fields that may be large. The store keeps them once, by job and number."""
        return {name: value for name in TEXT if (value := getattr(self, name)) is not None}

    @property
    def reference(self) -> "Revision":
        """The revision without its text."""
        return Revision(number=self.number, at=self.at, back_to=self.back_to)


TEXT = ("image", "command", "env")
REVISIONS_MAX = 32  # of one service that still run
REVISIONS_BYTES_MAX = 4 << 20  # of all of them together


class Loan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a service took from another job: `gpus` of it (a share is a part of 1), with `ranks` of its ranks; 0: the
    whole job gave way, and waits. `rank`: the replica of the service that has it."""

    lender: str
    rank: int
    gpus: float
    ranks: int = 0
    since: float = 0.0


class Placement(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where every rank of a job is, and where rank 0 listens for the others."""

    allocations: tuple[Allocation, ...]
    master_address: str = "127.0.0.1"
    master_port: int = 0
    why: str = ""  # why there, as a sentence
    numbers: dict[str, float] = {}  # how fast it is there, as far as scores tell
    ranks_used: int = 0  # rank numbers below this one were given in this epoch, and are not given again
    changes: int = 0  # how often ranks joined or left in this epoch

    @property
    def fresh_rank(self) -> int:
        """The first rank number that no replica of this epoch has had."""
        return max(self.ranks_used, max((allocation.rank for allocation in self.allocations), default=-1) + 1)

    @property
    def staying(self) -> tuple[Allocation, ...]:
        """The ranks that are not about to leave."""
        return tuple(allocation for allocation in self.allocations if not allocation.leaving)


class Job(Struct, frozen=True, kw_only=True):
    """One job as the store has it. Times are seconds since the epoch, UTC."""

    id: str
    tenant: str
    spec: JobSpec
    seq: int  # the order of submission
    submitted_at: float
    state: JobState = JobState.QUEUED
    epoch: int = 0
    version: int = 1
    priority: int = 0
    attempts: int = 0  # failed tries so far
    not_before: float = 0.0
    since: float = 0.0  # when it came into this state
    stopping_for: Cause | None = None
    waiting_for: Cause | None = None
    placement: Placement | None = None
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    progress: dict[str, float] = {}
    placed_at: float | None = None  # since when it holds its GPUs
    attained_seconds: float = 0.0  # for how long it held them in its epochs before, since an order last forgot that
    attained_gpu_seconds: float = 0.0  # the same, each second counted once for every GPU that it held
    nodes: tuple[str, ...] = ()  # every node it was ever placed on
    size: dict[str, int] = {}  # replicas by role that it should have; empty: as its specification wants
    gpu_model: str = ""  # the model of GPUs that the partition planner chose for it; empty: it chose none
    worked: dict[str, int] = {}  # the size that it ran with before the last change; empty: it never changed
    sized_at: float | None = None  # since when it holds as many GPUs as now, if they changed since it was placed
    next_placement: Placement | None = None  # where it restarts once it has stopped: held for it until then
    revisions: tuple[Revision, ...] = ()  # of a service, those after 0 that are wanted, still run or may come back
    loans: tuple[Loan, ...] = ()  # of a service: what it has of other jobs
    failures: tuple[Failure, ...] = ()  # its last ones, the newest at the end
    hung_since: float | None = None  # since when it has counted as hung
    submitter: str = ""  # the name of the person who submitted it; empty: a token did

    @property
    def revision(self) -> int:
        """The number of the revision that all replicas of a service should run."""
        return self.revisions[-1].number if self.revisions else 0

    @property
    def pool(self) -> str:
        return self.spec.pool

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def granted(self) -> dict[str, int]:
        """How many replicas of each role the job has now, without those that leave: between `min` and `max` of each,
        or none at all."""
        held = self.placement.staying if self.placement is not None else ()
        return {role: sum(allocation.role == role for allocation in held) for role in self.spec.roles}

    @property
    def wanted(self) -> dict[str, int]:
        """How many replicas of each role the job should have."""
        return {name: self.size.get(name, role.replicas.want) for name, role in self.spec.roles.items()}

    @property
    def held(self) -> tuple[Allocation, ...]:
        """All allocations of the job: the place of its ranks, and those kept for its next epoch."""
        if self.placement is None:
            return ()
        if self.next_placement is None:
            return self.placement.allocations
        return (*self.placement.allocations, *beside(self.placement, self.next_placement))

    @property
    def gpus_held(self) -> float:
        return sum(gpus_held(allocation.gpus, allocation.share) for allocation in self.held)

    @property
    def is_held(self) -> bool:
        """Does it wait beside the queue, for other jobs and not for room?"""
        return self.state is JobState.QUEUED and self.waiting_for is not None and self.waiting_for.code in HELD_FOR

    def may_have_run_on(self, node_id: str) -> bool:
        """Return True if the job is known to have been placed on this node."""
        return node_id in self.nodes

    @property
    def held_since(self) -> float:
        """Since when it holds GPUs."""
        return self.placed_at or self.started_at or self.since

    def gpu_seconds(self, at: float) -> float:
        """GPU-seconds that it has had until `at`, those that it holds now among them."""
        if not self.state.holding:
            return self.attained_gpu_seconds
        since = self.held_since if self.sized_at is None else self.sized_at
        return round(self.attained_gpu_seconds + max(0.0, at - since) * self.gpus_held, 6)


def beside(placement: Placement, following: Placement) -> tuple[Allocation, ...]:
    """What `following` needs beside `placement`: its ranks with those of their GPUs that `placement` does not have.

    Of a GPU that both have a part of, what `following` has more of it. CPUs and memory count in full: the ranks of both
    epochs may have different limits. A rank without GPUs that stays where a rank of the same role is now needs nothing
    more.
    """
    has: dict[tuple[str, int], Share] = {}
    spare: dict[tuple[str, str], int] = {}
    for allocation in placement.allocations:
        for gpu in allocation.gpus:
            _add(has, (allocation.node_id, gpu), allocation.share or ALL)
        if not allocation.gpus:
            spare[allocation.node_id, allocation.role] = spare.get((allocation.node_id, allocation.role), 0) + 1
    more: list[Allocation] = []
    for allocation in following.allocations:
        if allocation.gpus:
            more += _beyond(allocation, has)
        elif spare.get((allocation.node_id, allocation.role), 0) > 0:
            spare[allocation.node_id, allocation.role] -= 1
        else:
            more.append(allocation)
    return tuple(more)


def _beyond(allocation: Allocation, has: dict[tuple[str, int], Share]) -> Iterator[Allocation]:
    """The part of the rank's request that `has` does not cover; the rest is taken from `has`."""
    wanted = allocation.share or Share(request=WHOLE, memory=0)
    gpus = tuple(gpu for gpu in allocation.gpus if (allocation.node_id, gpu) not in has)
    if gpus:
        yield structs.replace(allocation, gpus=gpus)
    for gpu in allocation.gpus:
        if gpu in gpus:
            continue
        there = has[allocation.node_id, gpu]
        share = structs.replace(
            wanted,
            request=max(0, wanted.request - there.request),
            memory=max(0, wanted.memory - there.memory),
        )
        has[allocation.node_id, gpu] = structs.replace(
            there,
            request=max(0, there.request - wanted.request),
            memory=max(0, there.memory - wanted.memory),
        )
        if share.request or share.memory:
            yield structs.replace(allocation, gpus=(gpu,), share=share)


def _add(has: dict[tuple[str, int], Share], gpu: tuple[str, int], share: Share) -> None:
    if gpu in has:
        there = has[gpu]
        share = structs.replace(there, request=there.request + share.request, memory=there.memory + share.memory)
    has[gpu] = share


class Step(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One guarded step: taken only if the job is still at `version`; recorded with its cause in the same statement.

    `None` leaves a field as it is. `epoch` grows by one exactly when the job goes back to the queue.
    """

    job_id: str
    version: int
    event: JobEvent
    to: JobState
    at: float
    cause: Cause
    epoch: int  # after the step
    priority: int | None = None
    attempts: int | None = None
    not_before: float | None = None
    placement: Placement | None = None  # given with `placed`, `tuned`, `resized` and `restarted`
    next_placement: Placement | None = None  # given with `stopping`, of a job that restarts with another size
    size: dict[str, int] | None = None
    gpu_model: str | None = None
    worked: dict[str, int] | None = None
    revisions: tuple[Revision, ...] | None = None
    loans: tuple[Loan, ...] | None = None
    exit_code: int | None = None
    progress: dict[str, float] | None = None
    ask: int = 0  # the ask that this step does
    attained_seconds: float | None = None  # 0 where what it has had is forgotten: it waited too long
    attained_gpu_seconds: float | None = None  # likewise


class JobChange(Struct, frozen=True):
    """A step, and its job before and after it: what a store is given to write."""

    before: Job
    step: Step
    after: Job


def changed(job: Job, step: Step) -> JobChange:
    return JobChange(job, step, after(job, step))


def after(job: Job, step: Step) -> Job:
    """The job after the step: the law of steps, which every store writes as it is. Asserts that the step is legal."""
    assert step.version == job.version, f"{job.id}: step for version {step.version} of {job.version}"
    assert STEPS.get((job.state, step.event)) is step.to, f"{job.id}: {step.event} from {job.state} to {step.to}"
    anew = step.event in NEW_EPOCH
    assert step.epoch == job.epoch + anew, f"{job.id}: epoch {step.epoch} after {job.epoch} by {step.event}"
    placement = None if step.to is JobState.QUEUED else step.placement or job.placement
    assert placement is not None or not step.to.holding, f"{job.id}: {step.to} without a placement"
    exit_code = job.exit_code if step.exit_code is None else step.exit_code
    waiting_for = step.cause if step.event is JobEvent.WAITING else None
    stopping_for = step.cause if step.event is JobEvent.STOPPING else job.stopping_for
    at = round(step.at, 6)  # times are kept to the microsecond
    placed = step.event in (JobEvent.PLACED, JobEvent.RESTARTED)
    over = job.state.holding and (anew or not step.to.holding)
    held = max(0.0, at - job.held_since) if over else 0.0
    next_placement = step.next_placement if step.event is JobEvent.STOPPING else job.next_placement
    next_placement = next_placement if step.to is JobState.STOPPING else None
    other_gpus = step.event is JobEvent.RESIZED or next_placement is not job.next_placement or _reshared(job, step)
    recounted = over or (job.state.holding and other_gpus)
    attained = job.attained_seconds if step.attained_seconds is None else step.attained_seconds
    attained_gpus = job.gpu_seconds(at) if recounted else job.attained_gpu_seconds
    if step.attained_gpu_seconds is not None:
        attained_gpus = step.attained_gpu_seconds
    keeps_its_reason = step.event in (JobEvent.REPRIORITISED, JobEvent.SCALED, JobEvent.UPDATED)
    return structs.replace(
        job,
        state=step.to,
        version=job.version + 1,
        epoch=step.epoch,
        since=job.since if step.to is job.state else at,
        priority=job.priority if step.priority is None else step.priority,
        attempts=job.attempts if step.attempts is None else step.attempts,
        not_before=job.not_before if step.not_before is None else round(step.not_before, 6),
        placement=placement,
        stopping_for=stopping_for if step.to is JobState.STOPPING else None,
        waiting_for=job.waiting_for if keeps_its_reason else waiting_for,
        started_at=at if step.event is JobEvent.STARTED else None if anew else job.started_at,
        ended_at=at if step.to.final else None,
        exit_code=None if placed else exit_code,
        progress=job.progress if step.progress is None else step.progress,
        placed_at=(at if placed else job.placed_at) if step.to.holding else None,
        attained_seconds=round(attained + held, 6),
        attained_gpu_seconds=attained_gpus,
        nodes=_nodes(job, step),
        size=job.size if step.size is None else step.size,
        gpu_model=job.gpu_model if step.gpu_model is None else step.gpu_model,
        worked=_worked(job, step),
        sized_at=_sized_at(job, step, at, recounted=recounted, placed=placed),
        next_placement=next_placement,
        revisions=job.revisions if step.revisions is None else step.revisions,
        loans=_loans(job, step),
        failures=_failures(job, step),
        hung_since=_hung_since(job, step, at),
    )


def _hung_since(job: Job, step: Step, at: float) -> float | None:
    if step.to is not JobState.RUNNING or step.event is not JobEvent.NOTED:
        return job.hung_since if step.to is JobState.RUNNING else None
    if step.cause.code is CauseCode.HUNG:
        return at
    return None if step.cause.code is CauseCode.WENT_ON else job.hung_since


def _failures(job: Job, step: Step) -> tuple[Failure, ...]:
    """The failures of a job with that of the try that the step ends, if it failed."""
    ends = job.state.holding and step.event in (JobEvent.REQUEUED, JobEvent.FAILED)
    kind = class_of_cause(step.cause) if ends else None
    if kind is None or job.placement is None:
        return job.failures
    progress = job.progress if step.progress is None else step.progress
    nodes = blamed_of(step.cause, {each.rank: each.node_id for each in job.placement.allocations})
    failure = Failure(kind=kind, nodes=nodes, step=progress.get("step"))
    return (*job.failures, failure)[-FAILURES_KEPT:]


def _loans(job: Job, step: Step) -> tuple[Loan, ...]:
    """The loans of a job end with the epoch for which it took them."""
    if step.loans is not None:
        return step.loans
    return job.loans if step.to.holding and step.event not in NEW_EPOCH else ()


def _reshared(job: Job, step: Step) -> bool:
    """Do ranks have other shares of their GPUs than before?"""
    if step.event is not JobEvent.TUNED or job.placement is None or step.placement is None:
        return False
    before, after = job.placement.allocations, step.placement.allocations
    return [one.share for one in before] != [one.share for one in after]


def _worked(job: Job, step: Step) -> dict[str, int]:
    if step.worked is not None:
        return step.worked
    return {} if step.event is JobEvent.REQUEUED else job.worked


def _sized_at(job: Job, step: Step, at: float, *, recounted: bool, placed: bool) -> float | None:
    if placed or not step.to.holding:
        return None
    return at if recounted else job.sized_at


def _nodes(job: Job, step: Step) -> tuple[str, ...]:
    if step.event not in PLACES or step.placement is None:
        return job.nodes
    return tuple(sorted({*job.nodes, *(allocation.node_id for allocation in step.placement.allocations)}))
