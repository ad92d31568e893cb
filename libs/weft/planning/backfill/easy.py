"""EASY backfill (Lifka, 1995): the first job that does not fit has a reservation; others start if they do not delay it.

It will start when enough running jobs have ended. A job that ends before that, or needs only what the reservation then
leaves free, may start now.
"""

from collections.abc import Callable, Sequence
from math import inf

from weft.planning.backfill import GPU_GRAIN, Ending


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
