"""What a user may ask for: the job specification, decoded and checked in one place.

Every way in (HTTP, NATS, the command line) decodes with `decode_spec`, so all accept and refuse the same.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from libs.domain.arrays import INDICES_PATTERN, Element, Indices, IndicesError, indices_of
from libs.domain.dependencies import AFTER_MAX, NAMED_PATTERN, After
from libs.domain.mistakes import Mistake, mistakes_of
from libs.domain.patterns import check_pattern
from libs.domain.quantity import DURATION_PATTERN, SIZE_PATTERN, duration_seconds, size_bytes
from libs.domain.shares import Share, is_thousandths, thousandths
from libs.domain.sweeps import SWEEP_NAME_PATTERN, SWEPT_MAX, Sample, SweepError, SweepName, SweepValues, check_sweep
from libs.domain.yaml_reader import DocumentError, Value, read_yaml

SPEC_BYTES_MAX = 1 << 20
DURATION_SECONDS_MAX = 366 * 86400
GPUS_PER_REPLICA_MAX = 64
REPLICAS_MAX = 4096
ROLES_MAX = 16
MEMORY_BYTES_MAX = 64 << 40
MEMORY_BYTES_MIN = 16 << 20  # that tuning leaves a rank: hardly any process lives with less
EGRESS_BYTES_MIN = 8192
OF_THE_CONTAINER = ("/proc", "/sys", "/dev", "/weft")

ENV_NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]{0,254}$(?!\n)"
LABEL_NAME_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$(?!\n)"
PATH_PATTERN = r"^/[^\x00]{0,4095}$(?!\n)"
IMAGE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}$(?!\n)"
TOKEN_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$(?!\n)"

Token = Annotated[str, Meta(pattern=TOKEN_PATTERN, description="Lower-case letters, digits and `-`; no dots.")]
Size = Annotated[str, Meta(pattern=SIZE_PATTERN, description="A size in bytes with its unit, such as `16GiB`.")]
Duration = Annotated[str, Meta(pattern=DURATION_PATTERN, description="A duration such as `30s` or `1h30m`.")]
Argument = Annotated[str, Meta(max_length=131072)]
EnvName = Annotated[str, Meta(pattern=ENV_NAME_PATTERN)]
EnvValue = Annotated[str, Meta(max_length=32768)]
LabelName = Annotated[str, Meta(pattern=LABEL_NAME_PATTERN)]
LabelValue = Annotated[str, Meta(max_length=253)]
Path = Annotated[str, Meta(pattern=PATH_PATTERN, description="An absolute path.")]
Command = Annotated[tuple[Argument, ...], Meta(min_length=1, max_length=1024)]
Env = Annotated[dict[EnvName, EnvValue], Meta(max_length=1024)]
Image = Annotated[str, Meta(pattern=IMAGE_PATTERN, description="A container image.")]


class SpecError(Exception):
    """The specification is refused: `field` and `reason` of the first mistake; `mistakes` has all of them."""

    def __init__(self, field: str, reason: str, *, mistakes: Sequence[Mistake] = ()) -> None:
        super().__init__(f"{field}: {reason}" if field else reason)
        self.field = field
        self.reason = reason
        self.mistakes = tuple(mistakes) or (Mistake(field, reason),)


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


class Role(_Strict, frozen=True, kw_only=True):
    """One kind of replica in a job. A field that is not set here is taken from the job."""

    replicas: Replicas = Replicas()
    gpus: Annotated[int, Meta(ge=0, le=GPUS_PER_REPLICA_MAX, description="Whole GPUs per replica.")] = 0
    share: GpuShare | None = None
    cpus: Annotated[float, Meta(ge=0.001, le=4096, description="CPU cores per replica.")] = 1.0
    memory: Size = "1GiB"
    shm: Size = "64MiB"
    egress: Annotated[Size, Meta(description="What a replica may send per second, such as `2500KB`.")] | None = None
    image: Image | None = None
    command: Command | None = None
    env: Env = {}

    def __post_init__(self) -> None:
        if self.gpus and self.share is not None:
            raise ValueError("ask for whole gpus or for a share of one, not for both")
        if not 0 < self.memory_bytes <= MEMORY_BYTES_MAX:
            raise ValueError(f"memory {self.memory} is outside 1B to 64TiB")
        if size_bytes(self.shm) > self.memory_bytes:
            raise ValueError(f"shm {self.shm} is more than memory {self.memory}")
        if self.egress is not None and size_bytes(self.egress) < EGRESS_BYTES_MIN:
            raise ValueError(f"egress {self.egress} is less than {EGRESS_BYTES_MIN}B per second")

    @property
    def memory_bytes(self) -> int:
        return size_bytes(self.memory)

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


class Volume(_Strict, frozen=True, kw_only=True):
    """A folder of the node that the job sees at `target`; `source` must lie in the operator's allow-list."""

    source: Path
    target: Path
    read_only: bool = False

    def __post_init__(self) -> None:
        for path in (self.source, self.target):
            if ".." in path.split("/"):
                raise ValueError(f"{path} must not contain '..'")
        covered = "/" + "/".join(part for part in self.target.split("/") if part not in ("", "."))
        if covered == "/" or covered.startswith(OF_THE_CONTAINER) or covered in OF_THE_CONTAINER:
            raise ValueError(f"{self.target} is the container's own")


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
            Size, Meta(description="What was never used may be taken back down to this; else to what it asks for.")
        ]
        | None
    ) = None
    share_min: (
        Annotated[
            float,
            Meta(gt=0, le=1, description="A share that is hardly used may go down to this; else to what it asks for."),
        ]
        | None
    ) = None
    egress: Size | None = None
    egress_total: (
        Annotated[Size, Meta(description="What all replicas together may send per second; each then has a cap.")] | None
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
            raise ValueError("say every or on_stop: neither is set")


class ResizeHow(StrEnum):
    LIVE = "live"  # ranks join and leave while the others run
    RESTART = "restart"  # it checkpoints, stops, and starts with another size
    NEVER = "never"


class ResizeSignal(StrEnum):
    HUP = "SIGHUP"
    USR1 = "SIGUSR1"
    USR2 = "SIGUSR2"


class ResizeRules(_Strict, frozen=True, kw_only=True):
    """How the job takes another size. Not said: by `restart` if it writes checkpoints, else never.

    `signal`: sent to the main process of each rank that stays, once `WEFT_MEMBERS` has changed.
    """

    how: ResizeHow | None = None
    signal: ResizeSignal | None = None


class ServiceProtocol(StrEnum):
    HTTP = "http"  # HTTP/1.1, WebSockets and server-sent events among it
    H2C = "h2c"  # HTTP/2 without TLS, as gRPC speaks it


class ServiceRules(_Strict, frozen=True, kw_only=True):
    """How requests reach the replicas of a job, and how many requests each replica takes.

    `path`: below which a replica serves; `{job}` in it
    stands for the id of the job. `ready`: the path that a replica answers with a status of 200 to 399 once it
    takes requests; if not set, a replica is ready once its port takes a connection. `concurrency`: requests at one
    replica at once. `queue`: the most requests that wait. `timeout`: from the arrival of a request to the first byte of
    its answer. `start`: the most time until a replica is ready. `drain`: the most time in which a replica that leaves
    finishes its requests. `max_surge`: replicas beyond the size of the service during an update. `public`: requests
    need no token.
    """

    port: Annotated[
        int, Meta(ge=1, le=65535, description="Where a container listens. WEFT_PORT says where a replica does.")
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


SERVICE_SECONDS = {"timeout": (0.001, 3600.0), "start": (1.0, 86400.0), "drain": (0.0, 3600.0)}
"""The least and the most of each duration of a service."""


class Objective(_Strict, frozen=True, kw_only=True):
    """What an inference job promises its users."""

    latency: Duration
    percentile: Annotated[float, Meta(gt=0, lt=100)] = 99.0
    rate: Annotated[float, Meta(gt=0, le=1e9, description="Requests per second.")]


class JobSpec(_Strict, frozen=True, kw_only=True):
    """One job as its user asks for it."""

    name: Token
    kind: Kind = Kind.TRAINING
    image: Image | None = None
    command: Command | None = None
    workdir: Path | None = None
    env: Env = {}
    roles: Annotated[dict[Token, Role], Meta(min_length=1, max_length=ROLES_MAX)] = msgspec.field(
        default_factory=lambda: {"worker": Role()}
    )
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    preemptible: bool = True
    grace: Duration = "30s"
    time_limit: Duration | None = None
    retries: Retries = Retries()
    volumes: Annotated[tuple[Volume, ...], Meta(max_length=64)] = ()
    labels: Annotated[dict[LabelName, LabelValue], Meta(max_length=64)] = {}
    progress: Progress | None = None
    objective: Objective | None = None
    service: ServiceRules | None = None
    pool: Token = "default"
    gpu_model: Annotated[str, Meta(min_length=1, max_length=100)] | None = None
    tuning: Tuning = Tuning()
    checkpoints: Checkpointing | None = None
    resize: ResizeRules = ResizeRules()
    pin: Pin | None = None
    read_only: Annotated[bool, Meta(description="Mount the container's own file system read-only.")] = False
    array: Indices | None = None
    sweep: Annotated[dict[SweepName, SweepValues], Meta(min_length=1, max_length=SWEPT_MAX)] | None = None
    sample: Sample | None = None
    after: Annotated[tuple[After, ...], Meta(max_length=AFTER_MAX)] = ()
    singleton: Annotated[
        bool, Meta(description="Starts once every earlier job of this name and tenant in its pool is over.")
    ] = False
    element: Annotated[Element | None, Meta(description="Of which array the job is an element; set by Weft.")] = None

    @property
    def is_array(self) -> bool:
        """Does the specification ask for many jobs?"""
        return self.array is not None or self.sweep is not None

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


def decode_spec(body: bytes, *, content: str = "json") -> JobSpec:
    """One specification from JSON or YAML bytes. Raises `SpecError`, which names the field and the reason."""
    if len(body) > SPEC_BYTES_MAX:
        raise SpecError("", f"the specification is {len(body)} bytes; at most {SPEC_BYTES_MAX} are read")
    try:
        spec = msgspec.convert(_yaml(body), JobSpec) if content == "yaml" else msgspec.json.decode(body, type=JobSpec)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _spec_error(error, body, content) from error
    except RecursionError as error:
        raise SpecError("", "nested too deeply") from error
    _check(spec)
    _check_text(spec)
    return spec


def _check(spec: JobSpec) -> None:
    """The rules that no field's type can express. Raises SpecError with the first mistake of each group."""
    mistakes: list[Mistake] = []
    for check in (_check_times, _check_objective, _check_service, _check_array, _check_sizes, _check_progress):
        try:
            check(spec)
        except SpecError as error:
            mistakes += error.mistakes
    if mistakes:
        raise SpecError(*mistakes[0], mistakes=mistakes)


def _check_times(spec: JobSpec) -> None:
    for field, text in _durations(spec):
        if duration_seconds(text) > DURATION_SECONDS_MAX:
            raise SpecError(field, f"{text} is longer than {DURATION_SECONDS_MAX // 86400} days")
    if spec.grace_seconds > 3600:
        raise SpecError("grace", f"{spec.grace} is longer than 1h")
    if spec.time_limit_seconds == 0:
        raise SpecError("time_limit", "a job that may not run at all")


def _check_objective(spec: JobSpec) -> None:
    if spec.objective is not None and spec.kind is not Kind.INFERENCE:
        raise SpecError("objective", f"is for kind inference, this is {spec.kind}")
    if spec.objective is not None and duration_seconds(spec.objective.latency) == 0:
        raise SpecError("objective.latency", "no request is answered in no time")


def _check_sizes(spec: JobSpec) -> None:
    if sum(role.replicas.want for role in spec.roles.values()) > REPLICAS_MAX:
        raise SpecError("roles", f"ask for more than {REPLICAS_MAX} replicas together")
    if sum(role.replicas.most for role in spec.roles.values()) > REPLICAS_MAX:
        raise SpecError("roles", f"may grow beyond {REPLICAS_MAX} replicas together")
    if spec.resize.signal is not None and spec.resize.how is not ResizeHow.LIVE:
        raise SpecError("resize.signal", "is for jobs that resize live: set resize.how to live")
    for name, role in spec.roles.items():
        if not (spec.image or role.image or spec.command or role.command):
            raise SpecError("command", f"role {name} has neither an image nor a command")
        if (least := spec.tuning.memory_min) is not None and size_bytes(least) > role.memory_bytes:
            raise SpecError("tuning.memory_min", f"{least} is more than the {role.memory} that role {name} asks for")
        if spec.tuning.egress_total is not None and role.egress is None:
            raise SpecError("tuning.egress_total", f"role {name} has no egress: what it sends cannot be held to a sum")


def _check_progress(spec: JobSpec) -> None:
    if spec.progress is not None:
        try:
            check_pattern(spec.progress.pattern)
        except ValueError as error:
            raise SpecError("progress.pattern", str(error)) from error


def _check_array(spec: JobSpec) -> None:
    if spec.element is not None:
        raise SpecError("element", "is set by Weft: say `array` to have many jobs of one specification")
    if spec.is_array and spec.service is not None:
        raise SpecError("service", "a job that serves requests is no array: it has replicas")
    try:
        indices, _ = ((), None) if spec.array is None else indices_of(spec.array)
        if spec.array is not None and bool(indices) == (spec.sweep is not None):
            wrong = "with a sweep only %N is said: its table has the elements" if indices else "names no index"
            raise IndicesError(wrong)
    except IndicesError as error:
        raise SpecError("array", str(error)) from error
    if spec.sample is not None and spec.sweep is None:
        raise SpecError("sample", "is for a sweep, and there is none")
    try:
        check_sweep(spec.sweep or {}, spec.sample)
    except SweepError as error:
        raise SpecError(error.field, error.reason) from error
    for number, one in enumerate(spec.after):
        if one.element_wise and not spec.is_array:
            raise SpecError(f"after[{number}].element_wise", "is for arrays, and this job has no `array`")


def _check_service(spec: JobSpec) -> None:
    for name, role in spec.roles.items():
        if not spec.is_service and role.replicas.least < 1:
            field = "want" if role.replicas.want < 1 else "min"
            why = "Expected `int` >= 1: only a service (kind inference with `service`) may have no replica"
            raise SpecError(f"roles.{name}.replicas.{field}", why)
        if role.replicas.most < 1:
            raise SpecError(f"roles.{name}.replicas.max", "at least one replica")
    service = spec.service
    if service is None:
        return
    if spec.kind not in (Kind.INFERENCE, Kind.NOTEBOOK):
        raise SpecError("service", f"is for kinds {Kind.INFERENCE} and {Kind.NOTEBOOK}, this is {spec.kind}")
    if len(spec.roles) > 1:
        raise SpecError("roles", "a job that serves requests has one role")
    if spec.kind is Kind.NOTEBOOK and sum(role.replicas.most for role in spec.roles.values()) > 1:
        raise SpecError("roles", "a notebook that serves requests has one replica")
    if spec.is_service and spec.pin is not None and spec.pin.gpu is not None:
        raise SpecError("pin.gpu", "a service is pinned to a node at most: its replicas come and go")
    if spec.is_service and spec.resize.how not in (None, ResizeHow.LIVE):
        raise SpecError("resize.how", f"is {ResizeHow.LIVE} for a service: its replicas come and go one by one")
    for name, (least, most) in SERVICE_SECONDS.items():
        if not least <= duration_seconds(getattr(service, name)) <= most:
            raise SpecError(f"service.{name}", f"{getattr(service, name)} is outside {least:g}s to {most:g}s")


def _durations(spec: JobSpec) -> Iterable[tuple[str, str]]:
    yield "grace", spec.grace
    yield "retries.backoff", spec.retries.backoff
    yield "retries.backoff_max", spec.retries.backoff_max
    if spec.checkpoints is not None and spec.checkpoints.every is not None:
        yield "checkpoints.every", spec.checkpoints.every
    if spec.time_limit is not None:
        yield "time_limit", spec.time_limit
    if spec.objective is not None:
        yield "objective.latency", spec.objective.latency


def _check_text(spec: JobSpec) -> None:
    """Refuse text that no store can hold, though YAML, and partly JSON, can write it."""
    try:
        encoded = msgspec.json.encode(spec)
    except UnicodeEncodeError:
        raise SpecError("", "has text that is not Unicode (half of a surrogate pair)") from None
    if b"\\u0000" in encoded and (field := _field_with_nul(msgspec.to_builtins(spec), "")):
        raise SpecError(field, "has a NUL character")


def _field_with_nul(value: object, path: str) -> str:
    if isinstance(value, str):
        return path if "\0" in value else ""
    items: Iterable[tuple[str, object]] = ()
    if isinstance(value, dict):
        if any("\0" in name for name in value):
            return path
        items = ((f"{path}.{name}".removeprefix("."), part) for name, part in value.items())
    elif isinstance(value, list | tuple):
        items = ((f"{path}[{number}]", part) for number, part in enumerate(value))
    return next((found for name, part in items if (found := _field_with_nul(part, name))), "")


def _spec_error(error: Exception, body: bytes, content: str) -> SpecError:
    """All mistakes, found by a second look at the document, part by part."""
    if not isinstance(error, msgspec.ValidationError):
        return SpecError("", str(error))
    try:
        document: object = _yaml(body) if content == "yaml" else msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as worse:  # no JSON, further on than the first decoder read
        return SpecError("", str(worse))
    except RecursionError:
        field = str(error).partition(" - at ")[2].strip("`").removeprefix("$").removeprefix(".")
        return SpecError(field, "nested too deeply")
    mistakes = mistakes_of(document, JobSpec, _PATTERN_WORDS)
    if not mistakes:
        return SpecError("", str(error))
    return SpecError(*mistakes[0], mistakes=mistakes)


def _yaml(body: bytes) -> Value:
    try:
        return read_yaml(body)
    except DocumentError as error:
        raise SpecError(error.field, error.reason) from error


_PATTERN_WORDS = {
    TOKEN_PATTERN: "expected lower-case letters, digits and '-', at most 63, no dots",
    PATH_PATTERN: "expected an absolute path, such as /home/ada/mnist: the node does not know your folder",
    IMAGE_PATTERN: "expected a container image, such as ghcr.io/ada/mnist:1.0",
    ENV_NAME_PATTERN: "expected a name of letters, digits and '_' that begins with no digit",
    INDICES_PATTERN: "expected indices such as 0-9, 1,3,5 or 0-99:2, and %N for how many at once: 0-99%8",
    NAMED_PATTERN: "expected the id or the name of a job or an array, or an element such as train_3",
    SWEEP_NAME_PATTERN: "expected a name of letters, digits and '_' that begins with a letter, at most 63",
    LABEL_NAME_PATTERN: "expected letters, digits and '.', '_', '/', '-' between them, at most 63",
}
