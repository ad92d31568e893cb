"""Tokens a minute that each token of Weft may use of a model: a bucket for each, which an answer is taken from once its
tokens are known. Until then a request counts as the mean of those before."""

from msgspec import Struct

MINUTE_SECONDS = 60.0
BUCKETS_MAX = 20_000
BYTES_PER_TOKEN = 4  # where an engine does not count the tokens of a body
Key = tuple[str, str]
"""A service's job and a token."""


class _Bucket(Struct):
    left: float
    at: float


class TokenBudgets:
    """`most`: tokens a minute, which an unused minute saves up at most. Times of any clock that does not jump."""

    def __init__(self) -> None:
        self._buckets: dict[Key, _Bucket] = {}

    def wait(self, key: Key, most: float, now: float) -> float:
        """Seconds until it may use more; 0: now."""
        return max(0.0, -self._filled(key, most, now).left) * MINUTE_SECONDS / most

    def over(self, key: Key, most: float, now: float) -> int:
        """Tokens that it has used beyond its budget."""
        return round(max(0.0, -self._filled(key, most, now).left))

    def spend(self, key: Key, tokens: float, most: float, now: float) -> None:
        """`tokens`: below 0 where fewer were used than had been counted."""
        bucket = self._filled(key, most, now)
        bucket.left = min(most, bucket.left - tokens)

    def _filled(self, key: Key, most: float, now: float) -> _Bucket:
        bucket = self._buckets.pop(key, None) or _Bucket(most, now)
        bucket.left = min(most, bucket.left + max(0.0, now - bucket.at) * most / MINUTE_SECONDS)
        bucket.at = now
        self._buckets[key] = bucket  # the last one used is the last to go
        if len(self._buckets) > BUCKETS_MAX:
            del self._buckets[next(iter(self._buckets))]
        return bucket
