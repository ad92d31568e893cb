"""Learns from different rates how much longer a replica takes for each of several concurrent requests.

A replica that shares its GPU among its requests answers each in 1 / (a - b r) seconds at r requests a second: 1/a with
one request alone, and a/b per second is its capacity. The line through (r, 1 / seconds) gives both.
"""

from math import inf, sqrt

BLOCK_SECONDS = 10.0
BLOCK_ANSWERS = 20
BLOCKS_LEAST = 6
FORGET = 0.995  # of the weight of all blocks before, with each block
SURE = 3.0  # standard errors
SPREAD_LEAST = 0.1  # minimum spread of the rates, relative to their mean: a single rate teaches nothing
FULL = 0.05  # relative error of 1/a above which the estimate is discarded


class Slowdown:
    def __init__(self) -> None:
        self._sums = [0.0] * 6  # of the weights, x, y, xx, xy and yy
        self._blocks = 0
        self._began: float | None = None
        self._answers, self._busy, self._replica_seconds, self._at = 0, 0.0, 0.0, 0.0
        self._line: tuple[float, float] | None = None  # a and b; None: it takes as long at any rate

    @property
    def known(self) -> bool:
        return self._line is not None

    def take(self, answers: int, mean: float, replicas: float, *, at: float) -> None:
        """`mean`: seconds of these answers; `replicas`: number of ready replicas, in typical GPUs with the full
        request."""
        if self._began is None or at - self._at > BLOCK_SECONDS or replicas <= 0.0:
            self._began, self._answers, self._busy, self._replica_seconds = at, 0, 0.0, 0.0
            self._at = at
            return
        self._answers += answers
        self._busy += answers * mean
        self._replica_seconds += replicas * (at - self._at)
        self._at = at
        if at - self._began < BLOCK_SECONDS:
            return
        if self._answers >= BLOCK_ANSWERS and self._busy > 0.0:
            self._add(self._answers / self._replica_seconds, self._answers / self._busy, float(self._answers))
        self._began, self._answers, self._busy, self._replica_seconds = at, 0, 0.0, 0.0

    def times(self, rate: float) -> float:
        """The factor on the time of a lone request at this rate per replica."""
        if self._line is None:
            return 1.0
        alone, slope = self._line
        return alone / max(FULL * alone, alone - slope * rate)

    def mean(self, rate: float) -> tuple[float | None, bool]:
        """How long it takes at that rate, and whether that is more than a replica can do; None: not known."""
        return None if self._line is None else self.times(rate) / self._line[0], self.full(rate)

    def rate(self, mean: float) -> float:
        """The rate at which it takes that long; infinite: at any."""
        if self._line is None or self._line[1] <= 0.0:
            return inf
        alone, slope = self._line
        return max(0.0, (alone - 1.0 / mean) / slope)

    def full(self, rate: float) -> bool:
        """True if the rate exceeds the capacity of a replica."""
        return self._line is not None and self._line[0] - self._line[1] * rate <= FULL * self._line[0]

    def _add(self, x: float, y: float, weight: float) -> None:
        news = (weight, weight * x, weight * y, weight * x * x, weight * x * y, weight * y * y)
        self._sums = [old * FORGET + new for old, new in zip(self._sums, news, strict=True)]
        self._blocks += 1
        total, of_x, of_y, of_xx, of_xy, of_yy = self._sums
        mean_x, mean_y = of_x / total, of_y / total
        spread = of_xx / total - mean_x**2
        both = of_xy / total - mean_x * mean_y
        self._line = None
        if self._blocks < BLOCKS_LEAST or spread <= (SPREAD_LEAST * mean_x) ** 2:
            return
        slope = -both / spread
        left = max(0.0, of_yy / total - mean_y**2 - both**2 / spread)
        error = sqrt(left / spread / max(1.0, min(self._blocks, 1.0 / (1.0 - FORGET)) - 2))
        alone = mean_y + slope * mean_x
        if slope > SURE * error and alone > 0.0:
            self._line = (alone, slope)
