"""What a user may ask for: the job specification. `spec_decoder.py` reads and checks it."""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from weft.domain.arrays import Element, Indices
from weft.domain.dependencies import AFTER_MAX, After, CheckpointSource
from weft.domain.object_store.urls import OBJECT_URL_PATTERN
from weft.domain.quantity import DURATION_PATTERN, SIZE_PATTERN, duration_seconds, size_bytes
from weft.domain.schedules import Cron, Schedule, ScheduledRun
from weft.domain.shares import Share, is_thousandths, thousandths
from weft.domain.sweeps import SWEPT_MAX, Sample, SweepName, SweepValues
from weft.domain.ulimits import Ulimits

GPUS_PER_REPLICA_MAX = 64
REPLICAS_MAX = 4096
ROLES_MAX = 16
MEMORY_BYTES_MAX = 64 << 40
MEMORY_BYTES_MIN = 16 << 20  # that tuning leaves a rank: hardly any process lives with less
EGRESS_BYTES_MIN = 8192
OF_THE_CONTAINER = ("/proc", "/sys", "/dev", "/weft")
VOLUMES_INSIDE = "/volumes"  # where a container sees a volume that its job gives no other place
VOLUME_VARIABLE = "WEFT_VOLUME_"
OBJECT_STORE_VARIABLE = "WEFT_OBJECT_STORE"  # by which a node asks for the secret `object_store`; no run has it
MOUNTS_MAX = 16

ENV_NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]{0,254}$(?!\n)"
LABEL_NAME_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$(?!\n)"
PATH_PATTERN = r"^/[^\x00]{0,4095}$(?!\n)"
ORIGIN_PATTERN = r"^(\*|https?://([a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])(:[0-9]{1,5})?)$(?!\n)"
IMAGE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}$(?!\n)"
TOKEN_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$(?!\n)"
MODEL_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}$(?!\n)"
DIGEST_PATTERN = r"^[0-9a-f]{64}$(?!\n)"

Token = Annotated[str, Meta(pattern=TOKEN_PATTERN, description="Lower-case letters, digits and `-`; no dots.")]
# Without a pattern, which its role has: a text with one, or else a list, makes the `convert` of msgspec 0.22 crash.
RoleNamed = Annotated[str, Meta(min_length=1, max_length=63)]
GpuModel = Annotated[str, Meta(min_length=1, max_length=100)]
ANY_MODEL = "any"  # the word for GPUs of every model
NOT_MODEL = "!"  # before the name of a model: GPUs of every other model
GPU_MODELS_MAX = 16
WHERE_CHARACTERS_MAX = 1024
TOLERATED_MAX = 16
ALL_TAINTS = "*"
TOLERATED_PATTERN = r"^(\*|[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?(=[^\x00-\x1f\x7f]{0,253})?)$(?!\n)"
Where = Annotated[str, Meta(min_length=1, max_length=WHERE_CHARACTERS_MAX)]
Tolerated = Annotated[str, Meta(pattern=TOLERATED_PATTERN)]
Size = Annotated[str, Meta(pattern=SIZE_PATTERN, description="A size in bytes with its unit, such as `16GiB`.")]
Duration = Annotated[str, Meta(pattern=DURATION_PATTERN, description="A duration such as `30s` or `1h30m`.")]
IDLE_NEVER = "never"
IDLE_STOP_PATTERN = rf"{DURATION_PATTERN}|^{IDLE_NEVER}$(?!\n)"
IdleStop = Annotated[str, Meta(pattern=IDLE_STOP_PATTERN, description="A duration such as `2h`, or `never`.")]
Argument = Annotated[str, Meta(max_length=131072)]
EnvName = Annotated[str, Meta(pattern=ENV_NAME_PATTERN)]
EnvValue = Annotated[str, Meta(max_length=32768)]
LabelName = Annotated[str, Meta(pattern=LABEL_NAME_PATTERN)]
LabelValue = Annotated[str, Meta(max_length=253)]
Path = Annotated[str, Meta(pattern=PATH_PATTERN, description="An absolute path.")]
Origin = Annotated[
    str, Meta(pattern=ORIGIN_PATTERN, max_length=255, description="Such as https://app.example.org; `*`: any.")
]
ModelName = Annotated[
    str,
    Meta(pattern=MODEL_NAME_PATTERN, description="The name of a model, such as `meta-llama/Llama-3.1-8B-Instruct`."),
]
AdapterSource = Annotated[
    str, Meta(min_length=1, max_length=4096, description="A path in the container, or a repository.")
]
Command = Annotated[tuple[Argument, ...], Meta(min_length=1, max_length=1024)]
Env = Annotated[dict[EnvName, EnvValue], Meta(max_length=1024)]
Digest = Annotated[str, Meta(pattern=DIGEST_PATTERN, description="A SHA-256, as 64 hexadecimal digits.")]
SECRETS_MAX = 32
Secrets = Annotated[
    dict[EnvName, Token],
    Meta(
        max_length=SECRETS_MAX,
        description="For each variable the name of the secret with its value; `weft secret set` stores one.",
    ),
]
SecretFiles = Annotated[
    dict[EnvName, Token],
    Meta(
        max_length=SECRETS_MAX,
        description="For each variable the name of a secret; the variable holds the path of a file with the value.",
    ),
]
Image = Annotated[str, Meta(pattern=IMAGE_PATTERN, description="A container image.")]
ObjectUrl = Annotated[
    str, Meta(pattern=OBJECT_URL_PATTERN, description="Objects of an S3 store, such as `s3://bucket/data`.")
]
Mounts = Annotated[
    dict[Path, ObjectUrl],
    Meta(max_length=MOUNTS_MAX, description="For each path the objects that a run can read there."),
]
Outputs = Annotated[
    dict[Path, ObjectUrl],
    Meta(max_length=MOUNTS_MAX, description="For each path the destination of the files that a run writes there."),
]


