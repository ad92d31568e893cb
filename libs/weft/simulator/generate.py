"""Random workloads, without a trace: the same settings and the same seed give the same jobs.

`philly` follows Microsoft's trace of 2017 (82,247 jobs, about 31 an hour). Its GPU counts: 93.2 %
one, 2.2 % two, 2.3 % four, 2.0 % eight, 0.3 % more. Its durations in seconds, by quantile:

               5 %    10 %    25 %     50 %      75 %      90 %      95 %        99 %
    1–2 GPUs    47      60     102    1,067     2,705     8,682    20,481     153,422
    4+ GPUs     80     157     985   20,999   118,797   242,280   429,400   1,025,908

`synergy` has the durations that its authors, and PAL's, gave to jobs of that trace: 80 % of 60·10^U(1.5, 3) s, and
20 % of 60·10^U(3, 4) s.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from itertools import accumulate, pairwise
from math import inf
from random import Random
from typing import Generic, TypeVar

from msgspec import Struct, field

from weft.simulator.workload import MOST_SENSITIVE, TraceJob, Workload

Value = TypeVar("Value")

HOUR = 3600.0
PHILLY_JOBS_PER_HOUR = 31.5
PHILLY_GPUS = {1: 0.932, 2: 0.022, 4: 0.023, 8: 0.02, 16: 0.002, 32: 0.001}
PHILLY_GANG = 4  # from this many GPUs on, jobs are much longer

Quantiles = tuple[tuple[float, float], ...]
"""Pairs of a part of the jobs and the seconds that it is shorter than; between two pairs, log-uniform."""

PHILLY_SMALL: Quantiles = (
    (0.0, 1.0),
    (0.01, 17.0),
    (0.05, 47.0),
    (0.1, 60.0),
    (0.25, 102.0),
    (0.5, 1067.0),
    (0.75, 2705.0),
    (0.9, 8682.0),
    (0.95, 20481.0),
    (0.99, 153422.0),
    (1.0, 1000000.0),  # the longest took 3,256,045 s: a straight way there would make too many that long
)
PHILLY_LARGE: Quantiles = (
    (0.0, 1.0),
    (0.01, 30.0),
    (0.05, 80.0),
    (0.1, 157.0),
    (0.25, 985.0),
    (0.5, 20999.0),
    (0.75, 118797.0),
    (0.9, 242280.0),
    (0.95, 429400.0),
    (0.99, 1025908.0),
    (1.0, 4628226.0),
)


class GeneratorSettings(Struct, frozen=True, kw_only=True):
    """`durations`: a name in DURATIONS. `duration_least_s` and `duration_most_s` bound the log-uniform ones only.

    `gpus`, `classes` and `tenants` are the weights of each draw; they need not sum to 1.
    """

    jobs: int = 1000
    jobs_per_hour: float = PHILLY_JOBS_PER_HOUR
    durations: str = "philly"
    duration_least_s: float = 60.0
    duration_most_s: float = 86400.0
    gpus: Mapping[int, float] = field(default_factory=PHILLY_GPUS.copy)
    classes: Mapping[str, float] = field(default_factory=lambda: {MOST_SENSITIVE: 1.0})
    tenants: Mapping[str, float] = field(default_factory=lambda: {"default": 1.0})


SYNERGY = GeneratorSettings(
    jobs_per_hour=10.0,
    durations="synergy",
    gpus={count: weight for count, weight in PHILLY_GPUS.items() if count <= 16},
)


def generate(settings: GeneratorSettings, dice: Random) -> Workload:
    """Jobs that arrive independently of each other (Poisson). Raises ValueError with the setting that is wrong."""
    check(settings)
    duration_of = DURATIONS[settings.durations]
    gpus, classes, tenants = Urn(settings.gpus), Urn(settings.classes), Urn(settings.tenants)
    arrival_s = 0.0
    jobs: list[TraceJob] = []
    for number in range(settings.jobs):
        arrival_s += dice.expovariate(settings.jobs_per_hour / HOUR)
        count = gpus.draw(dice)
        jobs.append(
            TraceJob(
                id=str(number),
                arrival_s=arrival_s,
                gpus=count,
                work_s=duration_of(settings, count, dice),
                job_class=classes.draw(dice),
                tenant=tenants.draw(dice),
            )
        )
    note = f"generated: {settings.jobs_per_hour:g} jobs an hour, durations {settings.durations}"
    return Workload(name=f"generated-{settings.durations}", jobs=tuple(jobs), notes=(note,))


def check(settings: GeneratorSettings) -> None:
    if settings.jobs < 1:
        raise ValueError(f"jobs must be at least 1: {settings.jobs}")
    if not 0 < settings.jobs_per_hour < inf:
        raise ValueError(f"jobs_per_hour must be above 0, and finite: {settings.jobs_per_hour}")
    if settings.durations not in DURATIONS:
        raise ValueError(f"durations must be one of {', '.join(DURATIONS)}: {settings.durations}")
    if not 0 < settings.duration_least_s < inf:
        raise ValueError(f"duration_least_s must be above 0, and finite: {settings.duration_least_s}")
    if not settings.duration_least_s <= settings.duration_most_s < inf:
        bounds = f"{settings.duration_most_s} after {settings.duration_least_s}"
        raise ValueError(f"duration_most_s must not be below duration_least_s, and finite: {bounds}")
    if any(count < 1 for count in settings.gpus):
        raise ValueError(f"gpus must be at least 1 for each job: {min(settings.gpus)}")
    for name in ("gpus", "classes", "tenants"):
        weights = getattr(settings, name).values()
        if not all(0 <= weight < inf for weight in weights) or not 0 < sum(weights) < inf:
            raise ValueError(f"{name} must have weights of at least 0, not all of them 0: {list(weights)}")


class Urn(Generic[Value]):
    """Draws values by their weights."""

    def __init__(self, weights: Mapping[Value, float]) -> None:
        self._values = list(weights)
        self._sums = list(accumulate(weights.values()))

    def draw(self, dice: Random) -> Value:
        place = bisect_right(self._sums, dice.random() * self._sums[-1])
        return self._values[min(place, len(self._values) - 1)]


# durations


def _log_uniform(settings: GeneratorSettings, _gpus: int, dice: Random) -> float:
    return _between(settings.duration_least_s, settings.duration_most_s, dice.random())


def _synergy(_settings: GeneratorSettings, _gpus: int, dice: Random) -> float:
    exponent = dice.uniform(1.5, 3.0) if dice.random() < 0.8 else dice.uniform(3.0, 4.0)
    return 60.0 * math.pow(10.0, exponent)


def _philly(_settings: GeneratorSettings, gpus: int, dice: Random) -> float:
    quantiles = PHILLY_LARGE if gpus >= PHILLY_GANG else PHILLY_SMALL
    part = dice.random()
    for (lower, least), (upper, most) in pairwise(quantiles):
        if part < upper:
            return _between(least, most, (part - lower) / (upper - lower))
    return quantiles[-1][1]


def _between(least: float, most: float, part: float) -> float:
    """`part` of the way from one to the other, where each step multiplies."""
    return least * math.pow(most / least, part)


DURATIONS: Mapping[str, Callable[[GeneratorSettings, int, Random], float]] = {
    "philly": _philly,
    "log-uniform": _log_uniform,
    "synergy": _synergy,
}
