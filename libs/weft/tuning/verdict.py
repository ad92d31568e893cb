"""What holds one rank back: ordered tests over its window; the first that holds gives the verdict and its numbers.

The order is that of the notes: what does not fit in memory, a GPU that is busy (then nothing else matters), CPU, disk,
network, input, a lone thread, slowness without a cause, waste. Whether a rank waits for another is decided in `cause`.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum

from msgspec import Struct

from weft.domain.quantity import size_text
from weft.samples.thresholds import BLOCKED, DATA_PART, IO_WAIT, MEMORY_PRESSURE, THROTTLED, UNTHROTTLED
from weft.tuning.window import Window


class Verdict(StrEnum):
    GPU_BOUND = "gpu-bound"
    CPU_QUOTA_BOUND = "cpu-quota-bound"
    CPU_CONTENDED = "cpu-contended"
    MEMORY_BOUND = "memory-bound"
    IO_BOUND = "io-bound"
    NETWORK_BOUND = "network-bound"
    INPUT_BOUND = "input-bound"
    LAUNCH_BOUND = "launch-bound"
    STRAGGLER = "straggler"
    OVER_PROVISIONED = "over-provisioned"
    HEALTHY = "healthy"
    UNKNOWN = "unknown"


HELD_BACK = frozenset(
    {
        *(Verdict.CPU_QUOTA_BOUND, Verdict.CPU_CONTENDED, Verdict.MEMORY_BOUND, Verdict.IO_BOUND),
        *(Verdict.NETWORK_BOUND, Verdict.INPUT_BOUND, Verdict.LAUNCH_BOUND, Verdict.STRAGGLER),
    }
)

# A figure without a source is one of NEARCHUS's that the patents leave open, chosen here (docs/tuning.md).
SAMPLES_MIN = 3  # of ten in a window: fewer are too few for a verdict
MEMORY_FULL = 0.92  # of the limit; what is left is less than one more batch of most jobs
MEMORY_NEAR = 0.75  # of the limit: below it, meeting the limit means page cache that no rank misses
FAULTS_RATE = 100.0  # pages read again, per second: at a tenth of a millisecond each, a hundredth of the time
GPU_BUSY = 0.90  # part of the time in which a kernel ran: no host action gains more than the rest of it
SM_BUSY = 0.80  # GPM's SM activity at which a GPU counts as full
DRAM_BUSY = 0.70  # GPM's memory activity at which a GPU is bound by its memory
GPU_STARVED = 0.70  # below it a GPU waits for its host
USE_HIGH = 0.85  # of the limit. Alone it proves little: a lone thread at a limit of 1.0 uses 0.90 and lacks nothing
USE_SOME = 0.30  # of the limit: a rank that uses less is throttled in rare bursts that cost it little
CONTENDED = 0.20  # part of the time in which some task waited for a CPU
RUNS_CPUS = 0.1  # cores: a rank that uses less hardly ever wants one
HOST_FULL = 0.95  # of the node's cores
EGRESS_FULL = 0.80  # of the cap: a token bucket lets no more through once headers are counted
RESENT_PART = 0.02  # of the bytes sent: with 2 % lost, TCP runs far below its link
THREAD_BUSY = 0.90  # of a core, by the busiest thread
STRAGGLES = 1.20  # times the median step of the other ranks of its role
USE_LOW = 0.50  # of the limit
SPARE_CPUS = 0.25  # cores: less is not worth a change
SEGMENT_BYTES = 1448.0  # payload of a TCP segment


class Reading(Struct, frozen=True, kw_only=True):
    """The verdict on one window. `weight`, 0–1: roughly the part of the time lost to it, to compare ranks by."""

    code: Verdict
    sentence: str
    numbers: dict[str, float] = {}
    weight: float = 0.0


Test = Callable[[Window, float | None], Reading | None]
"""Takes a window, and the median time of a step on the other ranks of its role."""


def read(window: Window, peers_step: float | None = None) -> Reading:
    """The bottleneck of this rank, apart from other ranks."""
    if window.samples < SAMPLES_MIN or window.cpus_used is None:
        sentence = (
            f"only {window.samples} samples arrived" if window.samples < SAMPLES_MIN else "its CPU use is not reported"
        )
        return Reading(code=Verdict.UNKNOWN, sentence=sentence, numbers={"samples": float(window.samples)})
    return next(found for test in TESTS if (found := test(window, peers_step)) is not None)


def failing_memory(window: Window, _: float | None) -> Reading | None:
    """The rank meets its limit again and again at a cost: pages are read again, allocations stall, no slack is left."""
    part = _memory_part(window)
    rate = window.memory_failures_rate or 0.0
    faults, pressure = window.major_faults_rate or 0.0, window.memory_pressure or 0.0
    near = pressure >= MEMORY_PRESSURE or (part or 0.0) >= MEMORY_NEAR
    uncounted = faults >= FAULTS_RATE and near  # newer kernels count no failures in version 1
    if not window.oom_kills and not uncounted and not (rate > 0.0 and (near or faults >= FAULTS_RATE)):
        return None
    numbers = _told(
        memory_part=part, failures_rate=rate, major_faults_rate=faults, pressure=pressure, oom_kills=window.oom_kills
    )
    often = f"reaches its memory limit {rate:.0f} times" if rate else f"reads {faults:.0f} evicted pages again"
    sentence = f"{often} a second{_of_memory(window)}"
    return Reading(code=Verdict.MEMORY_BOUND, sentence=sentence, numbers=numbers, weight=1.0)


def busy_gpu(window: Window, peers_step: float | None) -> Reading | None:
    """The rank's GPU works nearly all the time. A rank slower than its peers is left to the tests that follow."""
    if not window.gpus or window.gpu_utilisation is None or _straggles(window, peers_step):
        return None
    waits = window.phase_part("t_data", "t_wait")
    active, memory = window.sm_active or 0.0, window.dram_active or 0.0
    busy = window.gpu_utilisation >= GPU_BUSY or active >= SM_BUSY or memory >= DRAM_BUSY
    if not busy or (waits or 0.0) >= DATA_PART:
        return None
    numbers = _told(gpu_utilisation=window.gpu_utilisation, sm_active=window.sm_active, dram_active=window.dram_active)
    sentence = f"keeps its {_gpu_words(window)} busy {window.gpu_utilisation:.0%} of the time"
    return Reading(code=Verdict.GPU_BOUND, sentence=sentence, numbers=numbers)