class _Strict(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of the specification: an unknown field is an error, not a guess."""


class Kind(StrEnum):
    TRAINING = "training"
    INFERENCE = "inference"
    NOTEBOOK = "notebook"
    BATCH = "batch"


class Replicas(_Strict, frozen=True, kw_only=True):
    """How many copies of a role: at least `min` to start, `want` if there is room, never more than `max`.

    Only a service may have none: its `min` and `want` may be 0.
    """

    want: Annotated[int, Meta(ge=0, le=REPLICAS_MAX)] = 1
    min: Annotated[int, Meta(ge=0, le=REPLICAS_MAX)] | None = None
    max: Annotated[int, Meta(ge=1, le=REPLICAS_MAX)] | None = None

    def __post_init__(self) -> None:
        if self.min is not None and self.min > self.want:
            raise ValueError(f"min {self.min} is more than want {self.want}")
        if self.max is not None and self.max < self.want:
            raise ValueError(f"max {self.max} is less than want {self.want}")

    @property
    def least(self) -> int:
        return self.want if self.min is None else self.min

    @property
    def most(self) -> int:
        return self.want if self.max is None else self.max


class GpuShare(_Strict, frozen=True, kw_only=True):
    """A part of one GPU: `request` is promised, `limit` may be used when others idle, `memory` is a hard bound."""

    request: Annotated[float, Meta(gt=0, le=1)]
    limit: Annotated[float, Meta(gt=0, le=1)] = 1.0
    memory: Size

    def __post_init__(self) -> None:
        if self.limit < self.request:
            raise ValueError(f"limit {self.limit} is less than request {self.request}")
        for name, part in (("request", self.request), ("limit", self.limit)):
            if not is_thousandths(part):
                raise ValueError(f"{name} {part} is finer than a thousandth of a GPU")
        if not 0 < size_bytes(self.memory) <= MEMORY_BYTES_MAX:
            raise ValueError(f"memory {self.memory} is outside 1B to 64TiB")

    @property
    def held(self) -> Share:
        """The same in thousandths and bytes."""
        return Share(request=thousandths(self.request), limit=thousandths(self.limit), memory=size_bytes(self.memory))


SHM_DEFAULT_MAX = 64 << 30


class Role(_Strict, frozen=True, kw_only=True):
    """One kind of replica in a job. A field that is not set here is taken from the job."""

    replicas: Replicas = Replicas()
    gpus: Annotated[int, Meta(ge=0, le=GPUS_PER_REPLICA_MAX, description="Whole GPUs per replica.")] = 0
    share: GpuShare | None = None
    cpus: Annotated[float, Meta(ge=0.001, le=4096, description="CPU cores per replica.")] = 1.0
    memory: Size = "1GiB"
    shm: Size | None = None
    egress: Annotated[Size, Meta(description="Bytes that a replica may send per second, such as `2500KB`.")] | None = (
        None
    )
    image: Image | None = None
    command: Command | None = None
    env: Env = {}

    def __post_init__(self) -> None:
        if self.gpus and self.share is not None:
            raise ValueError("ask for whole gpus or for a share of one, not for both")
        if not 0 < self.memory_bytes <= MEMORY_BYTES_MAX:
            raise ValueError(f"memory {self.memory} is outside 1B to 64TiB")
        if self.shm is not None and size_bytes(self.shm) > self.memory_bytes:
            raise ValueError(f"shm {self.shm} is more than memory {self.memory}")
        if self.egress is not None and size_bytes(self.egress) < EGRESS_BYTES_MIN:
            raise ValueError(f"egress {self.egress} is less than {EGRESS_BYTES_MIN}B per second")

    @property
    def memory_bytes(self) -> int:
        return size_bytes(self.memory)

    @property
    def shm_bytes(self) -> int:
        """The size of `/dev/shm`; by default half of the memory, as the kernel sizes such a file system."""
        return min(self.memory_bytes // 2, SHM_DEFAULT_MAX) if self.shm is None else size_bytes(self.shm)

    @property
    def egress_bytes(self) -> int | None:
        return None if self.egress is None else size_bytes(self.egress)


class Retries(_Strict, frozen=True, kw_only=True):
    """How often a failed job is tried again, and how long it waits before: `backoff` doubles up to `backoff_max`."""

    max: Annotated[int, Meta(ge=0, le=1000)] = 0
    backoff: Duration = "5s"
    backoff_max: Duration = "5m"

    def wait_seconds(self, attempt: int) -> float:
        """How long to wait before try `attempt` (1 is the first retry)."""
        longest = duration_seconds(self.backoff_max)
        return min(duration_seconds(self.backoff) * 2.0 ** min(attempt - 1, 60), longest)


def is_of_the_container(path: str) -> bool:
    """Return True if a mount at `path` would hide files that the container needs."""
    covered = "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
    return covered == "/" or covered.startswith(OF_THE_CONTAINER)


class Volume(_Strict, frozen=True, kw_only=True):
    """A folder of the node that the job sees: the one that the node's owner offers as `name`, or `source`, which must
    lie in the operator's allow-list. A run finds the path of a named one in `WEFT_VOLUME_` and its name."""

    name: Token = ""
    source: Path = ""
    target: Path = ""
    read_only: bool = False

    def __post_init__(self) -> None:
        if not self.name and not self.source:
            raise ValueError("expected `name`, of a volume that nodes offer, or `source`, a folder of the node")
        if self.name and self.source:
            raise ValueError("`name` and `source` exclude each other: give one of them")
        if self.source and not self.target:
            raise ValueError("expected `target`, where the job sees the folder `source`")
        for path in (self.source, self.target):
            if ".." in path.split("/"):
                raise ValueError(f"{path} must not contain '..'")
        if self.target and is_of_the_container(self.target):
            raise ValueError(f"{self.target} is the container's own")

    @property
    def inside(self) -> str:
        """Where a container sees it."""
        return self.target or f"{VOLUMES_INSIDE}/{self.name}"

    @property
    def variable(self) -> str:
        """The variable in which a run finds the path of a volume that has a name."""
        return VOLUME_VARIABLE + self.name.upper().replace("-", "_")


class Progress(_Strict, frozen=True, kw_only=True):
    """A regular expression over lines of stdout; its named groups (`step`, `loss`, …) are the progress."""

    pattern: Annotated[str, Meta(min_length=1, max_length=1000)]


class TuningMode(StrEnum):
    OFF = "off"
    ADVISE = "advise"  # report what would be done
    ON = "on"


class Tuning(_Strict, frozen=True, kw_only=True):
    """Whether what the job gets may be changed while it runs, and how far: its envelope.

    The pool's settings apply where a field is not set. `cpus`, `egress_total`: of all replicas together; the rest: of
    each.
    """

    mode: TuningMode | None = None
    cpus: Annotated[float, Meta(ge=0.001, le=4096 * 64, description="CPU cores of all replicas together.")] | None = (
        None
    )
    memory: Size | None = None
    memory_min: (
        Annotated[
            Size, Meta(description="Weft may take back memory that was never used, down to this size (default: none).")
        ]
        | None
    ) = None
    share_min: (
        Annotated[
            float,
            Meta(gt=0, le=1, description="Lowest size to which an idle share may shrink (default: what it asks for)."),
        ]
        | None
    ) = None
    egress: Size | None = None
    egress_total: (
        Annotated[
            Size,
            Meta(
                description="Bytes that all replicas together may send per second; each replica then has a limit, too."
            ),
        ]
        | None
    ) = None


class Pin(_Strict, frozen=True, kw_only=True):
    """The node on which a job must run, and there the GPUs from index `gpu` on, as many as it asks for."""

    node: Token
    gpu: Annotated[int, Meta(ge=0, le=1023)] | None = None


class Checkpointing(_Strict, frozen=True, kw_only=True):
    """When the job writes a checkpoint: every so often, or each time that it is stopped."""

    every: Duration | None = None
    on_stop: bool = False

    def __post_init__(self) -> None:
        if self.every is None and not self.on_stop:
            raise ValueError("set every or on_stop")


class ResizeSignal(StrEnum):
    HUP = "SIGHUP"
    USR1 = "SIGUSR1"
    USR2 = "SIGUSR2"


class HangAct(StrEnum):
    NOTIFY = "notify"  # its story and its explanation say so
    REQUEUE = "requeue"  # it starts again from its checkpoint, which counts as a retry
    NOTHING = "nothing"


class HangRules(_Strict, frozen=True, kw_only=True):
    """The act that follows if no rank of the job shows a sign of work for `after`."""

    after: Duration = "10m"
    do: HangAct = HangAct.NOTIFY
    signal: ResizeSignal | None = None

    @property
    def after_seconds(self) -> float:
        return duration_seconds(self.after)


class ResizeHow(StrEnum):
    LIVE = "live"  # ranks join and leave while the others run
    RESTART = "restart"  # it checkpoints, stops, and starts with another size
    NEVER = "never"


class StopSignal(StrEnum):
    """Signals that may ask a main process to stop: those that a program can handle."""

    HUP = "SIGHUP"
    INT = "SIGINT"
    QUIT = "SIGQUIT"
    TERM = "SIGTERM"
    USR1 = "SIGUSR1"
    USR2 = "SIGUSR2"
    WINCH = "SIGWINCH"


class ResizeRules(_Strict, frozen=True, kw_only=True):
    """How the job changes its size. By default by `restart` if it writes checkpoints, else never.

    `signal`: sent to the main process of each rank that stays, once `WEFT_MEMBERS` has changed.
    """

    how: ResizeHow | None = None
    signal: ResizeSignal | None = None


class ServiceProtocol(StrEnum):
    HTTP = "http"  # HTTP/1.1, WebSockets and server-sent events among it
    H2C = "h2c"  # HTTP/2 without TLS, as gRPC speaks it


class ServedModel(_Strict, frozen=True, kw_only=True):
    """The model that a service serves by OpenAI's API: each of the names leads to the service at the router's `/v1`.

    `aliases`: other names of the model, or of adapters, that the engine knows from its start: the body of a request is
    passed on as it is. `adapters`: its adapters (LoRA), by their names. The router has a replica load one by vLLM's API
    before the first request that names it goes there; the source is a path in the container, or another that the engine
    takes. `tokens_per_minute`: that each of Weft's tokens may use of it, prompts and answers
    together; the router refuses more with 429.
    """

    name: ModelName
    aliases: Annotated[tuple[ModelName, ...], Meta(max_length=32)] = ()
    adapters: Annotated[dict[ModelName, AdapterSource], Meta(max_length=256)] = {}
    tokens_per_minute: Annotated[int, Meta(ge=1, le=10**12)] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases, *self.adapters)


