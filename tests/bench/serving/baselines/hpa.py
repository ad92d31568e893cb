"""The rule of Kubernetes' horizontal pod autoscaler (HPA, `autoscaling/v2`) on the requests at one replica at once.

Source: kubernetes `pkg/controller/podautoscaler`: every 15 s, replicas x metric / target, rounded up; no change within
a tolerance of 10 %; replicas that are not ready count as idle where it would grow; at most twice as many replicas, or
four more, each 15 s; the largest size of the last `down_seconds` is kept. An operator chooses `target` and
`down_seconds`: here `FITTED`, which `python -m tests.bench serving --only fit` found on seeds that no table uses.
"""

from collections import deque
from math import ceil, inf

from msgspec import Struct

from weft.domain.job import Cause, CauseCode
from weft.serving.loads import Goal, ServiceLoad, Sized

SYNC_SECONDS = 15.0
TOLERANCE = 0.1
UP_TIMES, UP_PODS = 2.0, 4


class HpaConstants(Struct, frozen=True, kw_only=True):
    """`target`: part of the concurrency that each replica should have; `down_seconds`: until it scales down."""

    target: float = 0.3
    down_seconds: float = 300.0


FITTED = HpaConstants()


class Hpa:
    def __init__(self, goal: Goal, at: float, constants: HpaConstants = FITTED) -> None:
        self._goal, self._constants = goal, constants
        self._decided_at = -inf
        self._replicas: int | None = None
        self._wanted: deque[tuple[float, int]] = deque()
        self._seen: deque[tuple[float, int]] = deque()  # requests at once, since the last decision

    def decide(self, load: ServiceLoad) -> Sized:
        if self._replicas is None:
            self._replicas = load.wanted
        if not load.silent:
            self._seen.append((load.at, load.in_flight + load.queued))
        while self._seen and self._seen[0][0] <= load.at - SYNC_SECONDS:
            self._seen.popleft()
        if self._seen and load.at - self._decided_at >= SYNC_SECONDS - 1e-9:
            self._decided_at = load.at
            self._replicas = self._next(load)
        replicas = min(self._goal.most, max(max(1, self._goal.least), self._replicas))
        return Sized(replicas=replicas, cause=Cause(code=CauseCode.LOAD, sentence=f"{self._mean():.3g} at once"))

    def _next(self, load: ServiceLoad) -> int:
        now = max(1, self._replicas or 0)
        ready = sum(one.ready and not one.draining for one in load.replicas)
        target = self._constants.target * self._goal.concurrency
        usage = self._mean() / max(1, ready) / target
        wanted = now if abs(usage - 1.0) <= TOLERANCE else ceil(usage * max(1, ready))
        if usage > 1.0 + TOLERANCE and ready < now:
            again = self._mean() / now / target  # those that start take their part soon
            wanted = ceil(again * now) if again > 1.0 + TOLERANCE else now
        wanted = min(wanted, int(max(UP_TIMES * now, now + UP_PODS)))
        self._wanted.append((load.at, wanted))
        while self._wanted[0][0] <= load.at - self._constants.down_seconds:
            self._wanted.popleft()
        return max(wanted, min(now, max(size for _, size in self._wanted)))

    def _mean(self) -> float:
        return sum(at_once for _, at_once in self._seen) / len(self._seen) if self._seen else 0.0
