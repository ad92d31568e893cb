"""The verdict on a GPU that was checked before a gang: by how fast it is beside others of its model on its node."""

from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from weft.samples.benchmark_result import Measurement

SLOWER_MAX = 1.33  # times as slow as the others of its model: more than GPUs that are well differ
SPREAD_MAX = 0.05  # the median absolute deviation of the pulses over their median
KNOWN_LEAST = 2  # others that a GPU is compared with
KEPT = 64  # measurements of a model


class Speed(Struct, frozen=True, array_like=True):
    """The seconds that a GPU took for the fixed amounts of work."""

    compute: float
    memory: float


def speed_of(measured: Measurement) -> Speed:
    return Speed(measured.compute_s, measured.memory_s)


def why_failed(measured: Measurement, others: Sequence[Speed]) -> str:
    """Why the GPU must not be used for a gang; empty if it is well. `others`: the speeds of others of its model. The
    pulses of an emulated GPU say nothing: they run on a CPU that does other work too."""
    for name, spread in (("compute", measured.compute_spread), ("memory", measured.memory_spread)):
        if not measured.emulated and spread > SPREAD_MAX:
            return f"its {name} pulses differ by {spread:.1%}, more than {SPREAD_MAX:.0%}"
    if len(others) < KNOWN_LEAST:
        return ""
    for name, took, known in (
        ("compute", measured.compute_s, [each.compute for each in others]),
        ("memory", measured.memory_s, [each.memory for each in others]),
    ):
        if took > SLOWER_MAX * median(known):
            return f"its {name} pulses take {took / median(known):.2f} times as long as those of its model"
    return ""


def learnt(known: Sequence[Speed], measured: Measurement) -> tuple[Speed, ...]:
    """The measurements to compare with from now on."""
    return (*known, speed_of(measured))[-KEPT:]