class ServiceRules(_Strict, frozen=True, kw_only=True):
    """How requests reach the replicas of a job, and how many requests each replica takes.

    `path`: below which a replica serves; `{job}` in it
    stands for the id of the job. `ready`: the path that a replica answers with a status of 200 to 399 once it
    takes requests; if not set, a replica is ready once its port takes a connection. `concurrency`: requests at one
    replica at once. `queue`: the most requests that wait. `timeout`: from the arrival of a request to the first byte of
    its answer. `start`: the most time until a replica is ready. `drain`: the most time in which a replica that leaves
    finishes its requests. `max_surge`: replicas beyond the size of the service during an update. `public`: requests
    need no token. `allow_origins`: pages of these origins may call it, with a token in a header and never with a
    cookie; the router answers their preflights. `model`: it speaks OpenAI's API, and the router's `/v1` leads to it.
    """

    port: Annotated[
        int,
        Meta(ge=1, le=65535, description="Port on which a container listens. WEFT_PORT has the port of each replica."),
    ] = 8080
    path: Path = "/"
    ready: Path | None = None
    concurrency: Annotated[int, Meta(ge=1, le=10_000)] = 100
    queue: Annotated[int, Meta(ge=0, le=100_000)] = 1000
    timeout: Duration = "60s"
    start: Duration = "10m"
    drain: Duration = "30s"
    max_surge: Annotated[int, Meta(ge=1, le=64)] = 1
    protocol: ServiceProtocol = ServiceProtocol.HTTP
    public: bool = False
    allow_origins: Annotated[tuple[Origin, ...], Meta(max_length=32)] = ()
    model: ServedModel | None = None


