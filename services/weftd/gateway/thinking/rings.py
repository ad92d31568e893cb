"""Sampled figures of the last quarter of an hour and of the last day, in bounded memory. Pure."""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from math import isnan, nan

FINE_SECONDS, FINE_STEPS = 5, 180
COARSE_SECONDS, COARSE_STEPS = 60, 1440
VALUE_MAX = 1e15  # larger values, and nan, do not count as figures
LATELY_SECONDS = 15.0  # a subject with a newer value is not replaced by another


class Ring:
    """The mean of the values in each step of a fixed length, for the newest `most` steps; 4 bytes each."""

    __slots__ = ("_begins", "_count", "_most", "_seconds", "_sum", "_values")

    def __init__(self, seconds: int, most: int) -> None:
        self._seconds = seconds
        self._most = most
        self._begins = 0  # the number of the first step, counted since 1970
        self._values = array("f")
        self._sum = 0.0  # the values in the last step
        self._count = 0

    def put(self, at: float, value: float) -> None:
        """Add a value. If the clock has gone back, repeated steps are overwritten."""
        step = int(at // self._seconds)
        values = self._values
        place = step - self._begins
        if values and place == len(values) - 1:
            self._sum += value
            self._count += 1
            values[-1] = self._sum / self._count
            return
        if values and 0 <= place < len(values):
            values[place] = value
            return
        gap = place - len(values)
        if not values or place < 0 or gap >= self._most:
            self._begins = step
            self._values = array("f", (value,))
        else:
            values.extend([nan] * gap)
            values.append(value)
            if (over := len(values) - self._most) > 0:
                del values[:over]
                self._begins += over
        self._sum, self._count = value, 1

    def read(self, step: int, count: int) -> list[float]:
        """The values of `count` steps from `step` on; nan: not known."""
        place = step - self._begins
        known = self._values[max(0, place) : max(0, place + count)]
        before = min(count, max(0, -place)) if known else 0
        return [nan] * before + list(known) + [nan] * (count - before - len(known))


class Series:
    """One figure in fine steps and in coarse ones."""

    __slots__ = ("_coarse", "_fine")

    def __init__(self) -> None:
        self._fine = Ring(FINE_SECONDS, FINE_STEPS)
        self._coarse = Ring(COARSE_SECONDS, COARSE_STEPS)

    def put(self, at: float, value: float) -> None:
        self._fine.put(at, value)
        self._coarse.put(at, value)

    def read(self, begins: int, count: int, step_seconds: int) -> list[float | None]:
        """`count` steps from `begins` on, a multiple of `step_seconds`; None: not known."""
        if step_seconds < COARSE_SECONDS:
            return [_shown(value) for value in self._fine.read(begins // FINE_SECONDS, count)]
        many = step_seconds // COARSE_SECONDS
        values = self._coarse.read(begins // COARSE_SECONDS, count * many)
        return [_mean(values[place : place + many]) for place in range(0, len(values), many)]


class Shelf:
    """Series by subject and name: at most `most` in all, at most `each` of one subject. A new subject replaces the one
    with the oldest update; if that update is recent, the new subject is left out."""

    def __init__(self, most: int, each: int) -> None:
        self._most = most
        self._each = each
        self._count = 0
        self._subjects: OrderedDict[str, tuple[dict[str, Series], list[float]]] = OrderedDict()

    def put(self, subject: str, at: float, values: Mapping[str, float | None]) -> None:
        """Add the values that are figures: neither None, nor nan, nor too large."""
        for name, value in values.items():
            if value is not None and is_figure(value) and (of := self._series(subject, name, at)) is not None:
                of.put(at, value)
        if subject in self._subjects:
            self._subjects[subject][1][0] = at
            self._subjects.move_to_end(subject)

    def get(self, subject: str) -> Mapping[str, Series]:
        """The series of a subject, by name."""
        known = self._subjects.get(subject)
        return known[0] if known is not None else {}

    def subjects(self) -> list[str]:
        return list(self._subjects)

    def _series(self, subject: str, name: str, at: float) -> Series | None:
        """The series of that figure of the subject; a new one if there is room."""
        series, put_at = self._subjects.get(subject) or ({}, [at])
        if name not in series:
            if len(series) >= self._each or not self._has_room(subject, at):
                return None
            series[name] = Series()
            self._count += 1
            self._subjects[subject] = (series, put_at)
        return series[name]

    def _has_room(self, subject: str, at: float) -> bool:
        while self._count >= self._most:
            oldest, (series, put_at) = next(iter(self._subjects.items()))
            if oldest == subject or abs(at - put_at[0]) <= LATELY_SECONDS:
                return False
            del self._subjects[oldest]
            self._count -= len(series)
        return True


def is_figure(value: float) -> bool:
    """True for a value that is neither nan nor too large."""
    return -VALUE_MAX <= value <= VALUE_MAX


def _mean(values: Iterable[float]) -> float | None:
    known = [value for value in values if not isnan(value)]
    return float(f"{sum(known) / len(known):.7g}") if known else None


def _shown(value: float) -> float | None:
    """The value rounded to the seven digits that four bytes hold."""
    return None if isnan(value) else float(f"{value:.7g}")
