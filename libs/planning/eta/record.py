"""Earlier estimates against what came true: how often they held, and by how much the next ones are moved and widened.

An estimate whose job still waits counts as well: its wait is known to be longer than the time so far. The estimator of
Kaplan and Meier (1958) takes such incomplete observations.
"""

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable
from math import exp, inf, log
from typing import Generic, TypeVar

from msgspec import Struct

from libs.messages.eta import Basis, EtaOf, TrackRecord

K = TypeVar("K", bound=Hashable)

LOW, MIDDLE, HIGH = 0.1, 0.5, 0.9
NEAR_MAX = 80  # past estimates, those that foresaw about as long, by which one is corrected
KEPT_MAX = 400
PENDING_MAX = 400
SHORT_S = 10.0  # errors of a few seconds count for little
LATELY = 60  # estimates that came true last, by which the ranges are made wider or narrower
PART_MIN, PART_MAX = 0.02, 0.3  # where the ends of a range may be taken
FIRM = ((0.0, True),) * 40  # so many errors of nothing: what is likely moves only if many agree
PRIOR = (-0.65, -0.4, -0.26, -0.15, -0.05, 0.05, 0.15, 0.26, 0.4, 0.65)  # errors that are expected before any is seen


class Range(Struct, frozen=True):
    """Seconds from now: in one of ten cases it is sooner than `low`, in one of ten later than `high`."""

    low: float
    likely: float
    high: float

    def holds(self, seconds: float) -> bool:
        return self.low - SHORT_S / 10 <= seconds <= self.high + SHORT_S / 10


class _Past(Struct, frozen=True):
    raw: Range
    told: Range
    at: float
    came_s: float = inf


class Track(Generic[K]):
    """The estimates of one kind."""

    def __init__(self) -> None:
        self._over: deque[_Past] = deque(maxlen=KEPT_MAX)
        self._pending: OrderedDict[K, list[_Past]] = OrderedDict()

    def expect(self, key: K, raw: Range, told: Range, *, at: float) -> None:
        """An estimate was told at that time (seconds, of any clock that does not jump) of what `key` names."""
        self._pending.setdefault(key, []).append(_Past(raw, told, at))
        self._pending.move_to_end(key)
        if len(self._pending) > PENDING_MAX:
            self._pending.popitem(last=False)

    def came(self, key: K, at: float) -> None:
        """It came true then."""
        for past in self._pending.pop(key, ()):
            self._over.append(_Past(past.raw, past.told, past.at, max(0.0, at - past.at)))

    def drop(self, key: K) -> None:
        """It will not come true: the job was cancelled, or its state was lost."""
        self._pending.pop(key, None)

    @property
    def pending(self) -> list[K]:
        return list(self._pending)

    def last_told(self, key: K) -> float:
        """When the job was told of last; -inf: it was not."""
        told = self._pending.get(key)
        return told[-1].at if told else -inf

    @property
    def record(self) -> TrackRecord | None:
        if not self._over:
            return None
        return TrackRecord(estimates=len(self._over), inside=sum(one.told.holds(one.came_s) for one in self._over))

    def corrected(self, raw: Range, *, now: float) -> Range:
        """The range, moved and widened as those that were foreseen like it would have had to be."""
        if raw.likely == inf:
            return raw
        known = [(one.raw, one.came_s, True) for one in self._over]
        known += [(one.raw, now - one.at, False) for told in self._pending.values() for one in told if one.at < now]
        known = [one for one in known if one[0].likely < inf]
        here = _log(raw.likely)
        known.sort(key=lambda one: abs(_log(one[0].likely) - here))
        near = known[:NEAR_MAX]
        sooner, later = self._parts()
        low = _shifted(raw.low, sooner, ((_log(came) - _log(one.low), over) for one, came, over in near))
        errors = [(_log(came) - _log(one.likely), over) for one, came, over in near]
        likely = _shifted(raw.likely, MIDDLE, [*errors, *FIRM])
        high = _shifted(
            raw.high, later, ((_log(came) - _log(one.high), over) for one, came, over in near if one.high < inf)
        )
        low = min(low, likely)
        return Range(low, likely, max(high, likely))

    def _parts(self) -> tuple[float, float]:
        """Where the ends of a range are taken: further out if lately too many came true outside, each side by itself
        (as adaptive conformal inference does, Gibbs and Candès, 2021)."""
        lately = list(self._over)[-LATELY:]
        count = len(lately) + 1 / LOW  # as if one had been missed on each side
        below = (sum(one.came_s < one.told.low for one in lately) + 1) / count
        above = (sum(one.came_s > one.told.high for one in lately) + 1) / count
        low, high = (min(PART_MAX, max(PART_MIN, 2 * LOW - missed)) for missed in (below, above))
        return low, 1 - high


class TrackRecords(Generic[K]):
    """A track for each kind of estimate."""

    def __init__(self) -> None:
        self._tracks: dict[tuple[EtaOf, bool], Track[K]] = {}

    def of(self, moment: EtaOf, basis: Basis) -> Track[K]:
        return self._tracks.setdefault((moment, moment is EtaOf.END and basis is Basis.PROGRESS), Track())

    def all(self) -> Iterable[Track[K]]:
        return self._tracks.values()


def _log(seconds: float) -> float:
    return log(seconds + SHORT_S)


def _shifted(seconds: float, part: float, errors: Iterable[tuple[float, bool]]) -> float:
    if seconds == inf:
        return inf
    error = quantile([*errors, *((one, True) for one in PRIOR)], part)
    return max(0.0, exp(_log(seconds) + error) - SHORT_S)


def quantile(errors: Iterable[tuple[float, bool]], part: float) -> float:
    """The value below which this part lies, by the product-limit estimate: False marks a value that is known to be
    larger, but for the largest of all, which is then taken as it is (Efron, 1967)."""
    in_order: list[tuple[float, bool]] = []
    for error, over in errors:
        insort(in_order, (error, not over))  # of equals, those that are over come first
    beyond, found = 1.0, 0.0
    for index, (error, larger) in enumerate(in_order):
        if larger and index + 1 < len(in_order):
            continue
        beyond *= 1 - 1 / (len(in_order) - index)
        found = error
        if 1 - beyond >= part:
            break
    return found
