"""Which waiting requests cannot be answered within the objective any more: they give way to those that still can.

In a burst a queue in order of arrival makes every request late, those that come after it too. If requests that are late
in any case are served last, the replicas that are there answer as many in time as they ever can.
"""

from math import inf

PART = 0.05  # of a new time in the mean
DEVIATIONS = 3.0  # mean absolute ones above the mean: nearly all requests are answered sooner


class AnswerTimes:
    """How long requests take at a replica until their answer begins, as far as the latest of them tell."""

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
        """Seconds that a request can wait and still be answered within `latency`. Infinite, so that all are served in
        order of arrival, while nothing is known, and where even a request that does not wait is late."""
        if self.mean is None or self.mean >= latency:
            return inf
        left = latency - self.mean
        return max(left - DEVIATIONS * self.spread, left / 2.0)
