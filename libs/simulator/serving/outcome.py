"""What came of one service in one run: every request that arrived counts, also those refused and lost."""

from collections.abc import Sequence
from math import inf

import numpy as np
from msgspec import Struct

from libs.simulator.serving.rates import Times

WINDOW_S = 10.0
PARTS = (0.5, 0.99)


class Counted(Struct, frozen=True, kw_only=True):
    """One service. Times in seconds.

    `bad`: requests that were late, refused or lost, or that waited too long already when the service ended;
    `attainment`: the part that was not. `open`: those still unanswered then. `windows`: of 10 seconds, with requests in
    them; `bad_windows`: those in which more requests were bad than the objective allows; `worst_window`: the largest
    ratio of a window's percentile to the objective, None where requests of it were never answered. `reversals`: changes
    of size against the direction of the change before. `cold_waits`: requests that came while no replica was ready, and
    `cold_wait_most_s` the longest that one of them waited. `gpu_s`: GPU-seconds held, also while replicas start and
    drain. `short_s`: replica-seconds that it should have had, and there was no GPU. `loans`: GPUs of elastic jobs that
    it was lent, `borrowed_gpu_s` for how long in all, and `loan_lost_gpu_s` what the lenders lost by it.
    """

    name: str
    arrived: int
    answered: int
    refused: int
    failed: int
    late: int
    open: int
    bad: int
    attainment: float
    windows: int
    bad_windows: int
    worst_window: float | None
    latency_p50_s: float | None
    latency_p99_s: float | None
    cold_waits: int
    cold_wait_most_s: float
    gpu_s: float
    starts: int
    changes: int
    reversals: int
    short_s: float
    retried: int = 0
    evicted_jobs: int = 0
    loans: int = 0
    borrowed_gpu_s: float = 0.0
    loan_lost_gpu_s: float = 0.0
    unattainable: str = ""


class Course(Struct, frozen=True, kw_only=True):
    """How one service went. `wanted`: from each time on, how many replicas its autoscaler wants, and the thousandths of
    a GPU for each. `held`: replicas that it has, and how many of these are borrowed."""

    name: str
    wanted: tuple[tuple[float, int, int | None], ...]
    held: tuple[tuple[float, int, int], ...]


class Windows(Struct, frozen=True, kw_only=True):
    count: int
    bad: int
    worst: float | None


def bad_requests(arrivals: Sequence[float], latency: Sequence[float], end_s: float, late_s: float | None) -> Times:
    """Of each request 1.0 if it was bad, 0.0 if not, nan if it was still open and not late yet."""
    took = np.array(latency, dtype=float)
    at = np.array(arrivals[: len(took)], dtype=float)
    most = inf if late_s is None else late_s
    bad = np.where(np.isinf(took) | (took > most), 1.0, 0.0)
    pending = np.isnan(took)
    bad[pending] = np.where(end_s - at[pending] > most, 1.0, np.nan)
    return bad


def windows_of(
    arrivals: Sequence[float], latency: Sequence[float], bad: Times, *, percentile: float, late_s: float | None
) -> Windows:
    """The windows by the arrivals of their requests; requests that are still open are in none."""
    if late_s is None:
        return Windows(count=0, bad=0, worst=None)
    known = ~np.isnan(bad)
    place = (np.array(arrivals[: len(bad)])[known] // WINDOW_S).astype(int)
    took = np.where(np.isnan(latency), inf, latency)[known]
    if not len(place):
        return Windows(count=0, bad=0, worst=None)
    allowed = 1.0 - percentile / 100.0
    order = np.lexsort((took, place))
    place, took = place[order], took[order]
    starts = np.flatnonzero(np.r_[True, place[1:] != place[:-1]])
    counts = np.diff(np.r_[starts, len(place)])
    late = np.add.reduceat((took > late_s).astype(int), starts)
    at = starts + np.minimum(counts - 1, np.ceil(counts * percentile / 100.0).astype(int) - 1)
    worst = float(took[at].max()) / late_s
    is_bad = late > np.floor(counts * allowed + 1e-9)
    return Windows(count=len(starts), bad=int(is_bad.sum()), worst=worst if worst < inf else None)
