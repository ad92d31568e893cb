"""A benchmark as a job, how it is gone about, and what is read from one that has ended."""

import threading
from collections.abc import Callable, Sequence

import msgspec
import pytest

from tests.support.benchmarks import bench_job, gpu, measurement
from tests.support.builders import job
from tests.support.fake_nvml import FakeGpu, FakeNvml
from weft.domain.classes import is_benchmark
from weft.domain.decoding.spec_decoder import decode_spec
from weft.domain.job import JobState
from weft.domain.spec import Pin, TuningMode
from weft.emulation.standin import REP_SECONDS, CpuStandIn
from weft.gpus.bench.protocol import Durations, measure
from weft.gpus.bench.watch import NvmlWatch, Unwatched
from weft.messages.signals import GpuSample
from weft.samples.benchmark_job import benchmark_spec, measured
from weft.samples.benchmark_result import Measurement, measurement_of, progress_line, spread
from weftd.executor.logs.progress import pairs


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Gpus:
    """Each repetition takes what the test says, and is remembered with its time."""

    emulated = False

    def __init__(self, clock: Clock, compute: Sequence[float], memory: float = 0.5) -> None:
        self.clock = clock
        self.computes = list(compute)
        self.memory_seconds = memory
        self.done: list[tuple[str, float]] = []

    def compute(self) -> float:
        took = self.computes[0] if len(self.computes) == 1 else self.computes.pop(0)
        return self._do("compute", took)

    def memory(self) -> float:
        return self._do("memory", self.memory_seconds)

    def copy_in(self) -> float:
        return self._do("copy-in", 0.25)

    def copy_out(self) -> float:
        return self._do("copy-out", 0.125)

    def _do(self, what: str, took: float) -> float:
        self.done.append((what, self.clock.now))
        self.clock.now += took
        return took


class Watched:
    """Between start and stop it saw what the test says."""

    def __init__(self, clock: Clock, *samples: GpuSample) -> None:
        self._clock = clock
        self._samples = samples
        self.from_to: list[float] = []

    def start(self) -> None:
        self.from_to.append(self._clock())

    def stop(self) -> Sequence[GpuSample]:
        self.from_to.append(self._clock())
        return self._samples


def test_first_warm_then_compute_then_memory() -> None:
    clock = Clock()
    gpus = Gpus(clock, [1.0])
    watch = Watched(clock)
    found = measure(gpus, watch, Durations.of(20.0), clock=clock)
    computes = [at for what, at in gpus.done if what == "compute"]
    moves = [at for what, at in gpus.done if what == "memory"]
    assert len(computes) == 10 + 20
    assert watch.from_to == [10.0, 30.0], "what is seen of clocks and power is of the steady part"
    assert min(moves) == 30.0
    assert len(moves) == 2 + 10
    assert (found.compute_s, found.memory_s, found.reps, found.seconds) == (1.0, 0.5, 10, 37.5)
    assert (found.copy_in_s, found.copy_out_s) == (0.25, 0.125)


def test_what_the_chip_did_while_it_was_cold_does_not_count() -> None:
    clock = Clock()
    found = measure(Gpus(clock, [0.5] * 20 + [1.0]), Unwatched(), Durations.of(20.0), clock=clock)
    assert found.compute_s == 1.0
    assert found.compute_spread == 0.0


def test_a_few_disturbed_repetitions_change_nothing() -> None:
    clock = Clock()
    calm = [1.0] * 10
    found = measure(Gpus(clock, [*calm, *calm, 3.0, 3.0, 3.0, 1.0]), Unwatched(), Durations.of(20.0), clock=clock)
    assert (found.compute_s, found.compute_spread) == (1.0, 0.0)


def test_a_slow_chip_is_measured_three_times_however_long_it_takes() -> None:
    clock = Clock()
    gpus = Gpus(clock, [60.0], memory=60.0)
    assert measure(gpus, Unwatched(), Durations.of(20.0), clock=clock).reps == 3


