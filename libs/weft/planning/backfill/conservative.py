"""Conservative backfill (Mu'alem & Feitelson, 2001): every job that does not fit has a reservation, in order.

A job starts now if it delays no reservation for as long as it lasts. Reservations are kept for the first
RESERVATIONS_MAX jobs; no job behind them starts.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from math import inf

from weft.planning.backfill import GPU_GRAIN, Ending

RESERVATIONS_MAX = 100


class Conservative:
    """`free`: GPUs free now; `endings()`: the soonest first."""

    def __init__(self, *, now: float, free: int, endings: Callable[[], Sequence[Ending]]) -> None:
        self._times = [now]  # from each on, `_free` at its index are free
        self._free: list[float] = [free]
        for ending in endings():
            if ending.at_s > self._times[-1]:
                self._times.append(ending.at_s)
                self._free.append(self._free[-1])
            self._free[-1] += ending.gpus
        self._reservations = 0

    def may_start(self, gpus: float, lasts_s: float | None) -> bool:
        return self._start_of(gpus, inf if lasts_s is None else lasts_s) == self._times[0]

    def started(self, gpus: float, lasts_s: float | None) -> None:
        self._take(self._times[0], gpus, inf if lasts_s is None else lasts_s)

    def blocked(self, gpus: float, lasts_s: float | None) -> bool:
        lasts = inf if lasts_s is None else lasts_s
        start = self._start_of(gpus, lasts)
        if start is not None:
            self._take(max(start, self._times[0]), gpus, lasts)
        self._reservations += 1
        return self._reservations < RESERVATIONS_MAX

    def _start_of(self, gpus: float, lasts: float) -> float | None:
        """The first time from which `gpus` are free for `lasts` seconds."""
        start: float | None = None
        for at, free in zip(self._times, self._free, strict=True):
            if start is not None and at >= start + lasts:
                return start
            if free + GPU_GRAIN < gpus:
                start = None
            elif start is None:
                start = at
        return start

    def _take(self, start: float, gpus: float, lasts: float) -> None:
        first, last = self._cut(start), self._cut(start + lasts)
        for at in range(first, last):
            self._free[at] -= gpus

    def _cut(self, at: float) -> int:
        """The index of time `at`, inserted if it is not there."""
        if at == inf:
            return len(self._times)
        index = bisect_left(self._times, at)
        if index == len(self._times) or self._times[index] != at:
            self._times.insert(index, at)
            self._free.insert(index, self._free[index - 1])
        return index
