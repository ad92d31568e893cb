"""The messages between a node and the control plane: what the node sees, and what it should run."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta, Struct, field

from weft.domain.cluster import GPUS_MAX, Capacity
from weft.domain.labels import Labels
from weft.domain.shares import Share
from weft.domain.spec import ResizeSignal, StopSignal, Volume
from weft.messages import Message
from weft.messages.bounds import (
    PROGRESS_NAMES_MAX,
    RUNS_MAX,
    Count,
    Epoch,
    ExitCode,
    Finite,
    GpuIndex,
    JobId,
    LeaseNumber,
    Name,
    Part,
    Port,
    Progress,
    Rank,
    Text,
    Time,
    Token,
    Word,
)

GpuIndexes = Annotated[tuple[GpuIndex, ...], Meta(max_length=GPUS_MAX)]


class RunState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"


class EndReason(StrEnum):
    """Why a run ended, as its node saw it."""

    EXIT = "exit"  # by itself, with `exit_code`
    STOPPED = "stopped"  # the node ended it, because it was no longer desired; `exit_code` may be 0
    OOM = "oom"  # killed for memory
    FENCED = "fenced"  # the node ended it, because it could not reach the control plane; likewise
    START_FAILED = "start-failed"  # never ran: `detail` has the reason
    PORT_TAKEN = "port-taken"  # never ran: something else listens where rank 0 should; another epoch has another port
    LOST = "lost"  # it is gone and left no exit status


NOT_UPLOADED = 74  # the exit status of a run whose outputs were given up, by that of EX_IOERR
NEVER_RAN = frozenset({EndReason.START_FAILED, EndReason.PORT_TAKEN})


class Leader(Struct, frozen=True, kw_only=True):
    """The leader that answered, and how far its lease was renewed: (`epoch`, `seq`) grows, unless the store goes
    back."""

    pool: Word
    epoch: LeaseNumber
    holder: Word
    seq: LeaseNumber


NOTED_MAX = 4


class Noted(Struct, frozen=True, kw_only=True):
    """Something that the node saw of a run and that the run may not show itself. `code`: a `CauseCode`, each once."""

    code: Word
    sentence: Text


class RunSeen(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run (one rank of one epoch of a job) as its node sees it. Times are seconds since the epoch, UTC."""

    job_id: JobId
    epoch: Epoch
    rank: Rank
    state: RunState
    started_at: Time | None = None
    ended_at: Time | None = None
    exit_code: ExitCode | None = None  # 128 + N for signal N
    reason: EndReason | None = None  # with `exited`
    detail: Text = ""
    progress: Progress = {}
    gpus: GpuIndexes | None = None  # those that a live run holds; None: not reported
    port: Port | None = None  # of a run that serves requests: where it listens, at the node's address
    ready: bool | None = None  # of a run that serves requests: does it take them? None: no such run, or not known
    not_applied: Text = ""  # which of its order's limits a live run could not be given so far, and why
    # With `stopped`: because it used its GPU outside its share, in a strict pool or on a node that lets no run do that.
    uncontrolled: bool = False
    # With `start-failed`: another try on this node would end the same way, such as where its command is missing.
    for_good: bool = False
    noted: Annotated[tuple[Noted, ...], Meta(max_length=NOTED_MAX)] = ()
    timed_out: bool = False  # with `exit`: its last lines show that it waited for other ranks in vain
    # The time without output, progress or another use of its GPUs, in whole minutes; and that use of them.
    still_seconds: Count = 0
    still_use: Part = 0.0
    idle_seconds: Count = 0  # the time for which it has used none of its GPUs, in whole minutes


XIDS_MAX, LEVELS_MAX = 128, 32


