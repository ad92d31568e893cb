"""What was measured of each rank of a job in the last few seconds, as one `Window` a rank, and of the job as a whole.

Late, doubled or reordered samples are dropped earlier (`weft.samples.arrivals`). Impossible values are counted and
left out. Memory is bounded: sums are kept, and at most `KEPT_MAX` values of a rank's CPU and speed.
"""

import math
from collections.abc import Iterable, Sequence
from operator import attrgetter
from statistics import fmean, median

from msgspec import Struct

from weft.domain.job import Allocation, Job
from weft.messages.nodes import Pace, ProgressSeen, RunProgressed
from weft.messages.signals import GpuSample, NodeSampled, RunSample

WINDOW_SECONDS = 10.0
KEPT_MAX = 64
VALUE_MAX = 1e15  # of any rate, part or size: a larger value is no measurement
STEPS_MIN = 2  # a pace over fewer steps gives no speed
COUNTED_STEPS_MIN = 8  # between a rank's first and last report in a window: with fewer, its pace is more exact
COUNTED_SECONDS_MIN = 2.0

_RUN = (
    *("cpus_used", "cpu_throttled", "busiest_thread", "blocked", "memory_failures_rate", "major_faults_rate"),
    *("disk_read_rate", "disk_write_rate", "network_send_rate", "network_receive_rate", "network_resent_rate"),
    *("cpu_pressure", "memory_pressure", "disk_pressure"),
)
_HOST = ("cpus", "cpus_used", "cpu_pressure", "disk_pressure")
_GPU = ("utilisation", "sm_active", "dram_active", "power_part", "clock_part")
_of_run = attrgetter(*_RUN)
_of_host = attrgetter(*_HOST)


