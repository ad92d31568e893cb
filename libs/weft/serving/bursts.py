"""The standing reserve of capacity for the next burst, computed from past bursts.

A burst starts within a second, and replicas that start then are ready seconds later; until then the present replicas
answer what they can. The objective decides if idle replicas are kept: none, as long as bursts like the past ones would
make no larger part of all requests late than it allows. After a single burst the reserve fades within hours without
another one.
"""

from collections import deque
from itertools import pairwise

from msgspec import Struct

MEMORY_SECONDS = 86_400.0
KNOWN_LEAST = 3600.0  # seconds: a burst soon after the start is not taken for a frequent one
BURSTS_MAX = 64
STEADY_SECONDS = 20.0
LASTS_MOST = 600.0  # a longer increase counts as the rate, not as a burst


class _Burst(Struct):
    at: float
    before: float  # requests a second
    highest: float
    steady: bool = False  # windows of `highest`, long enough for little chance

    @property
    def times(self) -> float:
        return self.highest / self.before


class PastBursts:
    def __init__(self) -> None:
        self._since: float | None = None
        self._bursts: deque[_Burst] = deque(maxlen=BURSTS_MAX)
        self._now: _Burst | None = None

    @property
    def before(self) -> float | None:
        """The rate before the present burst; None if there is none."""
        return None if self._now is None else self._now.before

    def take(self, at: float, *, burst: float, before: float, rate: float) -> None:
        """`burst`: the rate of a burst that was seen just now, 0 for none; `before`: the rate before it; `rate`: of the
        last `STEADY_SECONDS`."""
        if self._since is None:
            self._since = at
        now = self._now
        if now is None:
            if burst > before > 0.0:
                self._now = _Burst(at, before, burst)
                self._bursts.append(self._now)
        elif at - now.at >= LASTS_MOST:
            self._bursts.remove(now)
            self._now = None
        elif rate < (now.before + now.highest) / 2.0 and burst <= 0.0:
            self._now = None
        elif at - now.at >= STEADY_SECONDS:
            now.highest = max(now.highest, rate) if now.steady else rate
            now.steady = True
        while self._bursts and self._bursts[0].at < at - MEMORY_SECONDS and self._bursts[0] is not now:
            self._bursts.popleft()

    def headroom(self, at: float, *, late: float, allowed: float) -> float:
        """The multiple of the rate that the replicas must be able to answer, so that bursts like the recent ones make
        at most that part of the requests late, if each leaves the excess unanswered for `late` seconds. 0: no
        reserve."""
        if self._since is None or not self._bursts:
            return 0.0
        known = min(MEMORY_SECONDS, max(at - self._since, KNOWN_LEAST))
        left = allowed * known / max(late, 1e-9)  # the sum of the excess over all bursts
        times = sorted((each.times for each in self._bursts), reverse=True)
        for count, (high, low) in enumerate(pairwise((*times, 0.0)), 1):
            if left <= count * (high - low):
                return high - left / count
            left -= count * (high - low)
        return 0.0
