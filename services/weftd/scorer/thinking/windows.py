"""One rank and its GPUs in a window, and whether its step time depends on the GPUs alone.

A window counts only if nothing else held the rank back: no foreign process on its GPUs, its CPU not throttled, memory
and disk not short, no waiting for data; and if its steps are enough, and near to each other.

The steps of a run with a share of its GPU show what it got of the GPU, and not how fast the GPU is. What counts is the
GPU's own time for a step, where the arbiter measured that, the job has one rank (the GPU is busy too while ranks wait
for each other), and all others on the GPU were idle: caches that others filled make a step longer.
"""

from enum import StrEnum
from math import inf

from weft.domain.classes import settings_of
from weft.domain.job import Allocation, Job
from weft.messages.nodes import Pace, RunProgressed
from weft.messages.signals import GpuProcess, GpuSample, HostSample, RunSample
from weft.samples.thresholds import BLOCKED, DATA_PART, IO_WAIT, MEMORY_PRESSURE, UNTHROTTLED
from weftd.scorer.thinking.sharing import RunKey, SharedUse, is_busy

WINDOW_SECONDS = 15.0
WINDOW_SECONDS_MAX = 60.0
SETTLED_SECONDS = 30.0  # at first a job loads or compiles
FRESH_SECONDS = 10.0  # an older pace does not show the present
SAMPLES_LEAST = 0.15  # per second of a window: with fewer, foreign processes may be missed
STEPS_LEAST = 3
SPREAD_MOST = 0.2
STEP_SECONDS_LEAST, STEP_SECONDS_MOST = 1e-6, 3600.0
LOADED = 0.9  # utilisation from which on a clock is that of a GPU at work
CLOCK_JUMP_SECONDS = 30.0


class Unfit(StrEnum):
    """Why a window is no sample of the GPU."""

    UNTOLD = "untold"  # no steps lately
    UNSETTLED = "unsettled"
    UNSEEN = "unseen"  # too few samples of the node
    SHARED = "shared"
    THROTTLED = "throttled"
    MEMORY = "memory"
    IO = "io"
    DATA = "data"
    FEW_STEPS = "few-steps"
    UNSTEADY = "unsteady"
    BESIDE = "beside"  # others used the same GPU, each in its share: nothing else is wrong with the window


class GpuUse:
    """How one GPU was used, summed over samples."""

    __slots__ = ("clock", "clocks", "compute", "computes", "memory", "samples")

    def __init__(self) -> None:
        self.samples = self.computes = self.clocks = 0
        self.compute = self.memory = self.clock = 0.0

    def add(self, gpu: GpuSample) -> None:
        self.samples += 1
        clock = gpu.sm_clock_mhz or 0.0
        if 0 < clock < inf and (gpu.utilisation or 0.0) > LOADED and not gpu.emulated:
            self.clock += clock
            self.clocks += 1
        compute, memory = busy(gpu)
        if compute is not None and 0.0 <= compute <= 1.0 and 0.0 <= memory <= 1.0:
            self.compute += compute
            self.memory += memory
            self.computes += 1

    @property
    def mean_clock(self) -> float | None:
        """MHz, if the GPU was at work nearly all the time."""
        return self.clock / self.clocks if self.clocks > LOADED * self.samples else None


def busy(gpu: GpuSample) -> tuple[float | None, float]:
    """How busy its arithmetic units and its memory were, 0–1; None if this GPU does not count that.

    Of a chip that counts neither, power is used: a busy chip at low power waits for memory.
    """
    drawn = None
    if gpu.power_watts is not None and gpu.power_limit_watts:
        drawn = min(1.0, gpu.power_watts / gpu.power_limit_watts)
    compute = gpu.sm_active if gpu.sm_active is not None else gpu.tensor_active
    if compute is None:
        compute = drawn if drawn is not None and gpu.utilisation is not None else gpu.utilisation
    memory = gpu.dram_active if gpu.dram_active is not None else gpu.memory_utilisation
    if memory is None:
        if drawn is None or gpu.utilisation is None:
            return None, 0.0
        memory = max(0.0, gpu.utilisation - drawn)
    return compute, memory


