"""The conversation of a node with the control plane: what it sees, and what it should be running."""

from enum import StrEnum
from typing import ClassVar

from msgspec import Struct

from libs.domain.cluster import Capacity
from libs.domain.spec import Volume
from libs.messages import Message


class RunState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"


class EndReason(StrEnum):
    """Why a run ended, as its node saw it."""

    EXIT = "exit"  # by itself, with `exit_code`
    STOPPED = "stopped"  # the node told it to end, because it was no longer desired; `exit_code` may be 0
    OOM = "oom"  # killed for memory
    FENCED = "fenced"  # the node told it to end, because it could not reach the control plane; likewise
    START_FAILED = "start-failed"  # never ran: `detail` says why
    PORT_TAKEN = "port-taken"  # never ran: something else listens where rank 0 should; another epoch has another port
    LOST = "lost"  # it is gone and left no exit status


NEVER_RAN = frozenset({EndReason.START_FAILED, EndReason.PORT_TAKEN})


class Leader(Struct, frozen=True, kw_only=True):
    """Who answered, and how far its lease was renewed by then: (`epoch`, `seq`) grows, unless the store goes back."""

    pool: str
    epoch: int
    holder: str
    seq: int


class RunSeen(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run (one rank of one epoch of a job) as its node sees it. Times are seconds since the epoch, UTC."""

    job_id: str
    epoch: int
    rank: int
    state: RunState
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None  # 128 + N for signal N
    reason: EndReason | None = None  # with `exited`
    detail: str = ""
    progress: dict[str, float] = {}
    gpus: tuple[int, ...] | None = None  # what a live run holds; None: the node does not say
    not_applied: str = ""  # which of its order's limits a live run could not be given so far, and why


class NodeReported(Message, frozen=True, kw_only=True):
    """Executor → scheduler, a request: what this node has and what it sees. Answered by `NodeDesired`.

    `incarnation` counts the executor's starts on this node, `seq` its reports since; an older one is ignored.
    """

    subject: ClassVar[str] = "weft.sync.{pool}.{node_id}"
    node_id: str
    pool: str
    address: str
    boot_id: str
    incarnation: int
    seq: int
    capacity: Capacity
    runs: tuple[RunSeen, ...] = ()
    runtime: str = "process"
    not_enforced: tuple[str, ...] = ()
    leaving: bool = False  # the executor is going: it starts nothing more, and its runs are being ended
    leader: Leader | None = None  # the latest that ever answered this node
    reads: tuple[str, ...] = ()  # which forms of an answer this executor understands beside `runs`


class StartRun(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that a node needs to run one rank. Sizes in bytes, times in seconds.

    `env` is what the user asked for; the contract's own names (WEFT_*, RANK, …) are the executor's to add.
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


HOLD = "hold"
"""In `NodeReported.reads`: this executor understands `NodeDesired.hold`."""


class NodeDesired(Struct, frozen=True, kw_only=True):
    """Scheduler → executor, the reply: everything that node should be running, and nothing else.

    `refused` says why the report was not taken (then `runs` means nothing and the executor changes nothing). `hold`:
    the leader cannot reach its store. What it answered last still stands; nothing starts, no end of a run was taken in,
    and the node has synced.
    """

    seq: int
    runs: tuple[StartRun, ...] = ()
    refused: str = ""
    leader: Leader | None = None  # None: nobody leads, and the answer is what the store says
    hold: bool = False


class NodeHinted(Message, frozen=True, kw_only=True):
    """Scheduler → executor: what your node should run has changed, ask now."""

    subject: ClassVar[str] = "weft.hints.{node_id}"
    node_id: str


class ReadLog(Message, frozen=True, kw_only=True):
    """Gateway → executor, a request: bytes of one run's log from `offset`. Answered by `LogRead`.

    `wait` seconds at most are spent waiting for bytes that are not there yet.
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
    """`data` begins at `offset`; `ended` when the run is over and this is the last of it; `missing` if never seen.

    The first `begins` bytes were dropped by the node's limits: an `offset` asked for among them is moved there.
    `size` is how long the log was, dropped bytes and all; -1: an executor of an earlier version does not tell.
    """

    offset: int
    data: bytes
    ended: bool = False
    missing: bool = False
    begins: int = 0
    size: int = -1


class Pace(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How fast a run goes on, from the progress it told in the last `window_seconds`; robust against single outliers.

    Rates are per second. `step_seconds`: the median time of a step on this rank alone, from what it tells as
    `t_compute` where it does, else from the steps' own times. `phases`: the median seconds per step of each `t_<phase>`
    that it tells (`t_data`, `t_compute`, `t_push`, `t_pull`, `t_wait`).
    """

    window_seconds: float
    steps: int  # that were told of in the window
    steps_rate: float
    samples_rate: float | None = None
    step_seconds: float
    step_spread: float = 0.0  # median absolute deviation of the steps' times, over their median
    phases: dict[str, float] = {}


class RunProgressed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`at`: when the node read it, seconds since the epoch, UTC. `disbelieved`: how many values made no sense so far
    (negative, not finite, a step that went back without a restart)."""

    job_id: str
    epoch: int
    rank: int
    progress: dict[str, float]
    at: float = 0.0
    pace: Pace | None = None
    disbelieved: int = 0


class ProgressSeen(Message, frozen=True, kw_only=True):
    """Executor → all: the newest progress of this node's runs. May be lost."""

    subject: ClassVar[str] = "weft.progress.{node_id}"
    node_id: str
    runs: tuple[RunProgressed, ...]
