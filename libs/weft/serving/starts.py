"""Measured times from a replica's start until it is ready, for each service."""

from collections import deque
from collections.abc import Iterable
from math import isfinite

from weft.serving.loads import ReplicaLoad

SECONDS_AT_FIRST = 30.0  # until one was measured
SECONDS_MAX = 3600.0
STARTS_MAX = 64  # the latest
LATE = 1.5  # a replica that takes this many times as long as most counts as failed


class StartTimes:
    """`expected`: seconds measured for other services of the workload, used until a start is measured here."""

    def __init__(self, expected: float | None = None) -> None:
        self._expected = SECONDS_AT_FIRST if expected is None else expected
        self._took: deque[float] = deque(maxlen=STARTS_MAX)
        self._seen: dict[tuple[int, float], None] = {}
        self.seconds = self._expected  # the 95th percentile
        self.usual = self._expected  # the median

    @property
    def measured(self) -> tuple[float, ...]:
        return tuple(self._took)

    def take(self, replicas: Iterable[ReplicaLoad]) -> None:
        fresh = False
        for replica in replicas:
            began, ready = replica.started_at, replica.ready_at
            if began is None or ready is None or (replica.rank, began) in self._seen:
                continue
            self._seen[replica.rank, began] = None
            if isfinite(ready - began) and 0.0 <= ready - began <= SECONDS_MAX:
                self._took.append(ready - began)
                fresh = True
        while len(self._seen) > 64 * STARTS_MAX:
            del self._seen[next(iter(self._seen))]
        if fresh:
            ordered = sorted(self._took)
            self.seconds = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
            self.usual = ordered[len(ordered) // 2]
