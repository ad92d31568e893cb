"""What is measured and concluded from it: telemetry, scores, findings. All of it may be lost; the next comes soon."""

from typing import ClassVar

from msgspec import Struct

from libs.messages import Message


class GpuSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU now. Utilisation 0–1 (the part of the time in which any kernel ran), memory in bytes, watts, °C, MHz.

    None: not known on this machine. `problem`: what the driver says is wrong with it, when something is.
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
    memory_used: int | None = None
    memory_limit: int | None = None
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


class GpuScore(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How fast a GPU is for a class of job, as time relative to the typical GPU: 1.0 is typical, 1.1 is 10 % slower.

    `confidence`, from 0 to 1: how sure that is. `source`: where it is from; `measured_at`: when, where that is known.
    """

    node_id: str
    gpu_index: int
    job_class: str
    score: float
    confidence: float = 1.0
    source: str = ""
    measured_at: float | None = None

    @property
    def believed(self) -> float:
        """What placement goes by: of what was measured, as much as it is sure."""
        return 1.0 + (self.score - 1.0) * self.confidence


class GpusScored(Message, frozen=True, kw_only=True):
    """Scorer → scheduler: these scores are new (they are stored already)."""

    subject: ClassVar[str] = "weft.scores.{pool}"
    pool: str
    scores: tuple[GpuScore, ...]


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
