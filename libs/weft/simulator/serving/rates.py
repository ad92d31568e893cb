"""When the requests of a service arrive: at a constant rate, or as the day goes, in bursts, or as recorded."""

from collections.abc import Sequence
from math import inf, pi

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Times = NDArray[np.float64]
STEP_S = 1.0  # within which a rate is constant
REQUESTS_MAX = 200_000_000  # of one service: more do not fit in memory


class Bursts(Struct, frozen=True, kw_only=True):
    """Every `every_s` seconds in the mean, at random, the rate is `times` as high for `lasts_s` seconds."""

    every_s: float
    lasts_s: float
    times: float = 4.0

    def __post_init__(self) -> None:
        for name in ("every_s", "lasts_s", "times"):
            if not 0 < getattr(self, name) < inf:
                raise ValueError(f"{name.removesuffix('_s')} of bursts must be above 0, and finite")


class RequestRate(Struct, frozen=True, kw_only=True):
    """Requests per second. `mean`, and `swing` of it (0 to 1) up and down once in `period_s`, highest at `peak_at_s`.

    `steps`: recorded instead: from each time on, that rate, until the next. `arrivals`: recorded times of requests.
    """

    mean: float = 0.0
    swing: float = 0.0
    period_s: float = 86_400.0
    peak_at_s: float = 50_400.0
    bursts: Bursts | None = None
    steps: tuple[tuple[float, float], ...] = ()
    arrivals: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.mean < inf:
            raise ValueError(f"mean must not be below 0, and finite: {self.mean:g}")
        if not 0 <= self.swing <= 1:
            raise ValueError(f"swing must be 0 to 1: {self.swing:g}")
        if not 0 < self.period_s < inf:
            raise ValueError(f"period must be above 0: {self.period_s:g}")


def rates_of(rate: RequestRate, lasts_s: float, dice: np.random.Generator) -> Times:
    """The rate in each second; the dice decide when bursts come."""
    at = np.arange(0.0, lasts_s, STEP_S)
    if rate.steps:
        times = np.array([when for when, _ in rate.steps])
        values = np.array([value for _, value in rate.steps])
        place = np.searchsorted(times, at, side="right") - 1
        rates = np.where(place >= 0, values[np.maximum(place, 0)], 0.0)
    else:
        rates = rate.mean * (1.0 + rate.swing * np.cos(2 * pi * (at - rate.peak_at_s) / rate.period_s))
    for begin, end in burst_spans(rate.bursts, lasts_s, dice):
        rates[(at >= begin) & (at < end)] *= rate.bursts.times if rate.bursts is not None else 1.0
    return rates


def burst_spans(bursts: Bursts | None, lasts_s: float, dice: np.random.Generator) -> Sequence[tuple[float, float]]:
    """When each burst begins and ends; no two at once."""
    found: list[tuple[float, float]] = []
    at = 0.0
    while bursts is not None:
        at += dice.exponential(bursts.every_s)
        if at >= lasts_s:
            break
        found.append((at, at + bursts.lasts_s))
        at += bursts.lasts_s
    return found


def arrivals_of(rate: RequestRate, lasts_s: float, dice: np.random.Generator) -> Times:
    """The times of all requests, in order: a Poisson process with that rate, or those that were recorded.

    Raises ValueError if there are too many.
    """
    if rate.arrivals:
        recorded = np.sort(np.array(rate.arrivals))
        return recorded[recorded < lasts_s]
    rates = rates_of(rate, lasts_s, dice)
    if float(rates.sum()) * STEP_S > REQUESTS_MAX:
        raise ValueError(f"more than {REQUESTS_MAX:,} requests to one service are not simulated")
    counts = dice.poisson(rates * STEP_S)
    seconds = np.repeat(np.arange(len(rates)) * STEP_S, counts)
    times: Times = np.sort(seconds + dice.random(len(seconds)) * STEP_S)
    return times[times < lasts_s]


def drawn(mean_s: float, cv: float, count: int, dice: np.random.Generator) -> Times:
    """Log-normal times with this mean and coefficient of variation."""
    if cv == 0:
        return np.full(count, mean_s)
    variance = np.log1p(cv * cv)
    times: Times = mean_s * np.exp(dice.standard_normal(count) * np.sqrt(variance) - variance / 2)
    return times