class Objective(_Strict, frozen=True, kw_only=True):
    """The promise of an inference job to its users: how soon an answer begins (`latency`); where a model streams, how
    soon its first token comes (`ttft`) and how long each further one takes (`tpot`).

    With `ttft`, `latency` may be left out and is the same, and `rate` may be left out and is 1: services of an earlier
    version need both.
    """

    latency: Duration = ""
    percentile: Annotated[float, Meta(gt=0, lt=100)] = 99.0
    rate: Annotated[float, Meta(gt=0, le=1e9, description="Requests per second.")] = 0.0
    ttft: Duration | None = None
    tpot: Duration | None = None

    def __post_init__(self) -> None:
        if self.tpot is not None and self.ttft is None:
            raise ValueError("`tpot` is for the tokens after the first: expected `ttft` beside it")
        if self.ttft is None:
            for name, given in (("latency", self.latency), ("rate", self.rate)):
                if not given:
                    raise ValueError(f"expected `{name}`, or `ttft` for a service that serves a model")
        else:
            msgspec.structs.force_setattr(self, "latency", self.latency or self.ttft)
            msgspec.structs.force_setattr(self, "rate", self.rate or 1.0)

    @property
    def begins(self) -> str:
        """Within which an answer begins: with its first token where that is promised."""
        return self.ttft or self.latency

    @property
    def ttft_seconds(self) -> float | None:
        return None if self.ttft is None else duration_seconds(self.ttft)

    @property
    def tpot_seconds(self) -> float | None:
        return None if self.tpot is None else duration_seconds(self.tpot)