class Window(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rank. Means over its `samples`, in the units of `RunSample`; None: not reported.

    `cpus_p95` is of single samples, `memory_used` their largest, limits the latest. `speed`: samples per second where
    the rank reports them, else steps per second; `phases`: seconds per step. `gpus`: how many it holds; values of GPUs
    are means over them, except that `gpu_utilisation` is that of the least used.
    """

    rank: int
    role: str
    samples: int = 0
    cpus_used: float | None = None
    cpus_p95: float | None = None
    cpus_limit: float | None = None
    cpu_throttled: float | None = None
    busiest_thread: float | None = None
    blocked: float | None = None
    memory_used: int | None = None
    memory_limit: int | None = None
    memory_most: int | None = None  # the most in use since the tuner followed this epoch
    watched: int = 0  # windows since a limit of the job changed, this one included
    memory_failures_rate: float | None = None
    oom_kills: int = 0  # in this window
    major_faults_rate: float | None = None
    disk_read_rate: float | None = None
    disk_write_rate: float | None = None
    network_send_rate: float | None = None
    network_receive_rate: float | None = None
    network_resent_rate: float | None = None
    cpu_pressure: float | None = None
    memory_pressure: float | None = None
    disk_pressure: float | None = None
    egress: int | None = None  # the cap on what it sends, bytes per second
    host_cpus: float | None = None
    host_cpus_used: float | None = None
    host_cpu_pressure: float | None = None
    host_disk_pressure: float | None = None
    gpus: int = 0
    emulated: bool = False
    gpu_utilisation: float | None = None
    sm_active: float | None = None
    dram_active: float | None = None
    power_part: float | None = None  # of its power limit
    clock_part: float | None = None  # of its highest clock
    speed: float | None = None
    of_samples: bool = False  # False: `speed` is in steps
    steps_rate: float | None = None
    step_seconds: float | None = None
    phases: dict[str, float] = {}

    def phase_part(self, *names: str) -> float | None:
        """The part of a step's time that these phases take, 0–1; None if the rank reports none of them."""
        told = [self.phases[name] for name in names if name in self.phases]
        return min(1.0, sum(told) * self.steps_rate) if told and self.steps_rate else None

    @property
    def use_part(self) -> float | None:
        """CPU used, as a part of the limit."""
        if self.cpus_used is None or not self.cpus_limit:
            return None
        return self.cpus_used / self.cpus_limit


class JobWindow(Struct, frozen=True, kw_only=True):
    """All ranks of one job. Times are those of arrival, on the clock of this process."""

    job_id: str
    epoch: int
    began: float
    ended: float
    ranks: tuple[Window, ...]
    since: float = math.inf  # when the tuner began to follow this epoch

    @property
    def speeds(self) -> tuple[float, ...]:
        """Speeds of the ranks that report samples; if there are none, of those that report steps."""
        samples = tuple(rank.speed for rank in self.ranks if rank.speed is not None and rank.of_samples)
        return samples or tuple(rank.speed for rank in self.ranks if rank.speed is not None)

    @property
    def speed(self) -> float | None:
        """The job's speed: the mean of `speeds`."""
        return fmean(self.speeds) if self.speeds else None

    @property
    def total(self) -> float | None:
        """The speed of all ranks together: samples add up over ranks, steps are made by all of them together."""
        if any(rank.of_samples for rank in self.ranks):
            return sum(self.speeds)
        return self.speed

    @property
    def cpus_used(self) -> float | None:
        told = [rank.cpus_used for rank in self.ranks if rank.cpus_used is not None]
        return sum(told) if told else None


class Gathering:
    """`follow` jobs, `hear` reports on them, `close` their windows."""

    def __init__(self, *, window_seconds: float = WINDOW_SECONDS) -> None:
        self.window_seconds = window_seconds
        self.disbelieved = 0
        self._jobs: dict[str, _Gathered] = {}

    def follow(self, job: Job, *, now: float) -> None:
        """Follow a running job; start over in another epoch or with other ranks."""
        assert job.placement is not None
        allocations = {allocation.rank: allocation for allocation in job.placement.allocations}
        known = self._jobs.get(job.id)
        if known is None or known.epoch != job.epoch or known.ranks.keys() != allocations.keys():
            self._jobs[job.id] = _Gathered(job.epoch, allocations, now)
        else:
            for rank, allocation in allocations.items():
                known.ranks[rank].allocation = allocation

    def begin_anew(self, job_id: str, *, now: float) -> None:
        """The job was changed: earlier measurements do not count, nor does a pace that reaches back to before now."""
        if (gathered := self._jobs.get(job_id)) is not None:
            gathered.clean_since = now
            gathered.begin(now)
            for of_rank in gathered.ranks.values():
                of_rank.counted, of_rank.watched = [], 0

    def keep_only(self, job_ids: Iterable[str]) -> None:
        wanted = frozenset(job_ids)
        self._jobs = {job_id: gathered for job_id, gathered in self._jobs.items() if job_id in wanted}

    def hear(self, sampled: NodeSampled) -> None:
        gpus: dict[int, GpuSample] | None = None
        host = _of_host(sampled.host)
        for run in sampled.runs:
            of_rank = self._of(run.job_id, run.epoch, run.rank, sampled.node_id)
            if of_rank is None:
                continue
            held: tuple[GpuSample, ...] = ()
            if of_rank.allocation.gpus:
                if gpus is None:
                    gpus = {gpu.index: gpu for gpu in sampled.gpus}
                held = tuple(gpus[index] for index in of_rank.allocation.gpus if index in gpus)
            self.disbelieved += of_rank.add(run, host, held)

    def hear_progress(self, seen: ProgressSeen, *, now: float) -> None:
        for run in seen.runs:
            of_rank = self._of(run.job_id, run.epoch, run.rank, seen.node_id)
            if of_rank is not None:
                of_rank.count(run)
            if of_rank is not None and run.pace is not None:
                clean = now - run.pace.window_seconds >= self._jobs[run.job_id].clean_since
                self.disbelieved += of_rank.add_pace(run.pace, clean=clean)

    def memory_in_use(self, job_id: str) -> dict[int, int]:
        """Bytes, by rank, as last reported."""
        gathered = self._jobs.get(job_id)
        return {} if gathered is None else {rank: one.memory_now for rank, one in gathered.ranks.items()}

    def close(self, job_id: str, *, now: float) -> JobWindow | None:
        """Ends the window and begins the next; None while it is not long enough."""
        gathered = self._jobs.get(job_id)
        if gathered is None or now - gathered.began < self.window_seconds:
            return None
        ranks = tuple(gathered.ranks[rank].window() for rank in sorted(gathered.ranks))
        closed = JobWindow(
            job_id=job_id, epoch=gathered.epoch, began=gathered.began, ended=now, ranks=ranks, since=gathered.since
        )
        gathered.begin(now)
        return closed

    def _of(self, job_id: str, epoch: int, rank: int, node_id: str) -> "_OfRank | None":
        """The rank of a followed job that a report is about; None if it is not on that node."""
        gathered = self._jobs.get(job_id)
        if gathered is None or gathered.epoch != epoch:
            return None
        of_rank = gathered.ranks.get(rank)
        return of_rank if of_rank is not None and of_rank.allocation.node_id == node_id else None


class _Gathered:
    __slots__ = ("began", "clean_since", "epoch", "ranks", "since")

    def __init__(self, epoch: int, allocations: dict[int, Allocation], now: float) -> None:
        self.epoch = epoch
        self.began = self.clean_since = self.since = now
        self.ranks = {rank: _OfRank(allocation) for rank, allocation in allocations.items()}

    def begin(self, now: float) -> None:
        self.began = now
        for of_rank in self.ranks.values():
            of_rank.begin()


class _Means:
    """Sums and counts of `size` values, each of which may be missing in a sample."""

    __slots__ = ("counts", "sums")

    def __init__(self, size: int) -> None:
        self.sums = [0.0] * size
        self.counts = [0] * size

    def add(self, values: Sequence[float | None]) -> int:
        """Adds the values; returns how many are impossible."""
        wrong = 0
        for place, value in enumerate(values):
            if value is not None:
                if 0.0 <= value < VALUE_MAX:
                    self.sums[place] += value
                    self.counts[place] += 1
                else:
                    wrong += 1
        return wrong

    def of(self, place: int) -> float | None:
        return self.sums[place] / self.counts[place] if self.counts[place] else None


class _Count(Struct, frozen=True, kw_only=True):
    """`at`: on the node's clock."""

    at: float
    step: float
    samples: float | None


class _OfRank:
    __slots__ = (
        *("allocation", "counted", "cpus", "emulated", "gpu", "gpu_least", "host", "last", "memory", "memory_most"),
        *("memory_now", "ooms_before", "paces", "run", "samples", "watched"),
    )

    def __init__(self, allocation: Allocation) -> None:
        self.allocation = allocation
        self.ooms_before: int | None = None
        self.memory_most = self.memory_now = self.watched = 0
        self.counted: list[_Count] = []  # the first and the last of this window
        self.begin()

    def begin(self) -> None:
        self.run, self.host, self.gpu = _Means(len(_RUN)), _Means(len(_HOST)), _Means(len(_GPU))
        self.samples = self.memory = 0
        self.cpus: list[float] = []
        self.gpu_least = _Means(1)
        self.emulated = False
        self.last: RunSample | None = None
        self.paces: list[Pace] = []
        self.counted = self.counted[-1:]

    def count(self, run: RunProgressed) -> None:
        """Takes a report of progress. A repeated or late one is ignored; a rank that goes back to an earlier step
        starts over."""
        step, samples = run.progress.get("step"), run.progress.get("samples")
        if step is None or not run.at or (self.counted and run.at <= self.counted[-1].at):
            return
        here = _Count(at=run.at, step=step, samples=samples)
        on = self.counted and step >= self.counted[0].step and (samples or 0.0) >= (self.counted[0].samples or 0.0)
        self.counted = [self.counted[0], here] if on else [here]

    def add(self, run: RunSample, host: Sequence[float | None], held: Sequence[GpuSample]) -> int:
        wrong = self.run.add(_of_run(run)) + self.host.add(host)
        if run.cpus_used is not None and 0.0 <= run.cpus_used < VALUE_MAX and len(self.cpus) < KEPT_MAX:
            self.cpus.append(run.cpus_used)
        self.samples += 1
        self.memory_now = run.memory_used or 0
        self.memory = max(self.memory, self.memory_now)
        self.memory_most = max(self.memory_most, self.memory)
        if self.ooms_before is None:
            self.ooms_before = run.oom_kills
        self.last = run
        for gpu in held:
            self.emulated = self.emulated or gpu.emulated
            wrong += self.gpu.add(_of_gpu(gpu))
        if known := [gpu.utilisation for gpu in held if gpu.utilisation is not None]:
            self.gpu_least.add([min(known)])
        return wrong

    def add_pace(self, pace: Pace, *, clean: bool) -> int:
        rates = (pace.steps_rate, pace.step_seconds, pace.samples_rate, *pace.phases.values())
        if not all(rate is None or 0.0 <= rate < VALUE_MAX for rate in rates):
            return 1
        if clean and pace.steps >= STEPS_MIN and len(self.paces) < KEPT_MAX:
            self.paces.append(pace)
        return 0

    def window(self) -> Window:
        last, run = self.last, self.run
        self.watched += self.samples > 0
        means = {name: run.of(place) for place, name in enumerate(_RUN)}
        of_gpu = {name: self.gpu.of(place) for place, name in enumerate(_GPU) if name != "utilisation"}
        of_host = {f"host_{name}": self.host.of(place) for place, name in enumerate(_HOST)}
        ooms = 0
        if last is not None and last.oom_kills is not None:
            ooms = max(0, last.oom_kills - (self.ooms_before or 0))
            self.ooms_before = last.oom_kills
        return Window(
            rank=self.allocation.rank,
            role=self.allocation.role,
            samples=self.samples,
            cpus_p95=_p95(self.cpus),
            cpus_limit=None if last is None else last.cpus_limit,
            memory_used=self.memory or None,
            memory_limit=None if last is None else last.memory_limit,
            memory_most=self.memory_most or None,
            watched=self.watched,
            oom_kills=ooms,
            egress=self.allocation.egress,
            gpus=len(self.allocation.gpus),
            emulated=self.emulated,
            gpu_utilisation=self.gpu_least.of(0),
            **means,  # type: ignore[arg-type]  # each is a float or None, by name
            **of_host,  # type: ignore[arg-type]
            **of_gpu,  # type: ignore[arg-type]
            **(_paced(self.paces) | _counted(self.counted)),  # type: ignore[arg-type]
        )


def _of_gpu(gpu: GpuSample) -> tuple[float | None, ...]:
    power = gpu.power_watts / gpu.power_limit_watts if gpu.power_watts and gpu.power_limit_watts else None
    clock = gpu.sm_clock_mhz / gpu.sm_clock_max_mhz if gpu.sm_clock_mhz and gpu.sm_clock_max_mhz else None
    return gpu.utilisation, gpu.sm_active, gpu.dram_active, power, clock


def _p95(values: Sequence[float]) -> float | None:
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))] if values else None


def _counted(counts: Sequence[_Count]) -> dict[str, object]:
    """The speed between two reports: unlike a pace, it cannot reach back to before a change."""
    if len(counts) < 2:
        return {}
    first, last = counts
    steps, seconds = last.step - first.step, last.at - first.at
    if steps < COUNTED_STEPS_MIN or seconds < COUNTED_SECONDS_MIN:
        return {}
    samples = last.samples - first.samples if last.samples is not None and first.samples is not None else None
    return {
        "speed": (steps if samples is None else samples) / seconds,
        "of_samples": samples is not None,
        "steps_rate": steps / seconds,
    }


def _paced(paces: Sequence[Pace]) -> dict[str, object]:
    """Medians over the paces reported in a window."""
    if not paces:
        return {}
    samples = [pace.samples_rate for pace in paces if pace.samples_rate is not None]
    steps_rate = median(pace.steps_rate for pace in paces)
    names = sorted({name for pace in paces for name in pace.phases})
    return {
        "speed": median(samples) if samples else steps_rate,
        "of_samples": bool(samples),
        "steps_rate": steps_rate,
        "step_seconds": median(pace.step_seconds for pace in paces),
        "phases": {name: median(pace.phases[name] for pace in paces if name in pace.phases) for name in names},
    }
