"""Locality penalties: how many times as long a gang of a workload takes across nodes as on one node, learnt from steps.

A gang's time is t x (1 + (penalty - 1) x spread). The spread is 1 across nodes, 0 on one node whose links cost nothing,
and between them on one node with slower links (`weft.planning.capacity.near.part_of`). Two spreads of equal gangs give
the penalty: 10 s for a unit of work on one node with spread 0, and 24 s across nodes, are a penalty of 2.4; with spread
0.5 on that node the same two times are a penalty of 8. Penalties that cannot be are cut off.

Every pair of times is a piece of evidence, worth at most one. The usual penalty is worth USUAL_COUNTS of it, so that a
single pair of noisy times does not decide where the gangs of a workload run.
"""

from collections.abc import Iterable, Sequence
from math import exp, inf, log
from statistics import median

from weft.messages.signals import GangPoint

USUAL = 1.7  # the PAL artifact simulates with it (SC'24)
USUAL_COUNTS = 0.2
PENALTY_LEAST, PENALTY_MOST = 1.0, 5.0
PENALTY_STEP = 0.05
SECONDS_MIN, SECONDS_MAX = 1e-15, 1e9  # for a unit of work; a node may report any number
SPREAD_STEP = 0.05  # spreads nearer to each other than this are equal
APART = 0.4  # the least distance between two spreads that show a penalty
POINTS_MAX = 32  # of one workload
WINDOWS_MEMORY = 20  # a point keeps the weight of this many windows
HALF_SURE_WINDOWS = 3.0
HALF_LIFE_SECONDS = 30 * 86400.0  # a workload's program changes, and so does a network


def measured(alike: str, spread: float, seconds: Sequence[float], *, at: float) -> GangPoint | None:
    """One point from the times of some windows; None if no time makes sense."""
    sound = [one for one in seconds if SECONDS_MIN <= one <= SECONDS_MAX]
    if not sound or not 0.0 <= spread <= 1.0:
        return None
    return GangPoint(alike=alike, spread=_rounded(spread), seconds=median(sound), windows=len(sound), at=at)


def joined(points: Iterable[GangPoint], more: Iterable[GangPoint]) -> tuple[GangPoint, ...]:
    """`points` with `more` merged into them by gang and spread; the oldest are dropped if there are too many."""
    found = {(point.alike, point.spread): point for point in points if _is_sound(point)}
    for point in filter(_is_sound, more):
        key = (point.alike, point.spread)
        found[key] = point if key not in found else _merged(found[key], point)
    newest = sorted(found.values(), key=lambda point: (-point.at, point.alike, point.spread))[:POINTS_MAX]
    return tuple(sorted(newest, key=lambda point: (point.alike, point.spread)))


def penalty_of(points: Iterable[GangPoint], now: float) -> tuple[float, float]:
    """The penalty that these times show, and the confidence in it, 0 to 1; (USUAL, 0) if they show none."""
    by_gang: dict[str, list[GangPoint]] = {}
    for point in filter(_is_sound, points):
        by_gang.setdefault(point.alike, []).append(point)
    weights = logarithms = 0.0
    for gangs in by_gang.values():
        near = min(gangs, key=lambda point: point.spread)
        for far in gangs:
            penalty = _between(near, far)
            if penalty is not None:
                weight = _weight(near, far, now)
                weights += weight
                logarithms += weight * log(penalty)
    if not weights:
        return USUAL, 0.0
    return exp(logarithms / weights), weights / (weights + USUAL_COUNTS)


def believed(penalty: float, confidence: float, usual: float = USUAL) -> float:
    """The penalty for placement: between the usual and the measured one, by the confidence. It is rounded, so that
    workloads with nearly the same penalty are placed alike."""
    sure = min(1.0, max(0.0, confidence))
    between = exp((1.0 - sure) * log(usual) + sure * log(min(PENALTY_MOST, max(PENALTY_LEAST, penalty))))
    return round(round(between / PENALTY_STEP) * PENALTY_STEP, 6)


def _between(near: GangPoint, far: GangPoint) -> float | None:
    if far.spread - near.spread < APART:
        return None
    ratio = far.seconds / near.seconds
    apart = far.spread - ratio * near.spread
    penalty = 1.0 + (ratio - 1.0) / apart if apart > 0 else inf
    return min(PENALTY_MOST, max(PENALTY_LEAST, penalty))


def _weight(near: GangPoint, far: GangPoint, now: float) -> float:
    windows = min(near.windows, far.windows)
    age = max(0.0, now - min(near.at, far.at))
    return float(windows / (windows + HALF_SURE_WINDOWS) * 0.5 ** (age / HALF_LIFE_SECONDS))


def _merged(known: GangPoint, new: GangPoint) -> GangPoint:
    """The times of both, weighted by windows."""
    before, now = min(known.windows, WINDOWS_MEMORY), min(new.windows, WINDOWS_MEMORY)
    seconds = exp((before * log(known.seconds) + now * log(new.seconds)) / (before + now))
    return GangPoint(
        alike=known.alike,
        spread=known.spread,
        seconds=seconds,
        windows=min(known.windows + new.windows, WINDOWS_MEMORY),
        at=max(known.at, new.at),
    )


def _rounded(spread: float) -> float:
    return round(round(spread / SPREAD_STEP) * SPREAD_STEP, 6)


def _is_sound(point: GangPoint) -> bool:
    return SECONDS_MIN <= point.seconds <= SECONDS_MAX and 0.0 <= point.spread <= 1.0 and point.windows >= 1
