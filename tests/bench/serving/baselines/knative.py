"""The rule of Knative's pod autoscaler (KPA) on concurrency, with its defaults.

Source: knative/serving 98e5ef9, `pkg/autoscaler/scaling/autoscaler.go`, `pkg/reconciler/autoscaling/kpa/scaler.go` and
`config/core/configmaps/autoscaler.yaml`: target utilisation 70 % of the concurrency, stable window 60 s, panic window
10 % of it, panic threshold 200 %, scale-up rate 1000, scale-down rate 2, a decision every 2 s, scale-down delay 0. The
activator's requests, which wait, count. To zero after a stable window without a request; the grace until the activator
is in the path (at most 30 s, usually far less) counts as none.
"""

from collections import deque
from math import ceil, floor, inf

from weft.domain.job import Cause, CauseCode
from weft.serving.loads import Goal, ServiceLoad, Sized

TARGET = 0.7
STABLE_SECONDS, PANIC_SECONDS = 60.0, 6.0
PANICS_AT = 2.0
TICK_SECONDS = 2.0
UP_MOST, DOWN_MOST = 1000.0, 2.0


class Knative:
    def __init__(self, goal: Goal, at: float) -> None:
        self._goal = goal
        self._seen: deque[tuple[float, int]] = deque()  # requests at once
        self._decided_at = -inf
        self._panic_since: float | None = None
        self._panic_most = 0
        self._replicas: int | None = None

    def decide(self, load: ServiceLoad) -> Sized:
        at_once = load.in_flight + load.queued
        if not load.silent:
            self._seen.append((load.at, at_once))
        while self._seen and self._seen[0][0] <= load.at - STABLE_SECONDS:
            self._seen.popleft()
        ready = sum(one.ready and not one.draining for one in load.replicas)
        if self._replicas is None:
            self._replicas = load.wanted
            if ready > 1:
                self._panic_since, self._panic_most = load.at, ready
        from_zero = self._replicas == 0 and at_once > 0
        if self._seen and (load.at - self._decided_at >= TICK_SECONDS - 1e-9 or from_zero):
            self._decided_at = load.at
            self._replicas = self._wanted(load.at, max(1, ready))
        replicas = min(self._goal.most, max(self._goal.least, self._replicas))
        sentence = f"{self._mean(load.at, STABLE_SECONDS):.3g} concurrent requests"
        return Sized(replicas=replicas, cause=Cause(code=CauseCode.LOAD, sentence=sentence))

    def _wanted(self, at: float, ready: int) -> int:
        target = TARGET * self._goal.concurrency
        stable_mean, panic_mean = self._mean(at, STABLE_SECONDS), self._mean(at, PANIC_SECONDS)
        least, most = floor(ready / DOWN_MOST), ceil(UP_MOST * ready)
        stable = min(most, max(least, ceil(stable_mean / target)))
        panic = min(most, max(least, ceil(panic_mean / target)))
        over = ceil(panic_mean / target) / ready >= PANICS_AT
        if over:
            if self._panic_since is None:
                self._panic_most = 0
            self._panic_since = at
        elif self._panic_since is not None and at - self._panic_since > STABLE_SECONDS:
            self._panic_since = None
        if self._panic_since is not None:
            self._panic_most = max(self._panic_most, stable, panic)
            return self._panic_most
        idle = stable_mean == 0.0
        if idle and self._goal.least == 0 and self._seen[-1][0] - self._seen[0][0] < 0.95 * STABLE_SECONDS:
            return max(1, stable) if self._replicas else 0
        return 0 if idle and self._goal.least == 0 else max(1, stable)

    def _mean(self, at: float, seconds: float) -> float:
        found = [at_once for then, at_once in self._seen if then > at - seconds]
        return sum(found) / len(found) if found else 0.0
