"""The load law of Dynamo's planner, for one pool of engines.

Source: ai-dynamo/dynamo, planner `config/defaults.py` and `core/load_scaling.py`: every 5 s, +1 engine if the predicted
latency of all engines is over the objective; -1 if that of all is below 80 % of it once the load is spread over one
engine less (times N / (N - 1)); at least 1 engine; and a floor from the rate that 180 s of history predict. The latency
of an engine is predicted as its mean time of a request, times the requests that it has and that wait for it over those
that it takes at once, but not less than once. In place of ARIMA, the rate goes on as the two halves of the 180 s tell.
"""

from collections import deque
from math import ceil, inf

from weft.domain.job import Cause, CauseCode
from weft.serving.loads import Goal, ServiceLoad, Sized
from weft.serving.queueing import CountsBefore, ServiceTimes

TICK_SECONDS = 5.0
DOWN_AT = 0.8
FORECAST_SECONDS = 180.0


class Dynamo:
    def __init__(self, goal: Goal, at: float) -> None:
        self._goal = goal
        self._times, self._before = ServiceTimes(), CountsBefore()
        self._arrived: deque[tuple[float, int]] = deque()
        self._decided_at = -inf
        self._replicas: int | None = None

    def decide(self, load: ServiceLoad) -> Sized:
        goal = self._goal
        least = max(1, goal.least)
        if self._replicas is None:
            self._replicas = max(least, load.wanted)
        if not load.silent:
            self._times.add(self._before.news(load.services), at=load.at)
            self._arrived.append((load.at, load.arrived))
        while len(self._arrived) > 1 and self._arrived[0][0] < load.at - FORECAST_SECONDS:
            self._arrived.popleft()
        if load.at - self._decided_at >= TICK_SECONDS and not load.silent:
            self._decided_at = load.at
            self._replicas = self._wanted(load, self._replicas)
        self._replicas = min(goal.most, max(least, self._replicas))
        return Sized(replicas=self._replicas, cause=Cause(code=CauseCode.LOAD, sentence="predicted latency"))

    def _wanted(self, load: ServiceLoad, now: int) -> int:
        shape, goal = self._times.shape, self._goal
        engines = [one for one in load.replicas if one.ready and not one.draining]
        if shape is None or not engines or goal.latency is None:
            return now
        waiting = load.queued / len(engines)
        predicted = [shape.mean * max(1.0, (one.in_flight + waiting) / goal.concurrency) for one in engines]
        floor = ceil(self._rate() * shape.mean / goal.concurrency)
        count = len(engines)
        if count == now and all(latency > goal.latency for latency in predicted):
            now += 1
        elif count == now > 1:
            spread = count / (count - 1)
            after = [shape.mean * max(1.0, spread * (one.in_flight + waiting) / goal.concurrency) for one in engines]
            if all(latency < DOWN_AT * goal.latency for latency in after):
                now -= 1
        return max(now, floor)

    def _rate(self) -> float:
        """What the next window brings, if the two halves of the last go on."""
        if len(self._arrived) < 3:
            return 0.0
        (began, first), (ended, last) = self._arrived[0], self._arrived[-1]
        middle_at, middle = self._arrived[len(self._arrived) // 2]
        if not began < middle_at < ended:
            return 0.0
        early, late = (middle - first) / (middle_at - began), (last - middle) / (ended - middle_at)
        return max(0.0, late + (late - early))
