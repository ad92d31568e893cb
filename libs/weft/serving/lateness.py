"""Finds waiting requests that can no longer meet the objective, so that they are served after those that can.

In a burst a queue in order of arrival makes every request late, those that come after it too. If requests that are late
in any case are served last, the replicas answer as many in time as possible.
"""

from math import inf

PART = 0.05  # weight of a new time in the average
DEVIATIONS = 3.0  # mean absolute ones above the mean: nearly all requests are answered sooner


class AnswerTimes:
    """Times from a request's arrival at a replica to the first byte of its answer, from the latest requests."""

    __slots__ = ("mean", "spread")

    def __init__(self) -> None:
        self.mean: float | None = None
        self.spread = 0.0  # the mean absolute deviation

    def take(self, seconds: float) -> None:
        if self.mean is None:
            self.mean = seconds
            return
        off = seconds - self.mean
        self.mean += PART * off
        self.spread += PART * (abs(off) - self.spread)

    def patience(self, latency: float) -> float:
        """Seconds that a request can wait and still be answered within `latency`. Infinite while times are unknown, or
        if even a request without a wait is late; then all are served in order of arrival."""
        if self.mean is None or self.mean >= latency:
            return inf
        left = latency - self.mean
        return max(left - DEVIATIONS * self.spread, left / 2.0)