class GpuSigns(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The signs of sickness of one GPU. A GPU that has none is not reported.

    `xids`: the Xids that count against the GPU, by number, since `NodeSigns.boot`; `resets`: the resets since then.
    `levels`: the signs that are there now, by their names in `weft.health.catalogue`, each with its number. `detail`:
    the driver's words.
    """

    index: GpuIndex
    xids: Annotated[dict[Word, Count], Meta(max_length=XIDS_MAX)] = {}
    resets: Count = 0
    levels: Annotated[dict[Word, Finite], Meta(max_length=LEVELS_MAX)] = {}
    detail: Text = ""


class NodeSigns(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The signs of sickness of a node and its GPUs. `boot`: another one each time the node's telemetry starts."""

    boot: Word
    gpus: Annotated[tuple[GpuSigns, ...], Meta(max_length=GPUS_MAX)] = ()
    levels: Annotated[dict[Word, Finite], Meta(max_length=LEVELS_MAX)] = {}


class NodeReported(Message, frozen=True, kw_only=True):
    """Executor → scheduler, a request: the node's capacity and its runs. Answered by `NodeDesired`.

    `incarnation` counts the executor's starts on this node, `seq` its reports since; an older one is ignored.
    `holds`: the digest of the newest answer that it has; empty if it has none.
    """

    subject: ClassVar[str] = "weft.sync.{pool}.{node_id}"
    node_id: Token
    pool: Token
    address: Word
    boot_id: Word
    incarnation: Count
    seq: Count
    capacity: Capacity
    runs: Annotated[tuple[RunSeen, ...], Meta(max_length=RUNS_MAX)] = ()
    runtime: Word = "process"
    not_enforced: Annotated[tuple[Word, ...], Meta(max_length=64)] = ()
    leaving: bool = False  # the executor is going: it starts nothing more, and its runs are being ended
    ending: bool = False  # the node announces its end: it takes nothing more, and its runs should go elsewhere
    leader: Leader | None = None  # the latest that ever answered this node
    rack: Word = ""  # nodes of one rack are nearer to each other than to all others
    labels: Labels = field(default_factory=dict)  # those that its own settings give
    taints: Labels = field(default_factory=dict)  # likewise
    holds: Word = ""
    signs: NodeSigns | None = None  # signs of sickness; None: not known, as without telemetry

    @classmethod
    def refusal(cls, why: str) -> Struct:
        return NodeDesired(seq=-1, refused=f"the report is not understood: {why}")


class Member(Struct, frozen=True, array_like=True, kw_only=True):
    """One rank of a job that resizes live: where the others reach it."""

    role: str
    rank: int
    address: str
    port: int


class Members(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The ranks that a job which resizes live has now, without those that leave. Each rank finds them in the file
    `WEFT_MEMBERS`, which its node replaces.

    `changes`: how often ranks joined or left in this epoch. `least`, `most`: between how many ranks the job may have.
    `signal`: the name of the signal that the main process of each rank gets after the file was replaced; empty: none.
    """

    changes: int
    ranks: tuple[Member, ...]
    least: int
    most: int
    signal: str = ""


class Serve(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a run serves requests; see `weft.domain.spec.ServiceRules`. Times in seconds."""

    port: int
    path: str = "/"
    ready: str = ""  # empty: ready once its port takes a connection
    drain: float = 30.0
    address: str = ""  # the path below which the router has the service: `/s/<job>/`


class StartRun(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The order to run one rank, with all that a node needs for it. Sizes in bytes, times in seconds. An executor makes
    it of a `JobOrder`; no message carries it.

    `env` is from the user; the executor adds the contract's own names (WEFT_*, RANK, …).
    """

    job_id: str
    name: str
    tenant: str
    epoch: int
    rank: int
    role: str
    role_rank: int  # this rank's number within its role
    world_size: int
    command: tuple[str, ...]  # empty: the image's own
    image: str | None = None
    workdir: str | None = None
    env: dict[str, str] = {}
    gpus: tuple[int, ...] = ()
    cpus: float  # may change while the run runs, as may `memory` and `egress`: the node then resizes it
    memory: int
    egress: int | None = None  # bytes per second that it may send; None: no limit
    shm: int
    grace: float
    volumes: tuple[Volume, ...] = ()
    read_only: bool = False
    progress_pattern: str | None = None
    master_address: str  # of rank 0's node
    master_port: int
    peers: dict[str, tuple[str, ...]] = {}  # role → address of each of its ranks' nodes, in order
    members: Members | None = None  # of a job that resizes live; may change while the run runs
    share: Share | None = None  # of its one GPU; None: all of each. It may change while the run runs
    serve: Serve | None = None  # of a run that serves requests
    revision: int = 0  # of a service: what it runs; `command`, `image` and `env` are of that
    secrets: dict[str, str] = {}  # variable → name of the secret; the node asks for the values as it starts the run
    secret_files: dict[str, str] = {}  # the same; the variable has the path of a file with the value
    entrypoint: tuple[str, ...] | None = None  # before `command`, in place of the image's own; None: the image's own
    context: str | None = None  # digest of the packed files that it runs in; the node asks for them, too
    from_checkpoint: str | None = None  # the checkpoint with which it starts; the node asks for its files, too
    named_volumes: tuple[Volume, ...] = ()  # those that its node offers by name
    stop_signal: StopSignal | None = None  # asks it to stop; None: its image's, else SIGTERM
    ulimits: dict[str, int] = {}  # by name; -1: unlimited
    hung: bool = False  # its job hangs: its stacks are to be in its log
    hang_signal: ResizeSignal | None = None  # that makes it write them; None: nothing that it knows of
    preflight: bool = False  # the node checks its GPUs first, unless it did today
    mounts: dict[str, str] = {}  # path → the objects that the run finds there
    outputs: dict[str, str] = {}  # path → where the files go that the run writes there
    object_store: str | None = None  # the secret with the keys of the store; the node asks for it
    written: dict[str, str] = {}  # path → the folder of the node in which the run writes these files
    mounted: dict[str, str] = {}  # path → the folder of the node that has these objects, once they are copied


class RoleOrder(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of an order that the ranks of one role share, where it differs from their job. `nodes`: where each of
    the role's ranks is, in
    order, as pairs: the index of an address in `JobOrder.addresses`, and how many ranks in a row have it."""

    name: str
    command: tuple[str, ...] = ()
    image: str | None = None
    env: dict[str, str] = {}
    shm: int
    nodes: tuple[tuple[int, int], ...] = ()


class RevisionOrder(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the ranks of one revision of a service run, where it differs; None: as in the order. `env` is added."""

    command: tuple[str, ...] | None = None
    image: str | None = None
    env: dict[str, str] | None = None


def env_with(env: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """An environment with that of a revision, where an empty text takes a variable away."""
    return {name: text for name, text in {**env, **own}.items() if text or name not in own}


class RankOrder(Struct, frozen=True, array_like=True, kw_only=True):
    """One rank's own part of an order. `role`: an index into `JobOrder.roles`; `role_rank`: its number in the role."""

    rank: int
    role: int
    role_rank: int
    gpus: tuple[int, ...]
    cpus: float
    memory: int
    egress: int | None = None
    share: Share | None = None
    revision: int = 0  # of a service


class JobOrder(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The ranks of one job on one node. Fields mean what they mean in `StartRun`; what all ranks share comes once."""

    job_id: str
    name: str
    tenant: str
    epoch: int
    world_size: int
    command: tuple[str, ...] = ()
    image: str | None = None
    workdir: str | None = None
    env: dict[str, str] = {}
    grace: float
    volumes: tuple[Volume, ...] = ()
    read_only: bool = False
    progress_pattern: str | None = None
    master_address: str
    master_port: int
    addresses: tuple[str, ...] = ()  # of the nodes of all ranks, each once
    members: Members | None = None
    serve: Serve | None = None
    revisions: dict[int, RevisionOrder] = {}  # of a service, by number; 0 is this order with its `roles`
    secrets: dict[str, str] = {}
    secret_files: dict[str, str] = {}
    context: str | None = None
    from_checkpoint: str | None = None
    entrypoint: tuple[str, ...] | None = None
    named_volumes: tuple[Volume, ...] = ()
    stop_signal: StopSignal | None = None
    ulimits: dict[str, int] = {}
    hung: bool = False
    hang_signal: ResizeSignal | None = None
    preflight: bool = False
    mounts: dict[str, str] = {}
    outputs: dict[str, str] = {}
    object_store: str | None = None
    roles: tuple[RoleOrder, ...]
    ranks: tuple[RankOrder, ...]


class NodeDesired(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Scheduler → executor, the reply: all runs that the node should run, and no others.

    With `unchanged`, `jobs` is empty, and the orders are those of the answer with this `digest`. `refused`: why the
    report was not taken; then the executor changes nothing.

    `hold`: the leader cannot reach its store. Its last answer is still in force; nothing starts, no end of a run was
    recorded, and the node counts as synced.
    """

    seq: int
    refused: str = ""
    leader: Leader | None = None  # None: there is no leader, and the answer is from the store
    jobs: tuple[JobOrder, ...] = ()
    digest: str = ""  # of `jobs`; empty: this answer cannot be referred to
    unchanged: bool = False
    hold: bool = False
    strict: bool = False  # of a leader's answer: a run that uses its GPU outside its share is ended


class NodeHinted(Message, frozen=True, kw_only=True):
    """Scheduler → executor: the orders of this node have changed, report now."""

    subject: ClassVar[str] = "weft.hints.{node_id}"
    node_id: str


class ReadLog(Message, frozen=True, kw_only=True):
    """Gateway → executor, a request: bytes of one run's log from `offset`. Answered by `LogRead`.

    The node waits for missing bytes for `wait` seconds at most.
    """

    subject: ClassVar[str] = "weft.logs.{node_id}"
    node_id: str
    job_id: str
    epoch: int
    rank: int
    offset: int = 0
    limit: int = 262144
    wait: float = 0.0


class LogRead(Struct, frozen=True, kw_only=True):
    """`data` begins at `offset`; `ended`: the run is over and these are its last bytes; `missing`: the node has no log.

    The first `begins` bytes were dropped by the node's limits: a requested `offset` among them is moved there.
    `size` is the length of the log, dropped bytes included.
    `dropped_at`: when the node dropped a `missing` log, which took `dropped_bytes`, in seconds since the epoch; 0: not
    known.
    """

    offset: int
    data: bytes
    ended: bool = False
    missing: bool = False
    begins: int = 0
    size: int = 0
    dropped_at: float = 0.0
    dropped_bytes: int = 0


class ReadSecrets(Message, frozen=True, kw_only=True):
    """Executor → gateway, a request: the values of the secrets of one run that the node is to start. Answered by
    `SecretsRead`."""

    subject: ClassVar[str] = "weft.secrets.{node_id}"
    node_id: Token
    job_id: JobId
    epoch: Epoch
    rank: Rank


class SecretsRead(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`values`: variable → value. `missing`: names of secrets of which nothing is stored, so the run cannot start.
    `refused`: why none are given to this node now; it may ask again."""

    values: dict[str, str] = {}
    missing: tuple[str, ...] = ()
    refused: str = ""


class Pace(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How fast a run goes on, by its progress in the last `window_seconds`; robust against single outliers.

    Rates are per second. `step_seconds`: the median time of a step on this rank alone, from its `t_compute` if it
    reports that, else from the steps' own times. `phases`: the median seconds per step of each `t_<phase>` that it
    reports (`t_data`, `t_compute`, `t_push`, `t_pull`, `t_wait`).
    """

    window_seconds: Finite
    steps: Count  # reported in the window
    steps_rate: Finite
    samples_rate: Finite | None = None
    step_seconds: Finite
    step_spread: Finite = 0.0  # median absolute deviation of the steps' times, over their median
    phases: Annotated[dict[Name, Finite], Meta(max_length=PROGRESS_NAMES_MAX)] = {}


DATA_COPIED, DATA_TO_COPY = "data_bytes_copied", "data_bytes_to_copy"
"""Progress keys of a run that has not begun: bytes of its data that the node has copied, and bytes in all."""


class RunProgressed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`at`: when the node read it, seconds since the epoch, UTC. `disbelieved`: how many values made no sense so far
    (negative, not finite, a step that went back without a restart)."""

    job_id: JobId
    epoch: Epoch
    rank: Rank
    progress: Progress
    at: Time = 0.0
    pace: Pace | None = None
    disbelieved: Count = 0


class ProgressSeen(Message, frozen=True, kw_only=True):
    """Executor → all: the newest progress of this node's runs. May be lost."""

    subject: ClassVar[str] = "weft.progress.{node_id}"
    node_id: Token
    runs: Annotated[tuple[RunProgressed, ...], Meta(max_length=RUNS_MAX)]
