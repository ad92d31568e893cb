"""How long something may still take, as quantiles."""

from bisect import bisect_right
from collections.abc import Sequence
from math import inf

from msgspec import Struct

from libs.messages.eta import Basis

PARTS = 20  # quantiles that a spread keeps, each in the middle of its part
ENOUGH = 5  # samples without which what is known of a job's own age is mixed in
NEW_S = 60.0  # the age that a job counts as having had at least


class TimeSpread(Struct, frozen=True):
    """Seconds from now, ascending, one for each equal part of the cases; all the same if it is one number, which is
    then the most that it can be if the basis is limits. Infinite: nobody can tell."""

    seconds: tuple[float, ...]
    basis: Basis

    def at(self, part: float) -> float:
        """The seconds within which it is over in this part of the cases, 0 to 1."""
        seconds = self.seconds
        place = part * len(seconds) - 0.5
        if place <= 0:
            return seconds[0]
        index = int(place)
        if index >= len(seconds) - 1:
            return seconds[-1]
        low, high = seconds[index], seconds[index + 1]
        return low if low == high else low + (high - low) * (place - index)

    @property
    def known(self) -> bool:
        return self.seconds[0] < inf

    def at_most(self, bound: float) -> "TimeSpread":
        """The same, cut off at a limit."""
        if self.seconds[-1] <= bound:
            return self
        cut = tuple(min(one, bound) for one in self.seconds)
        return TimeSpread(cut, Basis.LIMITS if cut[len(cut) // 2] >= bound else self.basis)


def always(seconds: float, basis: Basis) -> TimeSpread:
    return TimeSpread((max(0.0, seconds),), basis)


UNKNOWN = TimeSpread((inf,), Basis.UNKNOWN)


def of_samples(samples: Sequence[float], basis: Basis) -> TimeSpread:
    """The quantiles of samples, which are ascending and at least one."""
    if len(samples) <= PARTS:
        return TimeSpread(tuple(samples), basis)
    last = len(samples) - 1
    found: list[float] = []
    for part in range(PARTS):
        place = (part + 0.5) / PARTS * len(samples) - 0.5
        index = min(last - 1, max(0, int(place)))
        found.append(samples[index] + (samples[index + 1] - samples[index]) * (place - index))
    return TimeSpread(tuple(found), basis)


def outlasting(lasted: Sequence[float], age: float) -> Sequence[float]:
    """Of durations in ascending order, those longer than `age`."""
    return lasted[bisect_right(lasted, age) :]


def remaining(lasted: Sequence[float], age: float) -> TimeSpread:
    """What is left of a job of this age by what jobs like it lasted (ascending). Where few of these lasted as long, as
    many are added as make it enough, which last as a job does of which only its age is known: half of such jobs double
    their age, a third treble it (so a job is half done on average, whatever its scale)."""
    left = [one - age for one in outlasting(lasted, age)]
    missing = ENOUGH - len(left)
    if missing > 0:
        scale = max(age, NEW_S)
        parts = [(index + 0.5) / missing for index in range(missing)]
        left = sorted(left + [scale * part / (1 - part) for part in parts])
    return of_samples(left, Basis.LEARNT)