def full_memory(window: Window, _: float | None) -> Reading | None:
    """No time is lost yet, but little memory is left."""
    part = _memory_part(window)
    if part is None or part < MEMORY_FULL:
        return None
    sentence = f"has little memory left{_of_memory(window)}"
    return Reading(code=Verdict.MEMORY_BOUND, sentence=sentence, numbers={"memory_part": part}, weight=0.05)


def starved_gpu_input(window: Window, _: float | None) -> Reading | None:
    """A GPU waits for data, as the job itself reports."""
    part = window.phase_part("t_data")
    known = window.gpus and window.gpu_utilisation is not None and not window.emulated
    return _input(window, part) if known and part is not None and part >= DATA_PART else None


def throttled_cpu(window: Window, _: float | None) -> Reading | None:
    """The rank would use more CPU than its limit. Neither high use alone nor rare bursts prove that."""
    throttled, part = window.cpu_throttled, window.use_part
    if part is None:
        return None
    held = throttled is not None and throttled >= THROTTLED and part >= USE_SOME
    full = part >= USE_HIGH and (throttled is None or throttled >= UNTHROTTLED)
    if not held and not full:
        return None
    numbers = _told(cpu_throttled=throttled, cpus_used=window.cpus_used, cpus_limit=window.cpus_limit, part_used=part)
    used = f"uses {window.cpus_used:.2f} of its {window.cpus_limit:.2f} cores"
    often = "" if throttled is None else f" and is held back in {throttled:.0%} of its CPU periods"
    weight = max(throttled or 0.0, THROTTLED)
    return Reading(code=Verdict.CPU_QUOTA_BOUND, sentence=used + often, numbers=numbers, weight=weight)


def contended_cpu(window: Window, _: float | None) -> Reading | None:
    """The rank's limit leaves room, the node does not: by the rank's CPU pressure, or if unreported, by a full node."""
    if (window.cpu_throttled or 0.0) >= UNTHROTTLED or (window.cpus_used or 0.0) < RUNS_CPUS:
        return None
    if window.cpu_pressure is not None:
        waits, told = window.cpu_pressure, "cpu_pressure"
    elif (
        window.host_cpus and window.host_cpus_used is not None and window.host_cpus_used >= HOST_FULL * window.host_cpus
    ):
        waits, told = window.host_cpu_pressure or 0.0, "host_cpu_pressure"
    else:
        return None
    if waits < CONTENDED:
        return None
    numbers = _told(**{told: waits}, host_cpus=window.host_cpus, host_cpus_used=window.host_cpus_used)
    sentence = f"waits for a CPU {waits:.0%} of the time, although it is below its CPU limit"
    return Reading(code=Verdict.CPU_CONTENDED, sentence=sentence, numbers=numbers, weight=min(1.0, waits))


def waiting_for_disk(window: Window, _: float | None) -> Reading | None:
    own = window.disk_pressure
    blocked = window.blocked or 0.0
    traffic = (window.disk_read_rate or 0.0) + (window.disk_write_rate or 0.0)
    waits = own if own is not None else (window.host_disk_pressure or 0.0) if traffic >= 1 << 20 else 0.0
    if waits < IO_WAIT and blocked < BLOCKED:
        return None
    numbers = _told(disk_pressure=waits, blocked=blocked, disk_rate=traffic)
    sentence = f"waits for its disk {max(waits, blocked):.0%} of the time, at {size_text(traffic)}/s"
    return Reading(code=Verdict.IO_BOUND, sentence=sentence, numbers=numbers, weight=min(1.0, max(waits, blocked)))


