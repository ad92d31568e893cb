"""What is measured and concluded from it: telemetry, scores, findings. All of it may be lost; the next comes soon."""

from typing import ClassVar

from msgspec import Struct

from libs.messages import Message


class GpuProcess(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One process on a GPU: its pid on the host, GPU memory in bytes, the part of the SMs' time it took, 0–1.

    `job_id`, `epoch` and `rank` name the run that it belongs to; an empty `job_id`: it is no run's.
    """

    pid: int
    memory_used: int | None = None
    sm_utilisation: float | None = None
    job_id: str = ""
    epoch: int = 0
    rank: int = 0


class GpuSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU now. Utilisation 0–1 (the part of the time in which any kernel ran), memory in bytes, watts, °C, MHz.

    None: not known on this machine. `problem`: what the driver says is wrong with it, when something is.
    `provider`: who told this: `nvml`, `emulated`, `fake` or `replayed`. Rates are bytes per second; energy is in
    joules since the driver was loaded. `sm_active`, `sm_occupancy`, `tensor_active` and `dram_active` are parts of what
    the chip could do, 0–1, where it counts them (GPM: Hopper and later). `clock_events`: why its clocks are lower than
    they could be, now; `power_capped_seconds` and `thermal_seconds`: for how long in all. Error counts are totals.
    """

    index: int
    uuid: str
    model: str
    emulated: bool = False
    utilisation: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    problem: str = ""
    provider: str = "nvml"
    driver: str = ""  # the driver's version
    memory_utilisation: float | None = None  # the part of the time in which memory was read or written, 0–1
    memory_clock_mhz: float | None = None
    energy_joules: float | None = None
    clock_events: tuple[str, ...] = ()  # of CLOCK_EVENTS
    power_capped_seconds: float | None = None
    thermal_seconds: float | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    rows_remapped_corrected: int | None = None
    rows_remapped_uncorrected: int | None = None
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    xid_errors: dict[str, int] = {}  # by XID, since telemetry began
    last_xid: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_replays: int | None = None
    pcie_receive_rate: float | None = None
    pcie_send_rate: float | None = None
    nvlinks_active: int | None = None
    nvlink_receive_rate: float | None = None
    nvlink_send_rate: float | None = None
    sm_active: float | None = None
    sm_occupancy: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None
    processes: tuple[GpuProcess, ...] = ()


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

    Pressure: the part of the time, 0–1, in which some task waited for that resource. None: this kernel does not tell.
    """

    cpus: float
    cpus_used: float | None = None
    memory_total: int
    memory_used: int
    disk_total: int = 0
    disk_used: int = 0
    disk_read_rate: float | None = None
    disk_write_rate: float | None = None
    network_receive_rate: float | None = None
    network_send_rate: float | None = None
    cpu_pressure: float | None = None
    memory_pressure: float | None = None
    disk_pressure: float | None = None


class RunSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run's use of its node. Units as in HostSample.

    `source`: `cgroup2`, `cgroup1` or `processes`, or two of them joined by `+`: where CPU and memory come from. Of
    processes, memory is what each has resident, so that what they share counts for each.
    """

    job_id: str
    epoch: int
    rank: int
    source: str
    cpus_used: float | None = None
    cpu_throttled: float | None = None  # part of its CPU periods in which it was held back, 0–1
    cpus_limit: float | None = None  # the quota in force, in cores
    busiest_thread: float | None = None  # cores used by the thread that uses most
    blocked: float | None = None  # part of its threads that wait for a disk (state D), 0–1
    memory_used: int | None = None
    memory_limit: int | None = None
    memory_failures_rate: float | None = None  # per second: how often an allocation met the limit
    oom_kills: int | None = None  # in all
    major_faults_rate: float | None = None  # per second: pages that had to be read again from disk
    network_resent_rate: float | None = None  # per second: segments of its network namespace sent again
    disk_read_rate: float | None = None
    disk_write_rate: float | None = None
    network_receive_rate: float | None = None
    network_send_rate: float | None = None
    cpu_pressure: float | None = None
    memory_pressure: float | None = None
    disk_pressure: float | None = None


class NodeSampled(Message, frozen=True, kw_only=True):
    """Telemetry → all, once a second."""

    subject: ClassVar[str] = "weft.telemetry.{node_id}"
    node_id: str
    pool: str
    at: float
    host: HostSample
    gpus: tuple[GpuSample, ...] = ()
    runs: tuple[RunSample, ...] = ()
    boot: str = ""  # another one each time telemetry starts: `seq` begins again then
    seq: int = 0  # grows by one with each sample; one that is not above the last is late, or doubled


class GpuScore(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How fast a GPU is for a class of job, as time relative to the typical GPU: 1.0 is typical, 1.1 is 10 % slower.

    `confidence`, from 0 to 1: how sure that is. `source`: where it is from (`benchmark`, `jobs`, `profile`, `assumed`);
    `measured_at`: when, where that is known; `samples`: from how many, since it was last thought to have changed.
    """

    node_id: str
    gpu_index: int
    job_class: str
    score: float
    confidence: float = 1.0
    source: str = ""
    measured_at: float | None = None
    samples: int = 0
    quarantined_until: float | None = None  # turned slow all at once: until then it counts as slow as it was

    @property
    def believed(self) -> float:
        """What placement goes by: of what was measured, as much as it is sure."""
        return 1.0 + (self.score - 1.0) * self.confidence


class GpusScored(Message, frozen=True, kw_only=True):
    """Scorer → scheduler: these scores are new (they are stored already)."""

    subject: ClassVar[str] = "weft.scores.{pool}"
    pool: str
    scores: tuple[GpuScore, ...]


class GpuPace(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How long one step of a workload takes on one GPU, as the median over some windows, in seconds; 0: not told.

    Only paces of one `workload` that are `alike` compare. `score`: what its scorer believes of that GPU. `compute` and
    `memory`: how busy it is kept, 0–1, where that is known.
    """

    workload: str  # `libs.domain.classes.workload_of`
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
    """Scorer → scorers: paces on the GPUs of its nodes, from which all of them know what is typical."""

    subject: ClassVar[str] = "weft.paces.{pool}"
    pool: str
    scorer: str
    paces: tuple[GpuPace, ...]


class ScorerPresent(Message, frozen=True, kw_only=True):
    """Scorer → scorers, every second: I am here. Nodes are divided among those heard of lately."""

    subject: ClassVar[str] = "weft.scorers.{scorer}"
    scorer: str


class WorkloadClass(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which class the jobs of a workload belong to, learnt from how they use their GPUs."""

    workload: str
    job_class: str
    compute: float  # how busy they keep the arithmetic units, 0–1
    memory: float  # and the memory, 0–1
    samples: int = 0
    at: float = 0.0


class ClassesLearnt(Message, frozen=True, kw_only=True):
    """Scorer → scheduler: these workloads are of these classes (that is stored already)."""

    subject: ClassVar[str] = "weft.classes.{pool}"
    pool: str
    classes: tuple[WorkloadClass, ...]


class CurvePoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was measured at one size. `speed` in samples per second of the whole job, else in steps per second."""

    replicas: int
    cpus: float  # cores of the role's replicas together
    speed: float
    spread: float = 0.0  # of `speed` between windows: median absolute deviation over median
    windows: int = 1
    at: float = 0.0


class Curve(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Throughput of a job, or of a workload as a prior, against its replicas and CPUs."""

    subject: str  # `job:<id>` or `workload:<workload>`
    pool: str
    points: tuple[CurvePoint, ...] = ()
    at: float = 0.0


class RankVerdict(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What holds one rank of a job back, or the job as a whole (`rank` -1), with the numbers that say so.

    `code` is one of `libs.tuning.verdict.Verdict`. `since`: when it was first concluded, seconds since the epoch, UTC.
    """

    job_id: str
    epoch: int
    rank: int
    code: str
    sentence: str
    numbers: dict[str, float] = {}
    since: float = 0.0


class Finding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing a reallocator would do, and why. Nothing is changed by it."""

    code: str
    job_id: str = ""
    node_id: str = ""
    sentence: str
    numbers: dict[str, float] = {}


class PoolReviewed(Message, frozen=True, kw_only=True):
    """Reallocator → all: what it would have to do in this pool now."""

    subject: ClassVar[str] = "weft.findings.{pool}"
    pool: str
    at: float
    findings: tuple[Finding, ...] = ()
    verdicts: tuple[RankVerdict, ...] = ()
