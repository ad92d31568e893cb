"""Hourly sums of samples of GPUs that jobs held, by job, epoch and model, in bounded memory."""

from collections import OrderedDict

from msgspec import Struct

HOUR = 3_600 * 1_000_000
BUCKETS_MAX = 100_000
SAMPLED_LEAST = 0.9  # fraction of the held time that must be sampled to report the use
Of = tuple[str, int, str]
"""A job, an epoch and a model."""


class Used(Struct, gc=False):
    """`sampled`, `used` and `idle` in thousandths of a GPU times microseconds. `idle` of `sampled` was held by a job
    that did not use the GPU. `powered` of `sampled` came with the power that was drawn, and was worth `joules`."""

    sampled: int = 0
    used: int = 0
    idle: int = 0
    powered: int = 0
    joules: float = 0.0


class UsedLedger:
    """A ledger of hours; the oldest hours are dropped. A partial hour of a window uses the mean of the full hour."""

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
        known.idle += more.idle
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
                found.idle += known.idle
                found.powered += known.powered
                found.joules += known.joules
        return found


class UsedSum(Struct):
    """Sums of used time, idle time and joules over held parts, with their sampled part."""

    held: int = 0
    sampled: int = 0
    powered: int = 0
    used: float = 0.0
    idle: float = 0.0
    joules: float = 0.0

    def add(self, held: int, known: Used) -> None:
        self.held += held
        if known.sampled:
            sampled = min(held, known.sampled)
            self.sampled += sampled
            self.used += sampled * known.used / known.sampled
            self.idle += sampled * known.idle / known.sampled
        if known.powered:
            powered = min(held, known.powered)
            self.powered += powered
            self.joules += powered * known.joules / known.powered

    @property
    def total(self) -> tuple[int | None, int | None, float | None]:
        """The used time, the idle time, and the joules. None: less than nine tenths was sampled."""
        held = self.held
        if not held:
            return 0, 0, 0.0
        known = self.sampled >= SAMPLED_LEAST * held
        return (
            round(self.used * held / self.sampled) if known else None,
            round(self.idle * held / self.sampled) if known else None,
            self.joules * held / self.powered if self.powered >= SAMPLED_LEAST * held else None,
        )
