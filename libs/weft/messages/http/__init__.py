"""The gateway's answers over HTTP: every view of a job, a node, an event, and the one shape of an error.

The OpenAPI document is generated from these types. Fields are added with a default, never renamed or removed.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct

from weft.domain.arrays import Indices
from weft.domain.cluster import Capacity, Drain
from weft.domain.dependencies import After
from weft.domain.health import HealthRecord
from weft.domain.job import Cause, JobState, Loan, Placement
from weft.domain.shares import Share, is_thousandths
from weft.domain.sizes import RoleSize
from weft.domain.spec import REPLICAS_MAX, ROLES_MAX, JobSpec, Kind, ResizeHow, Token
from weft.domain.topology import Topology
from weft.messages.asks import AskKind
from weft.messages.events import RevisionTold
from weft.messages.history import Record
from weft.messages.http.services import ServiceView
from weft.messages.nodes import Pace
from weft.messages.signals import CurvePoint, Finding, GpuSample, HostSample, RankVerdict, RunSample

PRIORITY_MAX = 1000

Seconds = Annotated[float, Meta(description="Seconds since 1970-01-01 UTC.")]
Bytes = Annotated[int, Meta(description="In bytes.")]
Submitter = Annotated[str, Meta(description="Name of the person who submitted it; empty: a token was used.")]


# what was submitted and asked


class Submitted(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The job is stored and will not be lost. `created` is false if the same key had submitted it before.

    `notes`: sentences for the user about how the job will be treated.
    """

    id: str
    name: str
    created: bool
    notes: tuple[str, ...] = ()
    elements: Annotated[int, Meta(description="Of an array: how many jobs it has; `id` is the array's.")] = 0
    next_run_at: Annotated[
        float | None, Meta(description="Of a schedule: when its next run is due; `id` is the schedule's.")
    ] = None


