"""The requests to a service lately, from the counts of its routers at two moments. Pure."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from weft.domain.spec import Objective
from weft.messages.http.services import RequestsView
from weft.messages.serving import BUCKET_FIRST_SECONDS, BUCKET_GROWTH, ServiceServed

COUNTED = ("arrived", "refused", "failed", "late")


class ServedMark(Struct, frozen=True, kw_only=True):
    """The counts of one service at one router, `at` a moment of our clock."""

    at: float
    arrived: int
    refused: int
    failed: int
    late: int
    totals: Mapping[int, int]


class ServedWindow(Struct, frozen=True, kw_only=True):
    """One router's counts at the beginning of a time, some seconds before its end, and its newest report at its end."""

    begin: ServedMark
    recent: ServedMark
    end: ServedMark
    now: ServiceServed


def mark_of(served: ServiceServed, at: float) -> ServedMark:
    return ServedMark(
        at=at,
        arrived=served.arrived,
        refused=served.refused,
        failed=served.failed,
        late=served.late,
        totals=served.totals,
    )


def requests_of(windows: Iterable[ServedWindow], objective: Objective | None) -> RequestsView | None:
    """Sum of the requests of all routers; None if there is no router. Counts that decreased count as none."""
    windows = list(windows)
    if not windows:
        return None
    counts = dict.fromkeys(COUNTED, 0)
    buckets: dict[int, int] = {}
    rate = rate_now = 0.0
    for window in windows:
        for name in COUNTED:
            counts[name] += max(0, getattr(window.end, name) - getattr(window.begin, name))
        for bucket, count in window.end.totals.items():
            if (more := count - window.begin.totals.get(bucket, 0)) > 0:
                buckets[bucket] = buckets.get(bucket, 0) + more
        rate += _rate(window.begin, window.end)
        rate_now += _rate(window.recent, window.end)
    return RequestsView(
        seconds=max(window.end.at - window.begin.at for window in windows),
        rate=rate,
        rate_now=rate_now,
        in_flight=sum(replica.in_flight for window in windows for replica in window.now.replicas),
        queued=sum(window.now.queued for window in windows),
        p50=percentile(buckets, 50.0),
        p99=percentile(buckets, 99.0),
        objective=None if objective is None else percentile(buckets, objective.percentile),
        **counts,
    )


def _rate(begin: ServedMark, end: ServedMark) -> float:
    return max(0, end.arrived - begin.arrived) / (end.at - begin.at) if end.at > begin.at else 0.0


def percentile(buckets: Mapping[int, int], part: float) -> float | None:
    """Upper bound of the bucket with this percentile, in seconds; None without requests."""
    wanted = sum(buckets.values()) * part / 100.0
    seen = 0
    for bucket in sorted(buckets):
        seen += buckets[bucket]
        if seen >= wanted:
            return float(BUCKET_FIRST_SECONDS * BUCKET_GROWTH**bucket)
    return None


def is_kept(requests: RequestsView | None, objective: Objective | None) -> bool | None:
    """Were enough requests answered in time? None: nothing was promised, or nothing arrived."""
    if requests is None or objective is None or not requests.arrived:
        return None
    bad = requests.late + requests.refused + requests.failed
    return 100 * bad <= round(requests.arrived * (100.0 - objective.percentile), 6)
