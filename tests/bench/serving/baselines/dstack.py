"""The rule of dstack on requests a second, with its defaults.

Source: dstackai/dstack, `src/dstack/_internal/server/services/services/autoscalers.py`: replicas = ceil(rate of the
last minute / target), up at the earliest 300 s after the last change, down 600 s after it; from zero at once. The
target, that its user names, is 70 % of what a replica is seen to do; until that is known the size stays.
"""

from math import ceil, inf

from weft.domain.job import Cause, CauseCode
from weft.serving.loads import Goal, ServiceLoad, Sized
from weft.serving.queueing import CountsBefore, ServiceTimes
from weft.serving.windows import CountWindows

WINDOW_SECONDS = 60.0
UP_SECONDS, DOWN_SECONDS = 300.0, 600.0
TARGET = 0.7


class Dstack:
    def __init__(self, goal: Goal, at: float) -> None:
        self._goal = goal
        self._times, self._before, self._windows = ServiceTimes(), CountsBefore(), CountWindows()
        self._changed_at = -inf

    def decide(self, load: ServiceLoad) -> Sized:
        goal, now = self._goal, load.wanted
        if load.silent:
            return self._sized(now, 0.0)
        self._times.add(self._before.news(load.services), at=load.at)
        self._windows.take(load)
        rate, shape = self._windows.rate(WINDOW_SECONDS), self._times.shape
        if now == 0:
            if load.queued or load.in_flight:
                self._changed_at = load.at
                return self._sized(1, rate)
            return self._sized(goal.least, rate)
        if shape is None:
            return self._sized(now, rate)
        wanted = min(goal.most, max(goal.least, ceil(rate / (TARGET * goal.concurrency / shape.mean))))
        delay = UP_SECONDS if wanted > now else DOWN_SECONDS
        if wanted == now or load.at - self._changed_at < delay:
            return self._sized(now, rate)
        self._changed_at = load.at
        return self._sized(wanted, rate)

    def _sized(self, replicas: int, rate: float) -> Sized:
        replicas = min(self._goal.most, max(self._goal.least, replicas))
        return Sized(replicas=replicas, cause=Cause(code=CauseCode.LOAD, sentence=f"{rate:.3g} requests a second"))