def test_clocks_power_and_what_held_them_back_are_told() -> None:
    def seen(clock: float, power: float, temperature: float, *events: str) -> GpuSample:
        return GpuSample(
            index=0,
            uuid="GPU-1",
            model="H200",
            sm_clock_mhz=clock,
            power_watts=power,
            temperature=temperature,
            clock_events=events,
        )

    clock = Clock()
    samples = [seen(1500, 690, 60, "sw-power-cap"), seen(1400, 700, 61, "sw-power-cap"), seen(1980, 100, 50)]
    samples.append(seen(1300, 705, 70, "sw-thermal-slowdown", "sw-power-cap"))
    found = measure(Gpus(clock, [1.0]), Watched(clock, *samples), Durations.of(4.0), clock=clock)
    assert (found.clock_mhz, found.power_w, found.temperature_c) == (1450, 695, 60.5)
    assert (found.power_capped, found.thermal) == (0.75, 0.25)


def test_spread_is_the_median_deviation_over_the_median() -> None:
    assert spread([1.0, 1.0, 1.0, 100.0]) == 0.0
    assert spread([0.9, 1.0, 1.1]) == pytest.approx(0.1)
    assert spread([1.8, 2.0, 2.2]) == pytest.approx(0.1)


# told and read


@pytest.mark.parametrize(
    "told", [measurement(), measurement(compute=1.23456789e-3, clock_mhz=1980, power_w=699.5, emulated=0)]
)
def test_what_is_told_is_what_is_read(told: Measurement) -> None:
    found = measurement_of(pairs(progress_line(told)))
    assert found == told


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"step": 3.0},
        {"bench_compute_s": 0.0},
        {"bench_compute_s": -1.0},
        {"bench_memory_s": float("nan")},
        {"bench_memory_s": float("inf")},
        {"bench_reps": 0.0},
        {"bench_compute_spread": -0.1},
    ],
)
def test_what_makes_no_sense_is_no_measurement(wrong: dict[str, float]) -> None:
    told = pairs(progress_line(measurement()))
    assert measurement_of(told) is not None
    assert measurement_of({**told, **wrong} if wrong and "step" not in wrong else wrong) is None


def test_progress_of_a_later_version_is_still_read() -> None:
    assert measurement_of({**pairs(progress_line(measurement())), "bench_tensor_s": 1.0, "step": 1.0}) is not None


# the job


def test_the_job_gives_way_to_all_others_and_is_pinned_to_its_gpu() -> None:
    spec = benchmark_spec(gpu("node-1", 3), node_id="node-1", pool="fast")
    assert decode_spec(msgspec.json.encode(spec)) == spec, "and is one that a gateway takes"
    assert (spec.priority, spec.preemptible, spec.retries.max, spec.tuning.mode) == (-1000, True, 0, TuningMode.OFF)
    assert (spec.pin, spec.pool) == (Pin(node="node-1", gpu=3), "fast")
    assert spec.roles["worker"].gpus == 1
    assert spec.labels["weft/benchmark"] == "1"
    assert is_benchmark(spec)
    assert not is_benchmark(job().spec)
    assert spec.time_limit is not None


def test_a_real_gpu_is_measured_longer_and_in_a_container_by_the_image_that_is_named() -> None:
    real = gpu("node-1", emulated=False)
    spec = benchmark_spec(real, node_id="n" * 63, pool="default", image="weft:local", driver="580.65.06")
    assert decode_spec(msgspec.json.encode(spec)) == spec
    assert spec.image == "weft:local"
    assert spec.command is not None
    assert spec.command[-1] == "20"
    assert benchmark_spec(real, node_id="node-1", pool="default", seconds=5).command[-1] == "5"  # type: ignore[index]
    assert benchmark_spec(gpu("node-1"), node_id="node-1", pool="default").command[-1] == "2"  # type: ignore[index]


def test_a_finished_one_says_what_it_measured_and_of_which_gpu() -> None:
    told = measurement(compute=1.33, emulated=0)
    found = measured(bench_job(gpu("node-1", 2), "node-1", told, at=50.0, driver="580.65.06", power=700.0))
    assert found is not None
    assert (found.uuid, found.node_id, found.gpu_index, found.model) == ("EMULATED-node-1-2", "node-1", 2, "H200")
    assert (found.driver, found.power_limit_watts, found.at) == ("580.65.06", 700.0, 50.0)
    assert found.measurement == told


