"""What a service got, counted as `weft.messages.serving` says."""

import math
from collections import Counter

from weft.messages.serving import BUCKET_FIRST_SECONDS, BUCKET_GROWTH, BUCKETS_MAX

_LOG_GROWTH = math.log(BUCKET_GROWTH)


def bucket_of(seconds: float) -> int:
    """The bucket of a time: 0 up to `BUCKET_FIRST_SECONDS`, the last one all beyond."""
    if not seconds > BUCKET_FIRST_SECONDS:
        return 0
    # A hair's breadth is taken off, so that the bound of a bucket is in it whatever the logarithm was rounded to.
    return min(math.ceil(math.log(seconds / BUCKET_FIRST_SECONDS) / _LOG_GROWTH - 1e-9), BUCKETS_MAX - 1)


class Counts:
    """Counts of one service since the router began."""

    def __init__(self) -> None:
        self.arrived = self.answered = self.refused = self.failed = self.late = 0
        self.waits: Counter[int] = Counter()
        self.services: Counter[int] = Counter()
        self.totals: Counter[int] = Counter()
