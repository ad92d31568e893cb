"""Measurements and conclusions: telemetry, scores, findings. Any message may be lost; the next comes soon."""

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from weft.domain.cluster import GPUS_MAX
from weft.messages import Message
from weft.messages.bounds import (
    RUNS_MAX,
    Amount,
    Count,
    Epoch,
    Finite,
    GpuIndex,
    JobId,
    JobIdOrNone,
    Part,
    Rank,
    Score,
    Text,
    Time,
    Token,
    Whole,
    Word,
)

DISK_FREE_PART_MIN = 0.02
SERVICE_NAMES_MAX = 1024  # loops that stand still, or pools that are led, in one report


class GpuProcess(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process on a GPU: its pid on the host, its GPU memory in bytes, its part of the SMs' time, 0–1.

    `job_id`, `epoch` and `rank` name its run; an empty `job_id`: the process belongs to no run.
    """

    pid: Whole
    memory_used: Whole | None = None
    sm_utilisation: Finite | None = None
    job_id: JobIdOrNone = ""
    epoch: Epoch = 0
    rank: Rank = 0


class GpuSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU now. Utilisation 0–1 (the part of the time in which any kernel ran), memory in bytes, watts, °C, MHz.

    None: not known on this machine. `problem`: the driver's error, if the GPU has one.
    `provider`: the source: `nvml`, `emulated` or `fake`. Rates are bytes per second; energy is in
    joules since the driver was loaded. `sm_active`, `sm_occupancy`, `tensor_active` and `dram_active` are parts of what
    the chip's maximum, 0–1, if it counts them (GPM: Hopper and later). `clock_events`: why its clocks are lower than
    they could be, now; `power_capped_seconds` and `thermal_seconds`: for how long in all. Error counts are totals.
    """

    index: GpuIndex
    uuid: Word
    model: Word
    emulated: bool = False
    utilisation: Finite | None = None
    memory_used: Whole | None = None
    memory_total: Whole | None = None
    power_watts: Finite | None = None
    power_limit_watts: Finite | None = None
    temperature: Finite | None = None
    temperature_slowdown: Finite | None = None  # from which on the hardware slows the GPU down
    sm_clock_mhz: Finite | None = None
    sm_clock_max_mhz: Finite | None = None
    problem: Text = ""
    provider: Word = "nvml"
    driver: Word = ""  # the driver's version
    memory_utilisation: Finite | None = None  # the part of the time in which memory was read or written, 0–1
    memory_clock_mhz: Finite | None = None
    energy_joules: Finite | None = None
    clock_events: Annotated[tuple[Word, ...], Meta(max_length=64)] = ()  # of CLOCK_EVENTS
    power_capped_seconds: Finite | None = None
    thermal_seconds: Finite | None = None
    ecc_corrected: Whole | None = None
    ecc_uncorrected: Whole | None = None
    rows_remapped_corrected: Whole | None = None
    rows_remapped_uncorrected: Whole | None = None
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    ecc_uncorrected_volatile: Whole | None = None  # since the last reset
    recovery_action: Whole | None = None  # that the driver asks for, by NVML's number; 0: none
    resets: Count = 0  # since telemetry began
    xid_errors: Annotated[dict[Word, Count], Meta(max_length=1024)] = {}  # by XID, since telemetry began
    last_xid: Whole | None = None
    pcie_generation: Whole | None = None
    pcie_width: Whole | None = None
    pcie_replays: Whole | None = None
    pcie_receive_rate: Finite | None = None
    pcie_send_rate: Finite | None = None
    nvlinks_active: Whole | None = None
    nvlink_receive_rate: Finite | None = None
    nvlink_send_rate: Finite | None = None
    sm_active: Finite | None = None
    sm_occupancy: Finite | None = None
    tensor_active: Finite | None = None
    dram_active: Finite | None = None
    processes: Annotated[tuple[GpuProcess, ...], Meta(max_length=RUNS_MAX)] = ()


CLOCK_EVENTS = (
    "idle",
    "applications-clocks",
    "sw-power-cap",
    "hw-slowdown",
    "sync-boost",
    "sw-thermal-slowdown",
    "hw-thermal-slowdown",
    "hw-power-brake",
    "display-clocks",
)
"""What NVML calls the reasons for which a GPU does not run at its highest clock."""


class HostSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The node itself. CPU in cores used, memory and disk in bytes, network and disk traffic in bytes per second.

    Pressure: the part of the time, 0–1, in which some task waited for that resource. None: this kernel does not report
    it.
    """

    cpus: Amount
    cpus_used: Finite | None = None
    memory_total: Whole
    memory_used: Whole
    disk_total: Whole = 0
    disk_used: Whole = 0
    disk_read_rate: Finite | None = None
    disk_write_rate: Finite | None = None
    network_receive_rate: Finite | None = None
    network_send_rate: Finite | None = None
    cpu_pressure: Finite | None = None
    memory_pressure: Finite | None = None
    disk_pressure: Finite | None = None

    @property
    def disk_full(self) -> bool:
        """Too full for a job to be started there."""
        return self.disk_total > 0 and self.disk_used > (1.0 - DISK_FREE_PART_MIN) * self.disk_total


class ShareSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run got of its share of a GPU lately, as the arbiter of its node counts it. None: not known, as on a node
    that holds no job to its share.

    `request` and `limit`, in force on the node, and `used`, `borrowed` (of `used`, what was beyond the request) and
    `lent` (of what it left, what others used) are parts of the GPU's time, 0–1. `wait_p99_seconds`: from asking for a
    turn on the GPU to getting it, of the latest turns. Memory in bytes, as the run's processes count it; of them all,
    `refused` allocations were beyond the limit, `overruns` turns were taken from processes that kept them too long, and
    `given_up` launches went on without a turn since the arbiter did not answer. `outside`: how many processes of the
    run use the GPU and are not held to the share, such as those that dropped the hook. `uncounted`: bytes that the
    run's processes have of the GPU's memory, as the GPU's driver counts, beyond `memory_used` and their contexts.
    """

    gpu_uuid: Word
    request: Part
    limit: Part
    used: Part | None = None
    borrowed: Part | None = None
    lent: Part | None = None
    wait_p99_seconds: Amount | None = None
    memory_used: Whole | None = None
    memory_limit: Whole | None = None
    refused: Whole | None = None
    overruns: Whole | None = None
    given_up: Whole | None = None
    outside: Whole | None = None
    uncounted: Whole | None = None


class RunSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run's use of its node. Units as in HostSample.

    `source`: `cgroup2`, `cgroup1` or `processes`, or two of them joined by `+`: where CPU and memory come from. Of
    processes, memory is the sum of what each has resident, so shared memory counts for each.
    """

    job_id: JobId
    epoch: Epoch
    rank: Rank
    source: Word
    cpus_used: Finite | None = None
    cpu_throttled: Finite | None = None  # part of its CPU periods in which it was held back, 0–1
    cpus_limit: Finite | None = None  # the quota in force, in cores
    busiest_thread: Finite | None = None  # cores used by the thread that uses most
    blocked: Finite | None = None  # part of its threads that wait for a disk (state D), 0–1
    memory_used: Whole | None = None
    memory_limit: Whole | None = None
    memory_failures_rate: Finite | None = None  # per second: how often an allocation met the limit
    oom_kills: Whole | None = None  # in all
    major_faults_rate: Finite | None = None  # per second: pages that had to be read again from disk
    network_resent_rate: Finite | None = None  # per second: segments of its network namespace sent again
    disk_read_rate: Finite | None = None
    disk_write_rate: Finite | None = None
    network_receive_rate: Finite | None = None
    network_send_rate: Finite | None = None
    cpu_pressure: Finite | None = None
    memory_pressure: Finite | None = None
    disk_pressure: Finite | None = None
    share: ShareSample | None = None  # of a run that holds a share of a GPU


class NodeSampled(Message, frozen=True, kw_only=True):
    """Telemetry → all, once a second."""

    subject: ClassVar[str] = "weft.telemetry.{node_id}"
    node_id: Token
    pool: Token
    at: Time
    host: HostSample
    gpus: Annotated[tuple[GpuSample, ...], Meta(max_length=GPUS_MAX)] = ()
    runs: Annotated[tuple[RunSample, ...], Meta(max_length=RUNS_MAX)] = ()
    boot: Word = ""  # another one each time telemetry starts: `seq` begins again then
    seq: Count = 0  # grows by one with each sample; one that is not above the last is late, or doubled


class GpuScore(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU's score for a class of jobs: its time relative to the typical GPU's. 1.0 is typical, 1.1 is 10 % slower.

    `confidence` is from 0 to 1. `source`: `benchmark`, `jobs`, `shares` (jobs with a share of it), `profile` or
    `assumed`. `measured_at`: the time of the last sample, if known; `samples`: their number since the score's last
    change.
    """

    node_id: Token
    gpu_index: GpuIndex
    job_class: Word
    score: Score
    confidence: Part = 1.0
    source: Word = ""
    measured_at: Time | None = None
    samples: Count = 0
    quarantined_until: Time | None = None  # turned slow all at once: until then it counts as slow as it was

    @property
    def believed(self) -> float:
        """The score for placement: between 1 and the measured value, by its confidence."""
        return 1.0 + (self.score - 1.0) * self.confidence


class GpusScored(Message, frozen=True, kw_only=True):
    """Scorer → scheduler: new scores, which are stored already."""

    subject: ClassVar[str] = "weft.scores.{pool}"
    pool: str
    scores: tuple[GpuScore, ...]


class GpuPace(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The time of one step of a workload on one GPU, as the median over some windows, in seconds; 0: not known.

    Only paces of one `workload` that are `alike` compare. `score`: the GPU's present score. `compute` and `memory`: how
    busy the GPU is, 0–1, if known.
    """

    workload: str  # `weft.domain.classes.workload_of`
    job_class: str
    node_id: str
    gpu_index: int
    step_seconds: float
    windows: int
    at: float
    alike: str = ""
    score: float = 1.0
    compute: float | None = None
    memory: float | None = None


class PacesSeen(Message, frozen=True, kw_only=True):
    """Scorer → scorers: paces on the GPUs of its nodes, from which each scorer derives what is typical."""

    subject: ClassVar[str] = "weft.paces.{pool}"
    pool: str
    scorer: str
    paces: tuple[GpuPace, ...]


class ScorerPresent(Message, frozen=True, kw_only=True):
    """Scorer → scorers, every second: this scorer runs. Nodes are divided among the scorers with a recent message."""

    subject: ClassVar[str] = "weft.scorers.{scorer}"
    scorer: str


class ModelSpeed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How fast GPUs of a model are, by the benchmarks of all nodes: seconds for the fixed amounts of work, the median
    over `gpus` GPUs of the same driver and power limit. If there are several groups, each value is the slowest's."""

    model: str
    emulated: bool
    gpus: int
    compute_s: float
    memory_s: float
    copy_in_s: float | None = None
    copy_out_s: float | None = None


class SpeedsMeasured(Message, frozen=True, kw_only=True):
    """Scorer → executors: with what a node compares the GPUs that it checks before a job."""

    subject: ClassVar[str] = "weft.speeds"
    models: tuple[ModelSpeed, ...]


class WorkloadClass(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The class of a workload's jobs, learnt from how they use their GPUs."""

    workload: str
    job_class: str
    compute: float  # how busy they keep the arithmetic units, 0–1
    memory: float  # and the memory, 0–1
    samples: int = 0
    at: float = 0.0


class PairSlowdown(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job of `job_class` takes `slowdown` times as much of the GPU's own time for a step beside jobs of class
    `beside`. `confidence`: 0 to 1. `workloads`: how many were seen. `believed`: between 1 and the measured value."""

    job_class: str
    beside: str
    slowdown: float
    confidence: float
    workloads: int
    at: float = 0.0

    @property
    def believed(self) -> float:
        return 1.0 + (self.slowdown - 1.0) * self.confidence


class GangPoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The time of a gang for one unit of work, in seconds on typical GPUs. Gangs that are `alike` compare. `spread`:
    the part of the locality penalty that it pays where it ran; 1 across nodes, less on one node."""

    alike: str
    spread: float
    seconds: float
    windows: int = 1
    at: float = 0.0


class WorkloadPenalty(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Gangs of the workload take `penalty` times as long across nodes as on one node. `confidence`: 0 to 1. `points`:
    the times that show it; empty where only the penalty was asked for."""

    workload: str
    penalty: float
    confidence: float
    points: tuple[GangPoint, ...] = ()
    at: float = 0.0


class ClassesLearnt(Message, frozen=True, kw_only=True):
    """Scorer → scheduler: the classes of these workloads, which are stored already."""

    subject: ClassVar[str] = "weft.classes.{pool}"
    pool: str
    classes: tuple[WorkloadClass, ...]


class CurvePoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The measured speed at one size on GPUs of one model, which is empty if it is unknown.

    `speed` in samples per second of the whole job, else in steps per second.
    """

    replicas: int
    cpus: float  # cores of the role's replicas together
    speed: float
    spread: float = 0.0  # of `speed` between windows: median absolute deviation over median
    windows: int = 1
    at: float = 0.0
    model: str = ""


class Curve(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Throughput of a job, or of a workload as a prior, against its replicas and CPUs, by model of the GPUs."""

    subject: str  # `job:<id>` or `workload:<workload>`
    pool: str
    points: tuple[CurvePoint, ...] = ()
    at: float = 0.0


class RankVerdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What holds one rank of a job back, or the job as a whole (`rank` -1), with the numbers that show it.

    `code` is one of `weft.tuning.verdict.Verdict`. `since`: when it was first concluded, seconds since the epoch, UTC.
    """

    job_id: str
    epoch: int
    rank: int
    code: str
    sentence: str
    numbers: dict[str, float] = {}
    since: float = 0.0


NOT_TUNED = "not-tuned"
"""The code of a finding: limits of a job cannot be changed, because a node of the job enforces none."""


class Finding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change that a reallocator proposes, and why. The finding itself changes nothing."""

    code: str
    job_id: str = ""
    node_id: str = ""
    sentence: str
    numbers: dict[str, float] = {}


class PoolReviewed(Message, frozen=True, kw_only=True):
    """Reallocator → all: its findings in this pool now."""

    subject: ClassVar[str] = "weft.findings.{pool}"
    pool: str
    at: float
    findings: tuple[Finding, ...] = ()
    verdicts: tuple[RankVerdict, ...] = ()


class ServiceReported(Message, frozen=True, kw_only=True):
    """A process of a service of the cluster → gateways: how it is. Nodes are known by their own reports.

    `instance` names the process among those of its service; `up_seconds`: since it began; `stuck`: its loops that have
    stood still for too long; `leads`: of a scheduler, the pools that it leads. `ends`: this is its last report.
    """

    subject: ClassVar[str] = "weft.services.{service}"
    service: Token
    instance: Word
    version: Word
    up_seconds: Amount
    ready: bool
    stuck: Annotated[tuple[Word, ...], Meta(max_length=SERVICE_NAMES_MAX)] = ()
    leads: Annotated[tuple[Token, ...], Meta(max_length=SERVICE_NAMES_MAX)] = ()
    ends: bool = False