class Checked(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The specification would be taken now; nothing is stored. `spec`: as Weft reads it. `notes`: as in `Submitted`.
    `elements`: how many jobs the array would have, if it is one."""

    spec: JobSpec
    notes: tuple[str, ...] = ()
    elements: int = 0


class Accepted(Struct, frozen=True, kw_only=True):
    """The ask is stored, and the scheduler will do it; `state` is the job's or node's at the time."""

    id: str
    ask: AskKind
    state: str


class ArrayView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An array as one: how many of its elements that are kept are in each state. Its elements' ids are `j-…-INDEX`.

    `waiting_for`: why one of those that wait does. `started_at`: when the first of them started; `ended_at`: when the
    last ended, once all are over.
    """

    id: str
    name: str
    tenant: str
    kind: Kind
    pool: str
    elements: int
    states: dict[str, int]
    at_once: int | None = None
    gpus: Annotated[int | float, Meta(description="GPUs that one element asks for.")] = 0
    priority: int = 0
    seq: int = 0
    submitted_at: Seconds
    submitter: Submitter = ""
    started_at: Seconds | None = None
    ended_at: Seconds | None = None
    waiting_for: Cause | None = None
    after: tuple[After, ...] = ()

    @property
    def over(self) -> bool:
        return all(JobState(state).final for state in self.states)


class ArraysView(Struct, frozen=True, kw_only=True):
    """The newest first."""

    arrays: tuple[ArrayView, ...]


class ArrayAsked(Struct, frozen=True, kw_only=True):
    """Asks for so many elements are stored, and the scheduler will do them."""

    id: str
    ask: AskKind
    elements: int


class JobsAsked(Struct, frozen=True, kw_only=True):
    """Asks for `jobs` jobs are stored, and the scheduler will do them. `more`: another request may find more."""

    ask: AskKind
    jobs: int
    more: bool = False


class ElementsWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of which elements; without: of all. `failed`: only of those that failed (for a requeue)."""

    indices: Indices | None = None
    failed: bool = False


class PriorityWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    priority: Annotated[int, Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)]


class SizeWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The size that a job should have from now on: replicas by role. A role that is not named stays as it is."""

    size: Annotated[dict[Token, Annotated[int, Meta(ge=0, le=REPLICAS_MAX)]], Meta(min_length=1, max_length=ROLES_MAX)]


Part = Annotated[float, Meta(gt=0, le=1, description="A part of a GPU's time, in thousandths at the finest.")]


class ShareWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The share of a GPU that each rank of a running job should have from now on; a part that is not given stays as it
    is. `role`: of the ranks of that role, if several roles have shares."""

    request: Part | None = None
    limit: Part | None = None
    role: Token | None = None

    def __post_init__(self) -> None:
        if self.request is None and self.limit is None:
            raise ValueError("set request or limit")
        if self.request is not None and self.limit is not None and self.limit < self.request:
            raise ValueError(f"limit {self.limit} is less than request {self.request}")
        for name, part in (("request", self.request), ("limit", self.limit)):
            if part is not None and not is_thousandths(part):
                raise ValueError(f"{name} {part} is finer than a thousandth of a GPU")


class FieldError(Struct, frozen=True, kw_only=True):
    """`field` is the place in the request (empty: all of it), `reason` is why, as a sentence."""

    field: str
    reason: str


class ErrorDetail(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first error; `errors` has all of them if there are several. `message`: of a router the reason again, where
    clients of OpenAI's API look for it."""

    field: str
    reason: str
    status: int = 0
    errors: tuple[FieldError, ...] = ()
    message: str = ""


class ErrorView(Struct, frozen=True, kw_only=True):
    """An error, as RFC 9457 has problems (`application/problem+json`), with `error` beside: the field and the reason.
    `type` is always `about:blank`: `title` is then the phrase of the status. `detail`: the field and the reason as one
    sentence."""

    error: ErrorDetail
    type: str = "about:blank"
    title: str = ""
    status: int = 0
    detail: str = ""


# jobs


class LimitsView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits that one rank asked for. `egress` in bytes per second; none: no limit."""

    cpus: float
    memory: Bytes
    egress: int | None = None


class RunView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rank of a job now. `progress`, `pace` and `use` are its newest, if there are any.

    `cpus`, `memory` and `egress` (bytes per second) are its present limits; `asked` are those that it asked for, if it
    was tuned since. `disbelieved`: how many values of its progress made no sense. `extra`: it may come and
    go while the others run. `leaving`: it was told to stop, and the job goes on without it. `share`: what it has of its
    one GPU, if not all of it. `revision`: of a service, what it runs.
    """

    rank: int
    role: str
    node_id: str
    gpus: tuple[int, ...] = ()
    cpus: float = 0.0
    memory: Bytes = 0
    progress: dict[str, float] = {}
    use: RunSample | None = None
    egress: int | None = None
    asked: LimitsView | None = None
    pace: Pace | None = None
    disbelieved: int = 0
    extra: bool = False
    leaving: bool = False
    share: Share | None = None
    revision: int = 0


class JobView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job. `spec`, `placement`, `runs`, `verdicts`, `findings` and `curve` are in the view of one job alone.

    `gpus` and `replicas` are those that it holds, or held last; while it waits, those that it wants. `progress` is that
    of the lowest rank that reported any. `ended_for`: why it failed or was cancelled; of a failure, its number `rank`
    is the rank that failed first, and `exit_code` the status of that rank. `held_seconds`: how long it held its GPUs
    in its earlier epochs. `verdicts`: what holds it back, by the last verdicts on the whole job (rank -1) and on each
    rank. `findings`: what the last review of its pool proposes for it. `curve`: its measured speed, by its replicas and
    CPUs. `size`: by role, and `resize`: how it takes another size while it runs; in lists both are left out of jobs
    that have one size only.
    `service`: of a job that serves requests. `hung_since`: since when a running job has counted as hung.
    """

    id: str
    name: str
    tenant: str
    kind: Kind
    pool: str
    state: JobState
    epoch: int
    version: int
    priority: int
    preemptible: bool
    gpus: int | float  # a share counts as the part of one GPU that it is promised
    replicas: int
    seq: int
    submitted_at: Seconds
    submitter: Submitter = ""
    since: Seconds
    started_at: Seconds | None = None
    ended_at: Seconds | None = None
    not_before: Seconds | None = None
    attempts: int = 0
    exit_code: int | None = None
    waiting_for: Cause | None = None
    stopping_for: Cause | None = None
    nodes: tuple[str, ...] = ()
    progress: dict[str, float] = {}
    placement: Placement | None = None
    runs: tuple[RunView, ...] = ()
    spec: JobSpec | None = None
    verdicts: tuple[RankVerdict, ...] = ()
    curve: tuple[CurvePoint, ...] = ()
    ended_for: Cause | None = None
    held_seconds: float = 0.0
    findings: tuple[Finding, ...] = ()
    size: dict[str, RoleSize] = {}
    resize: ResizeHow | None = None
    service: ServiceView | None = None
    hung_since: Seconds | None = None


class JobsView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Jobs, the newest first. `before` is the parameter for the next page; none: this was the last."""

    jobs: tuple[JobView, ...]
    before: int | None = None


# events


class EventData(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The data of an event: of a job (with `job_id`) or of a node (with `node_id`), after the step."""

    version: int
    pool: str
    job_id: str = ""
    name: str = ""
    tenant: str = ""
    state: str = ""
    epoch: int = 0
    priority: int = 0
    cause: Cause | None = None
    placement: Placement | None = None
    exit_code: int | None = None
    progress: dict[str, float] = {}
    attempts: int | None = None
    not_before: Seconds | None = None
    size: dict[str, int] | None = None
    gpu_model: str | None = None
    worked: dict[str, int] | None = None
    next_placement: Placement | None = None
    revisions: tuple[RevisionTold, ...] | None = None
    loans: tuple[Loan, ...] | None = None
    node_id: str = ""
    address: str = ""
    ready: bool | None = None
    drained: bool | None = None
    runtime: str = ""
    capacity: Capacity | None = None
    sentence: str = ""


class EventView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event as CloudEvents 1.0 has it. `cursor` is the place to go on from: `after=`, or `Last-Event-ID`."""

    specversion: str
    id: str
    source: str
    type: str
    subject: str
    time: str
    datacontenttype: str
    data: EventData
    cursor: str = ""


# nodes and the cluster


class GpuHeldBy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The run that holds a GPU, or a share of it. Of another tenant's job only its id and share are shown. `used`: the
    part of the GPU's time, 0–1, that the holder of a share used lately, if its node knows."""

    job_id: str
    name: str = ""
    tenant: str = ""
    epoch: int = 0
    rank: int = 0
    share: Share | None = None
    used: float | None = None


class GpuScoreView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How fast a GPU is for a class of jobs: 1.0 is typical, 1.2 takes a fifth longer.

    `believed` is the score for placement: nearer to 1 the lower the `confidence` (0 to 1). `source`: benchmark,
    jobs, shares, profile or assumed. `quarantined_until`: it turned slow all at once, and counts as slow until then.
    """

    gpu_index: int
    job_class: str
    score: float
    believed: float
    confidence: float
    samples: int = 0
    age_seconds: float | None = None
    source: str = ""
    quarantined_until: Seconds | None = None


class GpuView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU. An emulated one is no hardware. `use` is its newest sample, if there is one: of its processes, those of
    jobs that the caller may see. `node_id`, `pool` and `scores` are in lists of GPUs only. `sharing`: all who hold a
    share of it, the largest first; `held_by` is then the first of them. `health`: if the GPU was ever sick.
    `unused_seconds`: for so long it has been held and not used."""

    index: int
    uuid: str
    model: str
    memory: Bytes
    emulated: bool = False
    held_by: GpuHeldBy | None = None
    sharing: tuple[GpuHeldBy, ...] = ()
    use: GpuSample | None = None
    node_id: str = ""
    pool: str = ""
    scores: tuple[GpuScoreView, ...] = ()
    health: HealthRecord | None = None
    unused_seconds: float | None = None


class GpusView(Struct, frozen=True, kw_only=True):
    gpus: tuple[GpuView, ...]


class VolumeView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A volume that a node offers to jobs by its name."""

    name: str
    read_only: bool = False


class NodeView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node: its capacity, the part that jobs hold, and its live use if it has recent telemetry.

    `slowest`: the score of the GPU that is slowest for some class, in lists of nodes, if any score is known.
    `silent_seconds`: for how long it has not reported, if that is longer than usual and it does not count as lost.
    `volumes`: those that it offers to the reader's tenant; administrators see all.
    `health`: the state of the node itself, if it was ever sick. `spare`: it is kept for gangs whose hardware failed.
    `topology`: the links between its GPUs; None: not known, so that all of them count as equally near. `drain`: why,
    and until when, it takes no new work, if somebody said so. `labels`: by name, for `where`; `taints`: a job that
    does not tolerate them starts not there.
    """

    id: str
    pool: str
    address: str
    runtime: str
    ready: bool
    drained: bool
    seen_at: Seconds
    cpus: float
    cpus_allocated: float
    memory: Bytes
    memory_allocated: Bytes
    gpus: tuple[GpuView, ...] = ()
    not_enforced: tuple[str, ...] = ()
    use: HostSample | None = None
    sampled_at: Seconds | None = None
    slowest: GpuScoreView | None = None
    silent_seconds: float = 0.0
    volumes: tuple[VolumeView, ...] = ()
    health: HealthRecord | None = None
    topology: Topology | None = None
    spare: bool = False
    drain: Drain | None = None
    labels: dict[str, str] = {}
    taints: dict[str, str] = {}


class NodesView(Struct, frozen=True, kw_only=True):
    nodes: tuple[NodeView, ...]


class Totals(Struct, frozen=True, kw_only=True):
    nodes: int
    nodes_ready: int
    gpus: int
    gpus_emulated: int
    gpus_held: int
    cpus: float
    cpus_allocated: float
    memory: Bytes
    memory_allocated: Bytes


class ClusterView(Struct, frozen=True, kw_only=True):
    """The whole cluster at one time. Its jobs are those that are not over and that the caller may see.

    `states` counts them by state, `waiting` those in the queue by the code of their cause; `running` (those that hold
    resources) and `queued` show the first of them, in order. `version`: the version of the gateway that answers.
    """

    at: Seconds
    version: str = ""
    totals: Totals
    nodes: tuple[NodeView, ...]
    states: dict[str, int]
    waiting: dict[str, int]
    running: tuple[JobView, ...]
    queued: tuple[JobView, ...]
    findings: tuple[Finding, ...] = ()


class HistoryView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Part of a pool's history, in order. `after` is the parameter for the next part; none: this was the last."""

    pool: str
    records: tuple[Record, ...]
    after: str = ""


class SpecificationsView(Struct, frozen=True, kw_only=True):
    """The specifications of jobs as they were submitted, by id. Deleted jobs are left out; so are jobs behind the last
    one here in the order of ids: request those again.
    """

    specifications: dict[str, JobSpec]


class Health(Struct, frozen=True, kw_only=True):
    """`version`: the version of the gateway that answers."""

    ok: bool
    version: str
    detail: dict[str, Any] = {}
