"""What was sampled of the GPUs that jobs held: in hours, by job, epoch and model, in memory that has a bound."""

from collections import OrderedDict
from collections.abc import Iterable

from msgspec import Struct

HOUR = 3_600 * 1_000_000
BUCKETS_MAX = 100_000
SAMPLED_LEAST = 0.9  # of what was held, to say what was used
Of = tuple[str, int, str]
"""A job, an epoch and a model."""


class Used(Struct):
    """`sampled` and `used` in thousandths of a GPU times microseconds; `powered` of `sampled` came with the power that
    was drawn, and was worth `joules`."""

    sampled: int = 0
    used: int = 0
    powered: int = 0
    joules: float = 0.0


class UsedLedger:
    """The oldest hours give way. Of an hour of which the window has a part only, the mean of the whole is taken."""

    def __init__(self, most: int = BUCKETS_MAX) -> None:
        self._most = most
        self._hours: dict[Of, dict[int, Used]] = {}
        self._order: OrderedDict[tuple[int, Of], None] = OrderedDict()

    def put(self, of: Of, at: int, more: Used) -> None:
        hour = at // HOUR
        hours = self._hours.setdefault(of, {})
        if hour not in hours:
            hours[hour] = Used()
            self._order[hour, of] = None
        known = hours[hour]
        known.sampled += more.sampled
        known.used += more.used
        known.powered += more.powered
        known.joules += more.joules
        while len(self._order) > self._most:
            (oldest, whose), _ = self._order.popitem(last=False)
            del self._hours[whose][oldest]
            if not self._hours[whose]:
                del self._hours[whose]

    def of(self, of: Of, begins: int, ends: int) -> Used:
        found = Used()
        for hour, known in list(self._hours.get(of, {}).items()):
            if begins // HOUR <= hour <= (ends - 1) // HOUR:
                found.sampled += known.sampled
                found.used += known.used
                found.powered += known.powered
                found.joules += known.joules
        return found


def total(parts: Iterable[tuple[int, Used]]) -> tuple[int | None, float | None]:
    """What was used, and the joules, of so much that was held, each with what was sampled of it; None: less than nine
    tenths was sampled."""
    held = sampled = powered = 0
    used = joules = 0.0
    for amount, known in parts:
        held += amount
        if known.sampled:
            sampled += min(amount, known.sampled)
            used += min(amount, known.sampled) * known.used / known.sampled
        if known.powered:
            powered += min(amount, known.powered)
            joules += min(amount, known.powered) * known.joules / known.powered
    if not held:
        return 0, 0.0
    return (
        round(used * held / sampled) if sampled >= SAMPLED_LEAST * held else None,
        joules * held / powered if powered >= SAMPLED_LEAST * held else None,
    )