def full_network(window: Window, _: float | None) -> Reading | None:
    """The rank sends as much as it may, or sends much of it twice."""
    sent = window.network_send_rate
    if sent is None:
        return None
    part = sent / window.egress if window.egress else 0.0
    resent = (window.network_resent_rate or 0.0) * SEGMENT_BYTES / sent if sent > 1 << 20 else 0.0
    if part < EGRESS_FULL and resent < RESENT_PART:
        return None
    numbers = _told(sent_rate=sent, egress=window.egress, part_used=part or None, resent_part=resent)
    if part >= EGRESS_FULL:
        sentence = f"sends {size_text(sent)}/s of the {size_text(window.egress or 0)}/s that it may"
    else:
        sentence = f"retransmits {resent:.0%} of the {size_text(sent)}/s that it sends"
    return Reading(code=Verdict.NETWORK_BOUND, sentence=sentence, numbers=numbers, weight=min(1.0, max(part, resent)))


def lone_thread(window: Window, _: float | None) -> Reading | None:
    """The GPU waits for one thread that is busy all the time: more cores would not help the rank."""
    busiest, gpu = window.busiest_thread, window.gpu_utilisation
    if busiest is None or busiest < THREAD_BUSY or gpu is None or gpu >= GPU_STARVED or not window.gpus:
        return None
    if window.emulated:
        return None
    numbers = _told(busiest_thread=busiest, gpu_utilisation=gpu, cpus_used=window.cpus_used)
    sentence = f"one thread is busy {busiest:.0%} of the time, its {_gpu_words(window)} only {gpu:.0%}"
    return Reading(code=Verdict.LAUNCH_BOUND, sentence=sentence, numbers=numbers, weight=1.0 - gpu)


def straggling(window: Window, peers_step: float | None) -> Reading | None:
    """The rank is slower than its peers, and no earlier test explains it."""
    if not _straggles(window, peers_step):
        return None
    assert window.step_seconds is not None
    assert peers_step is not None
    times = window.step_seconds / peers_step
    numbers = _told(step_seconds=window.step_seconds, peers_step_seconds=peers_step, clock_part=window.clock_part)
    sentence = f"takes {times:.2f} times as long for a step as its peers, and nothing measured says why"
    return Reading(code=Verdict.STRAGGLER, sentence=sentence, numbers=numbers, weight=1.0 - 1.0 / times)


def slow_input(window: Window, _: float | None) -> Reading | None:
    part = window.phase_part("t_data")
    return _input(window, part) if part is not None and part >= DATA_PART else None


def spare_cpu(window: Window, _: float | None) -> Reading | None:
    """The rank leaves much of its CPU unused, even in its busiest second."""
    part, limit, most = window.use_part, window.cpus_limit, window.cpus_p95
    if part is None or limit is None or most is None or part >= USE_LOW:
        return None
    if most >= USE_LOW * limit * 1.3 or limit - most < SPARE_CPUS or (window.cpu_throttled or 0.0) >= UNTHROTTLED:
        return None
    numbers = _told(cpus_used=window.cpus_used, cpus_p95=most, cpus_limit=limit, part_used=part)
    sentence = f"uses {window.cpus_used:.2f} of its {limit:.2f} cores, {most:.2f} in its busiest second"
    return Reading(code=Verdict.OVER_PROVISIONED, sentence=sentence, numbers=numbers)


def nothing(window: Window, _: float | None) -> Reading:
    numbers = _told(cpus_used=window.cpus_used, cpus_limit=window.cpus_limit, gpu_utilisation=window.gpu_utilisation)
    return Reading(code=Verdict.HEALTHY, sentence="none of its measurements shows a bottleneck", numbers=numbers)


TESTS: Sequence[Test] = (
    failing_memory,
    busy_gpu,
    full_memory,
    starved_gpu_input,
    throttled_cpu,
    contended_cpu,
    waiting_for_disk,
    full_network,
    lone_thread,
    straggling,
    slow_input,
    spare_cpu,
    nothing,
)


def _input(window: Window, part: float) -> Reading:
    numbers = _told(data_part=part, cpu_throttled=window.cpu_throttled, gpu_utilisation=window.gpu_utilisation)
    sentence = f"waits for its input {part:.0%} of each step"
    return Reading(code=Verdict.INPUT_BOUND, sentence=sentence, numbers=numbers, weight=part)


def _straggles(window: Window, peers_step: float | None) -> bool:
    return bool(window.step_seconds and peers_step and window.step_seconds > STRAGGLES * peers_step)


def _memory_part(window: Window) -> float | None:
    if not window.memory_used or not window.memory_limit:
        return None
    return window.memory_used / window.memory_limit


def _of_memory(window: Window) -> str:
    if not window.memory_used or not window.memory_limit:
        return ""
    return f": {size_text(window.memory_used)} of {size_text(window.memory_limit)} are in use"


def _gpu_words(window: Window) -> str:
    number = f"{window.gpus} GPUs" if window.gpus > 1 else "GPU"
    return f"emulated {number}" if window.emulated else number


def _told(**numbers: float | None) -> dict[str, float]:
    return {name: round(float(value), 6) for name, value in numbers.items() if value is not None}
