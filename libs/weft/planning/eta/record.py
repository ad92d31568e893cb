"""The track record of estimates: how often they held, and the resulting correction of later ones.

An estimate whose job still waits counts as well: its wait is known to be longer than the time so far. The estimator of
Kaplan and Meier (1958) takes such incomplete observations.
"""

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable
from math import exp, inf, log
from typing import Generic, TypeVar

from msgspec import Struct, structs

from weft.messages.eta import Basis, EtaOf, TrackRecord

K = TypeVar("K", bound=Hashable)

LOW, MIDDLE, HIGH = 0.1, 0.5, 0.9
NEAR_MAX = 80  # past estimates of similar length that correct a new one
KEPT_MAX = 400
PENDING_MAX = 400
SHORT_S = 10.0  # errors of a few seconds count for little
LATELY = 60  # latest checked estimates, which widen or narrow ranges
# In logarithms of seconds: a miss moves its end of later ranges out by nine tenths of the first, a range that holds
# moves it back by a tenth; never further out than the second, never further in than the third.
WIDER_BY, WIDER_MAX, NARROWER_MAX = 0.03, 2.0, 0.1
PART_MIN, PART_MAX = 0.02, 0.3  # allowed quantiles for the ends of a range
FIRM = ((0.0, True),) * 40  # assumed errors of zero: the likely time moves only if many errors agree
PRIOR = (-0.65, -0.4, -0.26, -0.15, -0.05, 0.05, 0.15, 0.26, 0.4, 0.65)  # errors assumed before any is seen


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


class _Waits(Struct):
    """An open estimate. `late`: it will certainly come true after the range."""

    past: _Past
    late: bool = False


class _End:
    """One end of the ranges: how often the result lay beyond it, and how far it is moved out for that.

    Adaptive conformal inference (Gibbs and Candes, 2021) adjusts the quantile, an integral controller (Angelopoulos,
    Candes and Tibshirani, 2023) the distance: the first reacts to the latest estimates and stays within past errors;
    the second continues while misses continue.
    """

    def __init__(self) -> None:
        self._lately: deque[bool] = deque(maxlen=LATELY)
        self.wider = 0.0

    def count(self, *, missed: bool) -> None:
        self._lately.append(missed)
        self.wider = min(WIDER_MAX, max(-NARROWER_MAX, self.wider + WIDER_BY * (missed - LOW)))

    @property
    def part(self) -> float:
        """The fraction of past errors beyond this end."""
        missed = (sum(self._lately) + 1) / (len(self._lately) + 1 / LOW)  # counts as one miss
        return min(PART_MAX, max(PART_MIN, 2 * LOW - missed))


class Track(Generic[K]):
    """The estimates of one kind."""

    def __init__(self) -> None:
        self._over: deque[_Past] = deque(maxlen=KEPT_MAX)
        self._pending: OrderedDict[K, list[_Waits]] = OrderedDict()
        self._low, self._high = _End(), _End()

    def expect(self, key: K, raw: Range, told: Range, *, at: float) -> None:
        """Note an estimate about `key` that was shown at that time (seconds of a clock that does not jump)."""
        self._pending.setdefault(key, []).append(_Waits(_Past(raw, told, at)))
        self._pending.move_to_end(key)
        if len(self._pending) > PENDING_MAX:
            self._pending.popitem(last=False)

    def came(self, key: K, at: float) -> None:
        """Note the time at which it came true."""
        for waits in self._pending.pop(key, ()):
            past = structs.replace(waits.past, came_s=max(0.0, at - waits.past.at))
            self._over.append(past)
            if not waits.late:
                self._low.count(missed=past.came_s < past.told.low)
                self._high.count(missed=past.came_s > past.told.high)

    def drop(self, key: K) -> None:
        """Drop an estimate that cannot come true: the job was cancelled, or its state was lost."""
        self._pending.pop(key, None)

    @property
    def pending(self) -> list[K]:
        return list(self._pending)

    def is_late(self, key: K, now: float) -> bool:
        """True if an estimate about it has passed without coming true."""
        return any(now - waits.past.at > waits.past.told.high for waits in self._pending.get(key, ()))

    def last_told(self, key: K) -> float:
        """Time of the last estimate of the job, or -inf if there was none."""
        told = self._pending.get(key)
        return told[-1].past.at if told else -inf

    @property
    def record(self) -> TrackRecord | None:
        if not self._over:
            return None
        return TrackRecord(estimates=len(self._over), inside=sum(one.told.holds(one.came_s) for one in self._over))

    def corrected(self, raw: Range, *, now: float) -> Range:
        """The range, corrected as similar earlier ranges should have been."""
        if raw.likely == inf:
            return raw
        waiting = [waits for told in self._pending.values() for waits in told]
        for waits in waiting:
            if not waits.late and now - waits.past.at > waits.past.told.high:
                waits.late = True
                self._low.count(missed=False)
                self._high.count(missed=True)
        known = [(one.raw, one.came_s, True) for one in self._over]
        known += [(one.past.raw, now - one.past.at, False) for one in waiting if one.past.at < now]
        known = [one for one in known if one[0].likely < inf]
        here = _log(raw.likely)
        known.sort(key=lambda one: abs(_log(one[0].likely) - here))
        near = known[:NEAR_MAX]
        low = _shifted(raw.low, self._low.part, ((_log(came) - _log(one.low), over) for one, came, over in near))
        errors = [(_log(came) - _log(one.likely), over) for one, came, over in near]
        likely = _shifted(raw.likely, MIDDLE, [*errors, *FIRM])
        highs = ((_log(came) - _log(one.high), over) for one, came, over in near if one.high < inf)
        high = _shifted(raw.high, 1 - self._high.part, highs)
        low, high = _moved(min(low, likely), -self._low.wider), _moved(max(high, likely), self._high.wider)
        return Range(min(low, likely), likely, max(high, likely))


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
    return _moved(seconds, error)


def _moved(seconds: float, error: float) -> float:
    return inf if seconds == inf else max(0.0, exp(_log(seconds) + error) - SHORT_S)


def quantile(errors: Iterable[tuple[float, bool]], part: float) -> float:
    """The quantile by the product-limit estimate. False marks a lower bound of a value; the largest value always counts
    as exact (Efron, 1967)."""
    in_order: list[tuple[float, bool]] = []
    for error, over in errors:
        insort(in_order, (error, not over))  # among equal values, finished ones come first
    beyond, found = 1.0, 0.0
    for index, (error, larger) in enumerate(in_order):
        if larger and index + 1 < len(in_order):
            continue
        beyond *= 1 - 1 / (len(in_order) - index)
        found = error
        if 1 - beyond >= part:
            break
    return found