class ScoredRun:
    """One rank of one epoch: its GPUs, its pace, and its use since its window began."""

    def __init__(self, job: Job, allocation: Allocation, *, workload: str, ranks: int, first: bool, now: float) -> None:
        self.job_id, self.epoch, self.rank = job.id, job.epoch, allocation.rank
        self.pool = job.pool
        self.node_id, self.gpus = allocation.node_id, allocation.gpus
        self.role, self.cpus = allocation.role, allocation.cpus
        self.has_share = allocation.share is not None
        self.workload = workload
        self.settings = settings_of(job.spec, allocation.role)
        self.ranks, self.first = ranks, first  # ranks of its job with GPUs, and whether it is the first of them
        self.pace: Pace | None = None
        self.heard_at = -inf
        self._told_at = -inf
        self.uses: dict[int, GpuUse] = {}
        self.begin(now)

    @property
    def place(self) -> tuple[str, tuple[int, ...], bool]:
        return self.node_id, self.gpus, self.has_share

    @property
    def job(self) -> tuple[str, int]:
        return self.job_id, self.epoch

    @property
    def key(self) -> RunKey:
        return self.job_id, self.epoch, self.rank

    @property
    def device_seconds(self) -> float | None:
        """The GPU's own time for a step of a run with a share, in this window; None if that is not known.

        Of the whole time, not of the median step: the GPU's time was measured as a part of all time.
        """
        used, pace = self.use_of_share.used, self.pace
        if not self.has_share or used is None or pace is None or self.ranks != 1 or pace.steps_rate <= 0:
            return None
        seconds = used / pace.steps_rate
        return seconds if STEP_SECONDS_LEAST <= seconds <= STEP_SECONDS_MOST else None

    @property
    def alone(self) -> bool:
        """True if its step time, as it reports it, leaves out waiting for other ranks."""
        return self.ranks == 1 or (self.pace is not None and "t_compute" in self.pace.phases)

    @property
    def whole_use(self) -> tuple[float, float] | None:
        """Compute and memory of its GPUs together, in this window."""
        told = [one for one in self.uses.values() if one.computes]
        if not told:
            return None
        count = sum(one.computes for one in told)
        return sum(one.compute for one in told) / count, sum(one.memory for one in told) / count

    def alike(self, model: str, *, of_one: bool) -> str:
        """The key of step times that compare."""
        told = "compute" if self.pace is not None and "t_compute" in self.pace.phases else "steps"
        measured = "device" if self.has_share else told if of_one else "together"
        return f"{self.role}/{self.ranks}x{len(self.gpus)}/{model}/{self.settings}/{measured}"

    def begin(self, now: float) -> None:
        """Begin a new window."""
        self.begun_at = now
        self.samples = self.seen = 0
        self.shared = False
        self.use_of_share = SharedUse()
        self.throttled = self.failures = self.blocked = 0.0
        self.memory_pressure = self.disk_pressure = 0.0
        self.uses = {gpu: GpuUse() for gpu in self.gpus}

    # messages

    def told(self, progressed: RunProgressed, now: float) -> bool:
        """Take in progress. False if it is not news, or makes no sense."""
        if progressed.pace is None:
            return True
        if not sound(progressed.pace):
            return False
        if self._told_at - CLOCK_JUMP_SECONDS < progressed.at <= self._told_at:
            return False
        self._told_at, self.heard_at, self.pace = progressed.at, now, progressed.pace
        return True

    def saw_gpu(self, gpu: GpuSample) -> None:
        self.uses[gpu.index].add(gpu)
        if gpu.processes and not self.shared:
            self.shared = any(self._foreign(process) for process in gpu.processes)

    def saw(self, sample: RunSample | None, host: HostSample) -> None:
        """Take in one sample of its node, whose values stand in for those that the run lacks."""
        self.samples += 1
        memory, disk = host.memory_pressure, host.disk_pressure
        if sample is not None:
            self.seen += 1
            self.throttled += sample.cpu_throttled or 0.0
            self.failures += sample.memory_failures_rate or 0.0
            self.blocked += sample.blocked or 0.0
            memory = memory if sample.memory_pressure is None else sample.memory_pressure
            disk = disk if sample.disk_pressure is None else sample.disk_pressure
        self.memory_pressure += memory or 0.0
        self.disk_pressure += disk or 0.0

    def _foreign(self, process: GpuProcess) -> bool:
        return (process.job_id, process.epoch, process.rank) != self.key and is_busy(process)

    # the window's result

    def due(self, now: float) -> bool:
        """True if its window is as long as its pace's, so that no step counts twice."""
        length = WINDOW_SECONDS if self.pace is None else max(WINDOW_SECONDS, self.pace.window_seconds)
        return now - self.begun_at >= min(length, WINDOW_SECONDS_MAX) - 1.0

    def unfit(self, now: float, *, settled: bool) -> Unfit | None:
        """Why the window is no sample of its GPUs; None: it is one."""
        pace = self.pace
        if pace is None or now - self.heard_at > FRESH_SECONDS:
            return Unfit.UNTOLD
        if not settled:
            return Unfit.UNSETTLED
        if self.samples < SAMPLES_LEAST * (now - self.begun_at):
            return Unfit.UNSEEN
        if self.shared or (self.has_share and self.device_seconds is None):
            return Unfit.SHARED
        beside = Unfit.BESIDE if self.has_share and not self.use_of_share.alone else None
        return self._held_back(pace) or _unsteady(pace) or beside

    def _held_back(self, pace: Pace) -> Unfit | None:
        seen, samples = max(1, self.seen), max(1, self.samples)
        if self.throttled / seen >= UNTHROTTLED:
            return Unfit.THROTTLED
        if self.failures > 0 or self.memory_pressure / samples >= MEMORY_PRESSURE:
            return Unfit.MEMORY
        if self.disk_pressure / samples >= IO_WAIT or self.blocked / seen >= BLOCKED:
            return Unfit.IO
        return Unfit.DATA if _waits_for_data(pace) else None


def is_steady(pace: Pace | None) -> bool:
    """Return True if the steps are enough, near to each other, and do not wait for data."""
    return pace is not None and not _waits_for_data(pace) and _unsteady(pace) is None


def _waits_for_data(pace: Pace) -> bool:
    told = pace.phases
    return told.get("t_data", 0.0) >= DATA_PART * max(pace.step_seconds, sum(told.values()))


def _unsteady(pace: Pace) -> Unfit | None:
    if pace.steps < STEPS_LEAST:
        return Unfit.FEW_STEPS
    return Unfit.UNSTEADY if pace.step_spread > SPREAD_MOST else None


def sound(pace: Pace) -> bool:
    """True if the pace makes sense."""
    rates = (pace.steps_rate, pace.samples_rate or 0.0, pace.step_spread, *pace.phases.values())
    return (
        STEP_SECONDS_LEAST <= pace.step_seconds <= STEP_SECONDS_MOST
        and 0 < pace.window_seconds < inf
        and pace.steps >= 0
        and all(0 <= rate < inf for rate in rates)
    )
