"""How fast who asks may ask: a bucket that fills at a steady rate, of which each request takes one. Pure."""

from collections import OrderedDict

from msgspec import Struct

KEPT_MAX = 10_000


class Rate(Struct, frozen=True):
    """So many a second for ever, and so many at once after a pause. Of 0 a second: no bound."""

    per_second: float = 0.0
    burst: float = 1.0


class Bucket(Struct, frozen=True):
    """How much was in it at a time, in seconds of any clock that does not jump."""

    level: float
    at: float


def level(bucket: Bucket, rate: Rate, now: float) -> float:
    """How much is in it now."""
    return min(rate.burst, bucket.level + max(0.0, now - bucket.at) * rate.per_second)


def taken(bucket: Bucket, rate: Rate, now: float) -> tuple[Bucket, float]:
    """The bucket without one more, and 0; or as it was, and the seconds until it has one."""
    there = level(bucket, rate, now)
    if there >= 1:
        return Bucket(there - 1, now), 0.0
    return Bucket(there, now), (1 - there) / rate.per_second


class Rates:
    """One rate, a bucket for each name. It remembers the KEPT_MAX that asked last; a name that is new has its burst."""

    def __init__(self, rate: Rate, *, kept_max: int = KEPT_MAX) -> None:
        self.rate = rate
        self._kept_max = kept_max
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, name: str, now: float) -> float:
        """Count one request: 0 where it may go on, else the seconds after which it may be asked again."""
        if not self.rate.per_second:
            return 0.0
        bucket, wait = taken(self._of(name, now), self.rate, now)
        self._keep(name, bucket)
        return wait

    def wait(self, name: str, now: float) -> float:
        """The seconds until `take` would let one through. Nothing is counted."""
        return taken(self._of(name, now), self.rate, now)[1] if self.rate.per_second else 0.0

    def owe(self, name: str, now: float) -> None:
        """Count one that has happened, whether or not it should have: at most a whole burst is owed."""
        if self.rate.per_second:
            self._keep(name, Bucket(max(-self.rate.burst, level(self._of(name, now), self.rate, now) - 1), now))

    def _keep(self, name: str, bucket: Bucket) -> None:
        self._buckets[name] = bucket
        self._buckets.move_to_end(name)
        if len(self._buckets) > self._kept_max:
            self._buckets.popitem(last=False)

    def _of(self, name: str, now: float) -> Bucket:
        return self._buckets.get(name, Bucket(self.rate.burst, now))
