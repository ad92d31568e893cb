"""Remaining times as quantiles."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import inf

from msgspec import Struct, structs

from weft.messages.eta import Basis

PARTS = 20  # quantiles that a spread keeps, each in the middle of its part
ENOUGH = 5  # with fewer samples the estimate from the job's own age is mixed in
TINY = 1e-9
NEW_S = 60.0  # minimum age of a job in the estimates


class TimeSpread(Struct, frozen=True):
    """Seconds from now, ascending: the mean of each equal part of the cases. All are the same for a single number,
    which is an upper bound if the basis is limits. Infinite: unknown. `weak`: fewer than `ENOUGH` samples support it,
    so no single moment in it is worth showing."""

    seconds: tuple[float, ...]
    basis: Basis
    weak: bool = False

    def at(self, part: float) -> float:
        """The seconds within which it ends in this fraction of the cases, 0 to 1."""
        seconds = self.seconds
        place = part * len(seconds) - 0.5
        if place <= 0:
            return seconds[0]
        index = int(place)
        if index >= len(seconds) - 1:
            return seconds[-1]
        low, high, beyond = seconds[index], seconds[index + 1], place - index
        return low + (high - low) * beyond if beyond and low < high else low  # it may be infinite

    @property
    def known(self) -> bool:
        return self.seconds[0] < inf

    @property
    def varies(self) -> bool:
        return self.seconds[0] < self.seconds[-1]

    def at_most(self, bound: float) -> "TimeSpread":
        """The same times, at most a limit."""
        if self.seconds[-1] <= bound:
            return self
        cut = tuple(min(one, bound) for one in self.seconds)
        return TimeSpread(cut, Basis.LIMITS if cut[len(cut) // 2] >= bound else self.basis, self.weak)


def always(seconds: float, basis: Basis) -> TimeSpread:
    return TimeSpread((max(0.0, seconds),), basis)


UNKNOWN = TimeSpread((inf,), Basis.UNKNOWN)


class DurationCurve(Struct, frozen=True):
    """Distribution of durations of one kind of jobs: at each of `seconds`, ascending, the fraction `masses` of them
    ends; the fractions add up to 1. `ended`: number of jobs behind it."""

    seconds: tuple[float, ...]
    masses: tuple[float, ...]
    ended: int

    def outlasting(self, age: float) -> int:
        """Number of its times after this age."""
        return len(self.seconds) - bisect_right(self.seconds, age)

    def left(self, age: float) -> TimeSpread:
        """Remaining time of a job of this age. If too few lasted as long, cases are added that behave like a job with
        only a known age."""
        first = bisect_right(self.seconds, age)
        left = [(seconds - age, mass) for seconds, mass in zip(self.seconds[first:], self.masses[first:], strict=True)]
        missing = ENOUGH - len(left)
        if missing > 0:
            mass = sum(mass for _, mass in left) / len(left) if left else 1.0
            left = sorted(left + [(seconds, mass) for seconds in as_long_again(max(age, NEW_S), missing)])
        spread = of_cases(left)
        seen = self.ended - bisect_right(self.seconds, age, hi=self.ended)  # without the cases that `course_of` adds
        return spread if seen >= ENOUGH else structs.replace(spread, weak=True)


def as_long_again(age: float, count: int) -> list[float]:
    """Remaining times of a job with only a known age, in this number of cases: in half of them it doubles its age, in a
    third it trebles it. So in the median case a job is half done, at any scale."""
    parts = [(index + 0.5) / count for index in range(count)]
    return [age * part / (1 - part) for part in parts]


def course_of(ended: Sequence[float], running: Sequence[float]) -> DurationCurve:
    """Distribution of durations from ended jobs (ascending, at least one) and from the present ages of running ones
    (ascending), which last longer (Kaplan and Meier, 1958). Without the running ones, long jobs would be missing while
    they run."""
    cases: list[tuple[float, float]] = []
    beyond, at_risk, open_at = 1.0, len(ended) + len(running), 0
    for at, seconds in enumerate(ended):
        while open_at < len(running) and running[open_at] < seconds:
            open_at += 1
        at_risk = len(ended) - at + len(running) - open_at
        cases.append((seconds, beyond / at_risk))
        beyond -= beyond / at_risk
    if beyond > TINY:
        oldest = running[-1]
        cases += [(oldest + more, beyond / ENOUGH) for more in as_long_again(max(oldest, NEW_S), ENOUGH)]
    return DurationCurve(tuple(seconds for seconds, _ in cases), tuple(mass for _, mass in cases), len(ended))


def of_cases(cases: Sequence[tuple[float, float]]) -> TimeSpread:
    """The spread of cases, ascending by seconds, at least one, each with its weight."""
    seconds = [one for one, _ in cases]
    if len(cases) <= PARTS and max(mass for _, mass in cases) <= 1.01 * min(mass for _, mass in cases):
        return TimeSpread(tuple(seconds), Basis.LEARNT)
    whole = sum(mass for _, mass in cases)
    found: list[float] = []
    index, left_of_case = 0, cases[0][1]
    for _ in range(PARTS):
        free_capacity, total = whole / PARTS, 0.0
        while free_capacity > TINY * whole and index < len(cases):
            taken = min(free_capacity, left_of_case)
            total += taken * seconds[index]
            free_capacity, left_of_case = free_capacity - taken, left_of_case - taken
            if left_of_case <= TINY * whole:
                index += 1
                left_of_case = cases[index][1] if index < len(cases) else 0.0
        filled = whole / PARTS - free_capacity
        found.append(total / filled if filled > 0 else seconds[-1])
    return TimeSpread(tuple(accumulate(found, max)), Basis.LEARNT)  # rounding must not disturb the order
