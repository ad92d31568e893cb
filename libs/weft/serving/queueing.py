"""Waiting and response times of requests: a queue with several servers, by Allen and Cunneen's formula.

A replica with `concurrency` concurrent requests counts as that number of servers. The fraction of waiting requests is
Sakasegawa's approximation of Erlang's C, which needs no loop over the servers. Times are in seconds, rates per second.
"""

from collections.abc import Mapping
from math import exp, inf, sqrt
from operator import mul

from msgspec import Struct

from weft.messages.serving import BUCKET_FIRST_SECONDS, BUCKET_GROWTH, BUCKETS_MAX

UPPER = tuple(BUCKET_FIRST_SECONDS * BUCKET_GROWTH**bucket for bucket in range(BUCKETS_MAX))
LOWER = (0.0, *UPPER[:-1])
MIDDLE = tuple((low + high) / 2 for low, high in zip(LOWER, UPPER, strict=True))
SQUARE = tuple(middle**2 for middle in MIDDLE)
HALF_LIFE_SECONDS = 600.0
WEIGHT_MAX = 1e12


class Shape(Struct, frozen=True):
    """The times of a service's requests at a replica. `parts`: for each bucket its bounds and its part of the requests;
    `variation`: the square of their coefficient of variation."""

    mean: float
    variation: float
    parts: tuple[tuple[float, float, float], ...]


class CountsBefore:
    """Totals by bucket of the last report."""

    def __init__(self) -> None:
        self._last: Mapping[int, int] = {}

    def news(self, totals: Mapping[int, int]) -> dict[int, int]:
        """The increase of these totals since the last call."""
        last, self._last = self._last, totals
        if totals == last:
            return {}
        before = last.get
        return {bucket: new for bucket, count in totals.items() if (new := count - before(bucket, 0)) > 0}

    def seconds(self, totals: Mapping[int, int]) -> float:
        """The sum of the new times, `seconds_of` the news."""
        last, self._last = self._last, totals
        if totals == last:
            return 0.0
        before = last.get
        return sum([MIDDLE[bucket] * new for bucket, count in totals.items() if (new := count - before(bucket, 0)) > 0])


class ServiceTimes:
    """Times counted in buckets, of which older ones count less: half after `HALF_LIFE_SECONDS`."""

    def __init__(self) -> None:
        self._weights = [0.0] * BUCKETS_MAX
        self._first, self._end = BUCKETS_MAX, 0  # the non-empty buckets
        self._unit, self._since = 1.0, 0.0  # the weight of a time now, and the time since which it applies
        self._shape: Shape | None = None
        self.count = 0.0  # all counted times

    def add(self, counts: Mapping[int, int], *, at: float) -> None:
        if not counts:
            return
        if self._since < at:
            self._unit *= 2.0 ** min(1000.0, (at - self._since) / HALF_LIFE_SECONDS) if self._end else 1.0
            self._since = at
        if self._unit > WEIGHT_MAX:
            self._weights = [weight / self._unit for weight in self._weights]
            self._unit = 1.0
        least, most = min(counts), max(counts)
        if least < 0 or most >= BUCKETS_MAX:
            counts = {bucket: count for bucket, count in counts.items() if 0 <= bucket < BUCKETS_MAX}
            if not counts:
                return
            least, most = min(counts), max(counts)
        weights, unit = self._weights, self._unit
        for bucket, count in counts.items():
            weights[bucket] += count * unit
        self._first, self._end = min(self._first, least), max(self._end, most + 1)
        self.count += sum(counts.values())
        self._shape = None

    @property
    def shape(self) -> Shape | None:
        """None while nothing was counted."""
        if self._shape is None and self._end:
            first, end = self._first, self._end
            weights = self._weights[first:end]
            total = sum(weights)
            mean = sum(map(mul, MIDDLE[first:end], weights)) / total
            square = sum(map(mul, SQUARE[first:end], weights)) / total
            parts = tuple(zip(LOWER[first:end], UPPER[first:end], [weight / total for weight in weights], strict=True))
            self._shape = Shape(mean, max(0.0, square / mean**2 - 1.0), parts)
        return self._shape


def seconds_of(counts: Mapping[int, int]) -> float:
    """All of these times together."""
    return sum([MIDDLE[bucket] * count for bucket, count in counts.items()])


def waiting_part(servers: float, load: float) -> float:
    """The fraction of the requests that wait. `load`: number of servers that they keep busy."""
    busy = load / servers
    return 1.0 if busy >= 1.0 else busy ** (sqrt(2.0 * (servers + 1.0)) - 1.0)


def mean_wait(servers: float, load: float, service: float, variation: float) -> float:
    """Mean wait of the waiting requests, in the unit of `service`.

    `variation`: the mean of the squared coefficients of variation of the times between arrivals
    and of the service times."""
    busy = load / servers
    return inf if busy >= 1.0 else variation * service / (servers * (1.0 - busy))


def late_alone(shape: Shape, *, slower: float, first: float, within: float) -> float:
    """The fraction of the requests that take longer than `within` even without a wait. `slower`: factor on all times in
    `shape`; `first`: the fraction of a request's time after which its answer begins."""
    limit = within / (slower * first) if slower * first > 0.0 else inf
    late = 0.0
    for low, high, part in reversed(shape.parts):
        if high <= limit:
            break
        late += part if low >= limit else part * (high - limit) / (high - low)
    return late


def late_by_waiting(
    shape: Shape, *, servers: float, rate: float, slower: float, first: float, within: float, arrivals: float
) -> float:
    """The part of the requests that take longer than `within` because they wait. `arrivals`: the squared coefficient of
    variation of the times between arrivals, 1 for Poisson's."""
    service = shape.mean * slower
    load = rate * service
    if servers <= 0.0 or load >= servers:
        return 1.0
    waits = waiting_part(servers, load)
    if waits < 1e-9:
        return 0.0
    mean = mean_wait(servers, load, service, (arrivals + shape.variation) / 2.0)
    late = 0.0
    for low, high, part in shape.parts:
        left = within - (low + high) / 2.0 * slower * first
        late += (
            part * exp(-left / mean) if left > 0.0 and mean > 0.0 else part if low * slower * first < within else 0.0
        )
    return waits * late


def waiting_makes_at_most(
    most: float,
    shape: Shape,
    *,
    servers: float,
    rate: float,
    slower: float,
    first: float,
    within: float,
    arrivals: float,
) -> bool:
    """True if `late_by_waiting` is at most that. The computation stops as soon as the answer is certain: the longest
    requests come first, and the remaining ones are at most as likely to be late as the last one."""
    service = shape.mean * slower
    load = rate * service
    if servers <= 0.0 or load >= servers:
        return most >= 1.0
    waits = waiting_part(servers, load)
    if waits < 1e-9 or waits <= most:
        return most >= 0.0
    mean = mean_wait(servers, load, service, (arrivals + shape.variation) / 2.0)
    most /= waits
    late, rest = 0.0, 1.0
    for low, high, part in reversed(shape.parts):
        rest -= part
        left = within - (low + high) / 2.0 * slower * first
        if left > 0.0 and mean > 0.0:
            chance = exp(-left / mean)
            late += part * chance
            if late + rest * chance <= most:
                return True
        elif low * slower * first < within:
            late += part
        if late > most:
            return False
    return late <= most
