"""Request rates: a token bucket that fills at a steady rate, from which each request takes one. Pure."""

from collections import OrderedDict

from msgspec import Struct

KEPT_MAX = 10_000


class Rate(Struct, frozen=True):
    """A steady rate per second, and a burst after a pause. 0 per second: no bound."""

    per_second: float = 0.0
    burst: float = 1.0


class Bucket(Struct, frozen=True):
    """The level of a bucket at a time, in seconds of any clock that does not jump."""

    level: float
    at: float


def level(bucket: Bucket, rate: Rate, now: float) -> float:
    """The level now."""
    return min(rate.burst, bucket.level + max(0.0, now - bucket.at) * rate.per_second)


def taken(bucket: Bucket, rate: Rate, now: float) -> tuple[Bucket, float]:
    """The bucket less one token, and 0; or the unchanged bucket, and the seconds until it has a token."""
    there = level(bucket, rate, now)
    if there >= 1:
        return Bucket(there - 1, now), 0.0
    return Bucket(there, now), (1 - there) / rate.per_second


class RateLimit:
    """One rate, a bucket for each name. The KEPT_MAX names used last are kept; a new name has its burst."""

    def __init__(self, rate: Rate, *, kept_max: int = KEPT_MAX) -> None:
        self.rate = rate
        self._kept_max = kept_max
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, name: str, now: float) -> float:
        """Count one request. Return 0 if it may proceed, else the seconds after which it may be repeated."""
        if not self.rate.per_second:
            return 0.0
        bucket, wait = taken(self._of(name, now), self.rate, now)
        self._keep(name, bucket)
        return wait

    def wait(self, name: str, now: float) -> float:
        """The seconds until `take` would admit one. Counts nothing."""
        return taken(self._of(name, now), self.rate, now)[1] if self.rate.per_second else 0.0

    def owe(self, name: str, now: float) -> None:
        """Count a request that has already happened; the debt is at most one whole burst."""
        if self.rate.per_second:
            self._keep(name, Bucket(max(-self.rate.burst, level(self._of(name, now), self.rate, now) - 1), now))

    def _keep(self, name: str, bucket: Bucket) -> None:
        self._buckets[name] = bucket
        self._buckets.move_to_end(name)
        if len(self._buckets) > self._kept_max:
            self._buckets.popitem(last=False)

    def _of(self, name: str, now: float) -> Bucket:
        return self._buckets.get(name, Bucket(self.rate.burst, now))
