"""What came of one service in one run: every request that arrived counts, also those refused and lost."""

from collections.abc import Sequence
from math import inf

import numpy as np
from msgspec import Struct

from weft.simulator.serving.rates import Times

WINDOW_S = 10.0


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
