"""The pace of a run, from its own progress. Pure: the time of each line is an argument.

A job may report garbage: an invalid value is counted and not used. A point is the last step of those that were
reported together, so a burst of lines is one point, and the time of a step comes from the number of steps between two
points. A window holds POINTS_MAX points of WINDOW_SECONDS; where steps are slower than that, it reaches
back a few points. A step that goes back (a checkpoint was loaded) begins a new window, and so does a step after a
silence; the usual time between two points is remembered beyond both.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median

from msgspec import Struct

from weft.messages.nodes import Pace

WINDOW_SECONDS = 30.0
POINTS_MAX = 200
POINTS_FEW = 4  # of a run whose steps are slow
REACH_SECONDS = 600.0  # how far back those may lie
ANCHORS = 24  # points between which slopes are taken: 276 pairs at most
STEP_LEAST = 1e-6  # the smallest part of a step that a job may count
SILENT_GAPS = 3  # so many times the longest gap between two points without a new one, and the run is silent
PENDING_MAX = 64  # times of one phase between two points
VALUE_MAX = 1e15  # of steps, samples and times
JUMP_MAX = 1e12  # between two steps, or two samples
NAMES_MAX = 32
NAME_BYTES_MAX = 64  # a pattern may name its groups at any length, and each report has all names of all runs

STEP, SAMPLES, COMPUTE, PHASE = "step", "samples", "t_compute", "t_"
_COUNTED = frozenset({STEP, SAMPLES})
_GAP_SECONDS = WINDOW_SECONDS / POINTS_MAX


class _Point(Struct, frozen=True):
    """`step` was reached at `at`. `samples`: reported so far; after a reset, those from before are added."""

    at: float
    step: float
    samples: float | None
    phases: Mapping[str, float]


class Pacer:
    """One run. `values`: the newest valid value of each name; `disbelieved`: the number of invalid values so far."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.disbelieved = 0
        self._points: deque[_Point] = deque(maxlen=POINTS_MAX)
        self._pending: dict[str, deque[float]] = {}
        self._samples: float | None = None
        self._reached_at: float | None = None
        self._gap = 0.0  # the longest lately between two points, of an old window too; half as long with each point
        self._ever = False
        self._silent = False
        self._pace: Pace | None = None  # of these points; None: unknown, or to be computed again

    def tell(self, lines: Iterable[Mapping[str, float]], *, at: float) -> None:
        """Numbers of lines that were written by `at`, in seconds of a clock that does not jump, oldest first."""
        stepped = False
        for line in lines:
            stepped |= self._take(line)
        if stepped:
            self._reach(at)

    def pace(self, now: float) -> Pace | None:
        """The pace; None: too little progress yet. A silent run makes no steps, and their duration is unknown."""
        self._forget(now)
        if self._pace is None:
            self._pace = self._measured()
        if self._pace is None and self._silent and self._ever:
            return Pace(
                window_seconds=WINDOW_SECONDS,
                steps=0,
                steps_rate=0.0,
                samples_rate=None if self._samples is None else 0.0,
                step_seconds=0.0,
            )
        return self._pace

    def _take(self, line: Mapping[str, float]) -> bool:
        """Take one line; true if it has a step."""
        turned = line.get("epoch", 0.0) > self.values.get("epoch", math.inf)
        stepped = False
        for name, value in line.items():
            before = self.values.get(name)
            if not _sensible(name, value, before):
                self.disbelieved += 1
                continue
            if before is None and name not in _COUNTED and not self._has_room(name):
                continue
            self.values[name] = value
            if name == STEP:
                stepped = True
                if before is not None and value < before:
                    self.disbelieved += not turned  # steps may restart with each epoch
                    self._points.clear()
                    self._pending.clear()
                    self._pace = None
            elif name == SAMPLES:
                grown = value if before is None or value < before else value - before
                self._samples = (self._samples or 0.0) + grown
            elif name.startswith(PHASE):
                self._pending.setdefault(name, deque(maxlen=PENDING_MAX)).append(value)
        return stepped

    def _has_room(self, name: str) -> bool:
        return len(self.values) < NAMES_MAX and len(name.encode()) <= NAME_BYTES_MAX

    def _reach(self, at: float) -> None:
        step, points = self.values[STEP], self._points
        if points:
            at = max(at, points[-1].at)
            if step <= points[-1].step:
                return  # a repeated step was reached before
        phases = {name: median(values) for name, values in self._pending.items() if values}
        self._pending.clear()
        if len(points) >= 2 and at - points[-2].at < _GAP_SECONDS:
            points.pop()
        if self._reached_at is not None:
            self._gap = max(min(at - self._reached_at, REACH_SECONDS), self._gap / 2)
        self._reached_at = at
        points.append(_Point(at, step, self._samples, phases))
        self._ever |= len(points) > 1
        self._silent, self._pace = False, None

    def _forget(self, now: float) -> None:
        points = self._points
        while points and now - points[0].at > (REACH_SECONDS if len(points) <= POINTS_FEW else WINDOW_SECONDS):
            points.popleft()
            self._pace = None
        if points:
            longest = max((late.at - early.at for early, late in pairwise(points)), default=0.0)
            longest = max(longest, self._gap)
            self._silent = now - points[-1].at > max(WINDOW_SECONDS, SILENT_GAPS * longest)
        else:
            self._silent = True
        if self._silent and self._ever:
            points.clear()
            self._pace = None

    def _measured(self) -> Pace | None:
        points = list(self._points)
        steps_rate = slope([(point.at, point.step) for point in points])
        if not steps_rate:
            return None
        samples_rate = slope([(point.at, point.samples) for point in points if point.samples is not None])
        told = {name for point in points for name in point.phases}
        phases = {name: [point.phases[name] for point in points if name in point.phases] for name in sorted(told)}
        own = [
            (late.at - early.at) / (late.step - early.step)
            for early, late in pairwise(points)
            if late.at > early.at and late.step - early.step >= STEP_LEAST
        ]
        times = phases.get(COMPUTE) or own
        if not times:
            return None
        typical = median(times)
        return Pace(
            window_seconds=_rounded(points[-1].at - points[0].at),
            steps=round(points[-1].step - points[0].step),
            steps_rate=_rounded(steps_rate),
            samples_rate=None if samples_rate is None else _rounded(samples_rate),
            step_seconds=_rounded(typical),
            step_spread=_rounded(spread(times)),
            phases={name: _rounded(median(values)) for name, values in phases.items()},
        )


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Its growth, as the median of the slopes between all pairs of points, evenly taken (Theil and Sen)."""
    last = len(points) - 1
    if last >= ANCHORS:
        points = [points[place * last // (ANCHORS - 1)] for place in range(ANCHORS)]
    slopes = [
        (late[1] - early[1]) / (late[0] - early[0])
        for place, early in enumerate(points)
        for late in points[place + 1 :]
        if late[0] > early[0]
    ]
    return median(slopes) if slopes else None


def spread(values: Sequence[float]) -> float:
    """Median absolute deviation over the median; 0 where that is 0."""
    typical = median(values)
    return median([abs(value - typical) for value in values]) / typical if typical else 0.0


def _sensible(name: str, value: float, before: float | None) -> bool:
    if not math.isfinite(value):
        return False
    counted = name in _COUNTED
    if (counted or name.startswith(PHASE)) and not 0 <= value <= VALUE_MAX:
        return False
    return not (counted and before is not None and value - before > JUMP_MAX)


def _rounded(value: float) -> float:
    """Round to six digits: more are noise, and each costs a byte."""
    return float(f"{value:.6g}")
