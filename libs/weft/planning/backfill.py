"""Backfill: which jobs may start ahead of one that does not fit. `policy.py` has the classes by name."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple, Protocol

GPU_GRAIN = 1e-6  # rounding error of adding and subtracting parts of GPUs
RESERVATIONS_MAX = 100


class Ending(NamedTuple):
    """A running job ends at `at_s` and frees `gpus` GPUs. A job with an unknown end has no `Ending`."""

    at_s: float
    gpus: float
    job_id: str = ""


class Backfill(Protocol):
    """Each walk over the queue makes one, and calls it for every job in order. Times are in seconds.

    GPUs are counted, not named: the placement checks what else a gang needs (nodes, CPUs, memory).
    """

    def may_start(self, gpus: float, lasts_s: float | None) -> bool:
        """True if a job that fits now delays none of those ahead of it. `lasts_s` None: unknown."""

    def started(self, gpus: float, lasts_s: float | None) -> None: ...

    def blocked(self, gpus: float, lasts_s: float | None) -> bool:
        """The job does not fit, or may not start. Returns whether any job behind it may: else the walk is over."""


class NoBackfill:
    def __init__(self, *, now: float, free: int, endings: Callable[[], Sequence[Ending]]) -> None:
        del now, free, endings  # not used

    def may_start(self, gpus: float, lasts_s: float | None) -> bool:
        del gpus, lasts_s
        return True

    def started(self, gpus: float, lasts_s: float | None) -> None: ...

    def blocked(self, gpus: float, lasts_s: float | None) -> bool:
        del gpus, lasts_s
        return False


class Easy:
    """`free`: GPUs free now; `endings()`, the soonest first, is called once a job is blocked: it then includes the
    jobs started in this walk."""

    def __init__(self, *, now: float, free: int, endings: Callable[[], Sequence[Ending]]) -> None:
        self._now = now
        self._free: float = free
        self._endings = endings
        self._reserved_at: float | None = None
        self._spare: float = 0

    def may_start(self, gpus: float, lasts_s: float | None) -> bool:
        if self._reserved_at is None:
            return True
        ends = inf if lasts_s is None else self._now + lasts_s
        return ends <= self._reserved_at or gpus <= self._spare + GPU_GRAIN

    def started(self, gpus: float, lasts_s: float | None) -> None:
        ends = inf if lasts_s is None else self._now + lasts_s
        self._free -= gpus
        if self._reserved_at is not None and ends > self._reserved_at:
            self._spare -= gpus

    def blocked(self, gpus: float, lasts_s: float | None) -> bool:
        del lasts_s
        if self._reserved_at is None:
            self._reserve(gpus)
        return True

    def _reserve(self, gpus: float) -> None:
        free: float = self._free
        reserved_at = inf  # a job with no known start holds no other back
        for ending in self._endings():
            if ending.at_s > reserved_at:
                break
            free += ending.gpus
            if free + GPU_GRAIN >= gpus:
                reserved_at = ending.at_s
        self._reserved_at = reserved_at
        self._spare = max(0, free - gpus)


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