class MetricGoal(StrEnum):
    MIN = "min"
    MAX = "max"


class EarlyStop(_Strict, frozen=True, kw_only=True):
    """When elements of an array are stopped for what they report: asynchronous successive halving, in the form that
    stops (ASHA; Li et al., "A System for Massively Parallel Hyperparameter Tuning", 2020)."""

    metric: Annotated[str, Meta(min_length=1, max_length=64, description="The reported value that is compared.")]
    goal: Annotated[MetricGoal, Meta(description="Direction in which the metric is better.")] = MetricGoal.MIN
    after: Annotated[int, Meta(ge=1, le=2**53, description="The step of the first comparison.")]
    factor: Annotated[
        int,
        Meta(
            ge=2, le=100, description="The best 1 of so many go on; each comparison is after so many times the steps."
        ),
    ] = 4


class JobSpec(_Strict, frozen=True, kw_only=True):
    """One job as its user asks for it."""

    name: Token
    kind: Kind = Kind.TRAINING
    image: Image | None = None
    command: Command | None = None
    entrypoint: Annotated[tuple[Argument, ...], Meta(max_length=64)] | None = None
    workdir: Path | None = None
    context: Digest | None = None
    env: Env = {}
    secrets: Secrets = {}
    secret_files: SecretFiles = {}
    roles: Annotated[dict[Token, Role], Meta(min_length=1, max_length=ROLES_MAX)] = msgspec.field(
        default_factory=lambda: {"worker": Role()}
    )
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    preemptible: bool = True
    grace: Duration = "30s"
    stop_signal: StopSignal | None = None
    ulimits: Ulimits = Ulimits()
    time_limit: Duration | None = None
    done_when: RoleNamed | Annotated[tuple[RoleNamed, ...], Meta(min_length=1, max_length=ROLES_MAX)] | None = None
    retries: Retries = Retries()
    volumes: Annotated[tuple[Volume, ...], Meta(max_length=64)] = ()
    mounts: Mounts = {}
    outputs: Outputs = {}
    object_store: Token | None = None
    labels: Annotated[dict[LabelName, LabelValue], Meta(max_length=64)] = {}
    progress: Progress | None = None
    objective: Objective | None = None
    service: ServiceRules | None = None
    pool: Token = "default"
    gpu_model: GpuModel | Annotated[tuple[GpuModel, ...], Meta(min_length=1, max_length=GPU_MODELS_MAX)] | None = None
    gpu_memory: Size | None = None
    tuning: Tuning = Tuning()
    checkpoints: Checkpointing | None = None
    from_checkpoint: CheckpointSource | None = None
    resize: ResizeRules = ResizeRules()
    hang: HangRules = HangRules()
    idle_stop: IdleStop | None = None
    preflight: bool = False
    pin: Pin | None = None
    where: Where | None = None
    tolerate: Annotated[tuple[Tolerated, ...], Meta(max_length=TOLERATED_MAX)] = ()
    read_only: Annotated[bool, Meta(description="Mount the container's own file system read-only.")] = False
    array: Indices | None = None
    sweep: Annotated[dict[SweepName, SweepValues], Meta(min_length=1, max_length=SWEPT_MAX)] | None = None
    sample: Sample | None = None
    early_stop: EarlyStop | None = None
    after: Annotated[tuple[After, ...], Meta(max_length=AFTER_MAX)] = ()
    singleton: Annotated[
        bool, Meta(description="Starts once every earlier job of this name and tenant in its pool is over.")
    ] = False
    element: Annotated[Element | None, Meta(description="Of which array the job is an element; set by Weft.")] = None
    schedule: Cron | Schedule | None = None
    scheduled: Annotated[ScheduledRun | None, Meta(description="Of which schedule the job is a run; set by Weft.")] = (
        None
    )

    @property
    def named_volumes(self) -> tuple[Volume, ...]:
        """The volumes that nodes offer by name."""
        return tuple(volume for volume in self.volumes if volume.name) if self.volumes else ()

    @property
    def folders(self) -> tuple[Volume, ...]:
        """The volumes that are folders of the node by their path."""
        return tuple(volume for volume in self.volumes if not volume.name) if self.volumes else ()

    @property
    def all_secrets(self) -> dict[str, str]:
        """By variable, whether that has the value or the path of a file, or is only read by the node."""
        store = {} if self.object_store is None else {OBJECT_STORE_VARIABLE: self.object_store}
        return {**self.secrets, **self.secret_files, **store}

    @property
    def done_roles(self) -> tuple[str, ...]:
        """The roles whose success is the success of the job: `done_when`, else all."""
        if self.done_when is None:
            return tuple(self.roles)
        return (self.done_when,) if isinstance(self.done_when, str) else self.done_when

    @property
    def gpu_models(self) -> tuple[str, ...]:
        """The models of which its GPUs may be, the preferred one first; empty: any but those that it excludes."""
        return tuple(model for model in self.gpu_models_written if not model.startswith(NOT_MODEL))

    @property
    def gpu_models_excluded(self) -> tuple[str, ...]:
        """The models of which its GPUs may not be."""
        models = (model for model in self.gpu_models_written if model.startswith(NOT_MODEL))
        return tuple(model.removeprefix(NOT_MODEL) for model in models)

    @property
    def gpu_models_written(self) -> tuple[str, ...]:
        """The entries of `gpu_model`; none if they exclude nothing."""
        written = () if self.gpu_model in (None, ANY_MODEL) else self.gpu_model
        return (written,) if isinstance(written, str) else written or ()

    def may_have(self, model: str) -> bool:
        """Return True if its GPUs may be of this model."""
        named = self.gpu_models
        return model not in self.gpu_models_excluded and (not named or model in named)

    @property
    def only_model(self) -> str | None:
        """The model of its GPUs, if it names exactly one."""
        models = self.gpu_models
        return models[0] if len(models) == 1 else None

    @property
    def gpu_memory_bytes(self) -> int:
        """The least memory of each of its GPUs; 0: any."""
        return 0 if self.gpu_memory is None else size_bytes(self.gpu_memory)

    @property
    def is_array(self) -> bool:
        """Does the specification ask for many jobs?"""
        return self.array is not None or self.sweep is not None

    @property
    def recurs(self) -> Schedule | None:
        """When it runs again and again; None: it is one job."""
        return Schedule(cron=self.schedule) if isinstance(self.schedule, str) else self.schedule

    @property
    def grace_seconds(self) -> float:
        return duration_seconds(self.grace)

    @property
    def is_service(self) -> bool:
        """Has the job no core? Each replica of a service lives, fails and is started again alone."""
        return self.kind is Kind.INFERENCE and self.service is not None

    @property
    def drain_seconds(self) -> float:
        """The most time in which a rank that leaves finishes its requests, before its grace begins."""
        return 0.0 if self.service is None else duration_seconds(self.service.drain)

    @property
    def time_limit_seconds(self) -> float | None:
        return None if self.time_limit is None else duration_seconds(self.time_limit)
