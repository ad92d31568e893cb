"""The verdict on GPUs that are checked before a gang: by how fast each is beside others of its model, on its node and
in the fleet, and how fast they are together."""

from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from weft.messages.signals import ModelSpeed
from weft.samples.benchmark_result import Measurement

SLOWER_MAX = 1.33  # times as slow as the others of its model: more than GPUs that are well differ
SPREAD_MAX = 0.05  # the median absolute deviation of the pulses over their median
KNOWN_LEAST = 2  # others that a GPU is compared with
KEPT = 64  # measurements of a model


class Speed(Struct, frozen=True, array_like=True):
    """The seconds that a GPU took for the fixed amounts of work, and for a copy from the host and to it."""

    compute: float
    memory: float
    copy_in: float | None = None
    copy_out: float | None = None


_WORDS = (
    ("compute", "its compute pulses take"),
    ("memory", "its memory pulses take"),
    ("copy_in", "copies from the host take"),
    ("copy_out", "copies to the host take"),
)


def speed_of(measured: Measurement) -> Speed:
    return Speed(measured.compute_s, measured.memory_s, measured.copy_in_s, measured.copy_out_s)


def speed_in_fleet(models: Sequence[ModelSpeed], *, model: str, emulated: bool) -> Speed | None:
    """The usual speed of a model, by the benchmarks of all nodes; None: too few GPUs of it were measured."""
    for one in models:
        if (one.model, one.emulated) == (model, emulated):
            return Speed(one.compute_s, one.memory_s, one.copy_in_s, one.copy_out_s)
    return None


def why_failed(measured: Measurement, others: Sequence[Speed], fleet: Speed | None = None) -> str:
    """Why the GPU must not be used for a gang; empty if it is well. `others`: the speeds of others of its model on its
    node; `fleet`: the usual one. The pulses of an emulated GPU say nothing: they run on a CPU that does other work
    too."""
    for name, spread in (("compute", measured.compute_spread), ("memory", measured.memory_spread)):
        if not measured.emulated and spread > SPREAD_MAX:
            return f"its {name} pulses differ by {spread:.1%}, more than {SPREAD_MAX:.0%}"
    speed = speed_of(measured)
    for name, words in _WORDS:
        known = [seconds for each in others if (seconds := getattr(each, name)) is not None]
        usual = None if fleet is None else getattr(fleet, name)
        if why := why_slow(getattr(speed, name), known, words, "those of its model on this node"):
            return why
        if why := why_slow(getattr(speed, name), [usual] * KNOWN_LEAST if usual else [], words, "usual for its model"):
            return why
    return ""


def why_slow(took: float | None, known: Sequence[float], words: str, whose: str) -> str:
    """Why this took too long beside others; empty if it did not, and if too few are known."""
    usual = median(known) if len(known) >= KNOWN_LEAST else 0.0
    if took is None or not usual > 0 or took <= SLOWER_MAX * usual:  # also if it is no number
        return ""
    return f"{words} {took / usual:.2f} times as long as {whose}"


def learnt(known: Sequence[Speed], measured: Measurement) -> tuple[Speed, ...]:
    """The measurements to compare with from now on."""
    return (*known, speed_of(measured))[-KEPT:]
