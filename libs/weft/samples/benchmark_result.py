"""The measurement of one GPU, and how a job reports it as progress: named numbers, `bench_compute_s=0.271`."""

import math
from collections.abc import Mapping, Sequence
from statistics import median

import msgspec
from msgspec import Struct

PREFIX = "bench_"


class Measurement(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU. `compute_s` and `memory_s`: seconds for a fixed amount of work, the median over `reps` repetitions.

    A spread is the median absolute deviation over the median. `reps`: of the two, the smaller number. Clock, power and
    temperature are medians while it computed; None: not known here. `power_capped` and `thermal`: the part of that
    time, 0–1, in which the driver held the clocks back for power or for heat. `seconds`: the whole duration.
    `copy_in_s` and `copy_out_s`: seconds to copy a fixed number of bytes from the host and to it.
    """

    compute_s: float
    memory_s: float
    compute_spread: float
    memory_spread: float
    reps: float
    emulated: float  # 1: no GPU was measured, but a stand-in for one
    seconds: float
    clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    power_capped: float | None = None
    thermal: float | None = None
    copy_in_s: float | None = None
    copy_out_s: float | None = None


class LinksMeasured(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The links of the GPUs of a run, measured by one program. `copies`: by uuid (of emulated GPUs by index), the
    seconds from the host and to it; `all_reduce_s`: of an all-reduce between all of them."""

    copies: dict[str, tuple[float, float]] = {}
    all_reduce_s: float | None = None


def progress_line(measurement: Measurement) -> str:
    """One line for the file that WEFT_PROGRESS names, its newline included."""
    told = {name: value for name, value in msgspec.structs.asdict(measurement).items() if value is not None}
    return " ".join(f"{PREFIX}{name}={value:.9g}" for name, value in told.items()) + "\n"


def measurement_of(progress: Mapping[str, float]) -> Measurement | None:
    """The measurement in a job's progress; None if it is no benchmark's, or makes no sense."""
    told = {name.removeprefix(PREFIX): value for name, value in progress.items() if name.startswith(PREFIX)}
    try:
        found = msgspec.convert(told, Measurement, strict=False)
    except msgspec.ValidationError:
        return None
    values = [value for value in msgspec.structs.astuple(found) if value is not None]
    sane = all(math.isfinite(value) and value >= 0 for value in values)
    return found if sane and found.compute_s > 0 and found.memory_s > 0 and found.reps >= 1 else None


def spread(values: Sequence[float]) -> float:
    """Median absolute deviation over the median; `values` are positive."""
    middle = median(values)
    return median(abs(value - middle) for value in values) / middle