def test_one_that_ran_elsewhere_or_did_not_succeed_says_nothing() -> None:
    of, told = gpu("node-1"), measurement()
    assert measured(bench_job(of, "node-1", told, at=1.0)) is not None
    assert measured(bench_job(of, "node-1", told, at=1.0, ran_on=("node-2", 0))) is None
    assert measured(bench_job(of, "node-1", told, at=1.0, ran_on=("node-1", 1))) is None
    assert measured(bench_job(of, "node-1", told, at=1.0, state=JobState.FAILED)) is None
    assert measured(bench_job(of, "node-1", told, at=1.0, spec=job().spec)) is None


# the stand-in


class Machine:
    """Its CPU takes `slice_seconds` for each slice of work; the wall's clock may run on meanwhile, for others."""

    def __init__(self, slice_seconds: Callable[[int], float], *, others: float = 0.0) -> None:
        self.clock = Clock()
        self.slept: list[float] = []
        self._slice_seconds = slice_seconds
        self._others = others
        self._asked = 0
        self._cpu = 5.0

    def cpu_time(self) -> float:
        """Asked before and after each slice."""
        if self._asked % 2:
            took = self._slice_seconds(self._asked // 2)
            self._cpu += took
            self.clock.now += took + self._others
        self._asked += 1
        return self._cpu

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.clock.now += seconds

    def stand_in(self, *slowdowns: float) -> CpuStandIn:
        left = list(slowdowns)
        return CpuStandIn(lambda: left.pop(0), cpu_time=self.cpu_time, clock=self.clock, sleep=self.sleep)


def test_a_repetition_takes_the_slowdown_and_really_lasts_so_long() -> None:
    machine = Machine(lambda _: 0.0003)
    bench = machine.stand_in(1.0, 1.5)
    assert bench.compute() == pytest.approx(REP_SECONDS)
    assert machine.clock.now == pytest.approx(REP_SECONDS)
    assert bench.memory() == pytest.approx(1.5 * REP_SECONDS)
    assert machine.clock.now == pytest.approx(2.5 * REP_SECONDS)


def test_a_machine_that_is_slow_for_a_while_makes_no_slow_gpu() -> None:
    """Half as fast from the tenth slice on, disturbed in every fifth, and others take the CPU in between."""
    machine = Machine(lambda number: 0.0003 * (1 + (number >= 10)) * (1 + 3 * (number % 5 == 0)), others=0.25)
    assert machine.stand_in(1.33).compute() == pytest.approx(1.33 * REP_SECONDS, rel=0.01)
    assert machine.slept == [0.0], "it is late already, so it waits for nothing"


def test_what_the_work_itself_takes_longer_is_measured() -> None:
    """It is a measurement, and not the slowdown read from a file."""
    machine = Machine(lambda number: 0.0003 * (1.2 if number % 4 in (0, 3) else 1.0))
    assert machine.stand_in(1.0).compute() == pytest.approx(1.2 * REP_SECONDS)


def test_a_kernel_that_counts_in_ticks_makes_no_nonsense() -> None:
    assert Machine(lambda _: 0.0).stand_in(1.33).compute() == pytest.approx(1.33 * REP_SECONDS)


# clocks


def test_clocks_are_looked_at_where_nvml_is_there() -> None:
    nvml = FakeNvml([FakeGpu(uuid="GPU-1", sm_clock=1500, power_milliwatts=650_000, temperature=60)])
    watch = NvmlWatch("GPU-1", nvml=nvml, look_seconds=0.001)
    watch.start()
    threading.Event().wait(0.02)
    seen = watch.stop()
    assert seen
    assert {(one.sm_clock_mhz, one.power_watts, one.temperature) for one in seen} == {(1500.0, 650.0, 60.0)}


def test_without_nvml_and_of_a_lost_gpu_nothing_is_seen() -> None:
    for nvml in (FakeNvml(init_fails=12), FakeNvml([FakeGpu(uuid="GPU-1", fails={"*": 15})]), FakeNvml([])):
        watch = NvmlWatch("GPU-1", nvml=nvml, look_seconds=0.001)
        watch.start()
        threading.Event().wait(0.01)
        assert watch.stop() == ()


def test_a_driver_that_hangs_keeps_nobody() -> None:
    nvml = FakeNvml([FakeGpu(uuid="GPU-1")])
    nvml.hang()
    watch = NvmlWatch("GPU-1", nvml=nvml, look_seconds=0.001, stop_seconds_max=0.05)
    watch.start()
    try:
        assert watch.stop() == ()
    finally:
        nvml.release()
