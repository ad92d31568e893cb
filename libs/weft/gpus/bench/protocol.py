"""The order and duration of a GPU's measurement: a warm-up, steady computing, then memory.

A power cap acts only after some seconds, and a cold chip is faster than a warm one: the warm-up is not counted.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Protocol

from msgspec import Struct

from weft.messages.signals import GpuSample
from weft.samples.benchmark_result import Measurement, spread

REPS_MIN, REPS_MAX = 3, 10_000
COPIES = 3
POWER_EVENTS = frozenset({"sw-power-cap", "hw-power-brake", "hw-slowdown"})
THERMAL_EVENTS = frozenset({"sw-thermal-slowdown", "hw-thermal-slowdown"})

Rep = Callable[[], float]


class Bench(Protocol):
    """A GPU to measure, or a stand-in. Each call does a fixed amount of work and returns its duration in seconds."""

    emulated: bool

    def compute(self) -> float: ...

    def memory(self) -> float: ...

    def copy_in(self) -> float:
        """Copy from the host."""
        ...

    def copy_out(self) -> float: ...


class SampleWatch(Protocol):
    """Samples clocks and power during a measurement."""

    def start(self) -> None: ...

    def stop(self) -> Sequence[GpuSample]:
        """The samples since `start`."""


class Durations(Struct, frozen=True, kw_only=True):
    """In seconds."""

    warm_up: float
    compute: float
    memory: float

    @classmethod
    def of(cls, seconds: float) -> "Durations":
        """For a measurement of `seconds` of steady computing; at 20 s: 10 s of warm-up before, 5 s of memory after."""
        return cls(warm_up=seconds / 2, compute=seconds, memory=seconds / 4)

    @property
    def total(self) -> float:
        return self.warm_up + self.compute + self.memory


def measure(bench: Bench, watch: SampleWatch, durations: Durations, *, clock: Callable[[], float]) -> Measurement:
    """Measure once. `clock` counts seconds and never goes back."""
    began = clock()
    steady(bench.compute, durations.warm_up, clock=clock, least=1)
    watch.start()
    try:
        computed = steady(bench.compute, durations.compute, clock=clock)
    finally:
        seen = watch.stop()
    steady(bench.memory, durations.memory / 5, clock=clock, least=1)
    moved = steady(bench.memory, durations.memory, clock=clock)
    copied_in, copied_out = copied(bench.copy_in), copied(bench.copy_out)
    return Measurement(
        compute_s=median(computed),
        memory_s=median(moved),
        compute_spread=spread(computed),
        memory_spread=spread(moved),
        reps=min(len(computed), len(moved)),
        emulated=float(bench.emulated),
        seconds=clock() - began,
        clock_mhz=_middle([sample.sm_clock_mhz for sample in seen]),
        power_w=_middle([sample.power_watts for sample in seen]),
        temperature_c=_middle([sample.temperature for sample in seen]),
        power_capped=_part(seen, POWER_EVENTS),
        thermal=_part(seen, THERMAL_EVENTS),
        copy_in_s=copied_in,
        copy_out_s=copied_out,
    )


def copied(copy: Rep) -> float:
    """The seconds of a copy, the median of COPIES; the first of all does not count."""
    return median([copy() for _ in range(COPIES + 1)][1:])


def steady(rep: Rep, seconds: float, *, clock: Callable[[], float], least: int = REPS_MIN) -> list[float]:
    """The seconds of each repetition, one after the other until the time is up, and `least` of them at least."""
    until = clock() + seconds
    took = [rep() for _ in range(least)]
    while clock() < until and len(took) < REPS_MAX:
        took.append(rep())
    return took


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _part(seen: Sequence[GpuSample], events: frozenset[str]) -> float | None:
    """The part of the samples with one of these events; None without any sample that knows its events."""
    return sum(not events.isdisjoint(sample.clock_events) for sample in seen) / len(seen) if seen else None
