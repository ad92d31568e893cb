"""The rule of Ray Serve on ongoing requests, with its defaults.

Source: ray-project/ray, `python/ray/serve/autoscaling_policy.py` and `python/ray/serve/config.py`: a replica is to
have 2 of the at most 5 requests that it takes, so 0.4 of the concurrency; a time-weighted mean over 30 s, pushed every
10 s; smoothing factors 1.0; a change is applied once its direction has held for 30 s (up) or 600 s (down), with the
last value (ray-project/ray#46497). From zero to 1 at once.
"""

from collections import deque
from math import ceil, inf

from weft.domain.job import Cause, CauseCode
from weft.serving.loads import Goal, ServiceLoad, Sized

TARGET = 2.0 / 5.0
LOOK_BACK_SECONDS, PUSH_SECONDS = 30.0, 10.0
UP_DELAY_SECONDS, DOWN_DELAY_SECONDS = 30.0, 600.0


class Ray:
    def __init__(self, goal: Goal, at: float) -> None:
        self._goal = goal
        self._seen: deque[tuple[float, int]] = deque()
        self._mean, self._pushed_at = 0.0, -inf
        self._since: tuple[int, float] | None = None  # the direction, and since when it holds

    def decide(self, load: ServiceLoad) -> Sized:
        goal = self._goal
        if not load.silent:
            self._seen.append((load.at, load.in_flight + load.queued))
        while len(self._seen) > 1 and self._seen[1][0] <= load.at - LOOK_BACK_SECONDS:
            self._seen.popleft()
        if load.at - self._pushed_at >= PUSH_SECONDS:
            self._mean, self._pushed_at = self._weighted(load.at), load.at
        running = load.wanted
        if running == 0:
            wakes = bool(load.queued or load.in_flight)
            return self._sized(max(goal.least, 1 if wakes else 0))
        desired = ceil(running + (self._mean / (TARGET * goal.concurrency) - running))
        if desired == running and self._mean / (TARGET * goal.concurrency) < running - 1:
            desired = running - 1
        desired = min(goal.most, max(goal.least, desired))
        direction = (desired > running) - (desired < running)
        if direction == 0:
            self._since = None
            return self._sized(running)
        if self._since is None or self._since[0] != direction:
            self._since = (direction, load.at)
        delay = UP_DELAY_SECONDS if direction > 0 else DOWN_DELAY_SECONDS
        if load.at - self._since[1] < delay:
            return self._sized(running)
        self._since = None
        return self._sized(desired)

    def _weighted(self, at: float) -> float:
        if not self._seen:
            return 0.0  # no router has reported yet
        area, lasted = 0.0, 0.0
        for (then, at_once), (until, _) in zip(self._seen, [*list(self._seen)[1:], (at, 0)], strict=True):
            begin = max(then, at - LOOK_BACK_SECONDS)
            area, lasted = area + at_once * max(0.0, until - begin), lasted + max(0.0, until - begin)
        return area / lasted if lasted > 0.0 else float(self._seen[-1][1])

    def _sized(self, replicas: int) -> Sized:
        replicas = min(self._goal.most, max(self._goal.least, replicas))
        cause = Cause(code=CauseCode.LOAD, sentence=f"{self._mean:.3g} ongoing requests")
        return Sized(replicas=replicas, cause=cause)
