"""The recent requests to a service, from the counts of its routers at two moments. Pure."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from weft.domain.spec import Objective
from weft.messages.http.services import RequestsView, TokensView
from weft.messages.serving import BUCKET_FIRST_SECONDS, BUCKET_GROWTH, ServiceServed

COUNTED = ("arrived", "refused", "failed", "late")
TOKENS = ("tokens_in", "tokens_out", "tokens_cached")
BUCKETS = ("totals", "first_tokens", "token_times")


class ServedMark(Struct, frozen=True, kw_only=True):
    """The counts of one service at one router, `at` a moment of our clock."""

    at: float
    arrived: int
    refused: int
    failed: int
    late: int
    totals: Mapping[int, int]
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    first_tokens: Mapping[int, int] = {}
    token_times: Mapping[int, int] = {}


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
        tokens_in=served.tokens_in,
        tokens_out=served.tokens_out,
        tokens_cached=served.tokens_cached,
        first_tokens=served.first_tokens,
        token_times=served.token_times,
    )


def requests_of(windows: Iterable[ServedWindow], objective: Objective | None) -> RequestsView | None:
    """Sum of the requests of all routers; None if there is no router. Counts that decreased count as none."""
    windows = list(windows)
    if not windows:
        return None
    counts, tokens = dict.fromkeys(COUNTED, 0), dict.fromkeys(TOKENS, 0)
    found: dict[str, dict[int, int]] = {name: {} for name in BUCKETS}
    rate = rate_now = 0.0
    for window in windows:
        for sums in (counts, tokens):
            for name in sums:
                sums[name] += max(0, getattr(window.end, name) - getattr(window.begin, name))
        for name, buckets in found.items():
            before = getattr(window.begin, name)
            for bucket, count in getattr(window.end, name).items():
                if (more := count - before.get(bucket, 0)) > 0:
                    buckets[bucket] = buckets.get(bucket, 0) + more
        rate += _rate(window.begin, window.end)
        rate_now += _rate(window.recent, window.end)
    seconds = max(window.end.at - window.begin.at for window in windows)
    totals, part = found["totals"], 99.0 if objective is None else objective.percentile
    return RequestsView(
        seconds=seconds,
        rate=rate,
        rate_now=rate_now,
        in_flight=sum(replica.in_flight for window in windows for replica in window.now.replicas),
        queued=sum(window.now.queued for window in windows),
        p50=percentile(totals, 50.0),
        p99=percentile(totals, 99.0),
        objective=None if objective is None else percentile(totals, objective.percentile),
        tokens=_tokens(
            windows,
            tokens,
            seconds,
            ttft=percentile(found["first_tokens"], part),
            tpot=percentile(found["token_times"], part),
        ),
        **counts,
    )


def _tokens(
    windows: Iterable[ServedWindow],
    tokens: Mapping[str, int],
    seconds: float,
    *,
    ttft: float | None,
    tpot: float | None,
) -> TokensView | None:
    """None if neither an answer nor an engine has any."""
    # Each router tells of the same engines.
    replicas = {(one.epoch, one.rank): one for window in windows for one in window.now.replicas}.values()
    used = [one.kv_used for one in replicas if one.kv_used is not None]
    waiting = [one.engine_waiting for one in replicas if one.engine_waiting is not None]
    if not (used or waiting or any(tokens.values())):
        return None
    lasted = max(seconds, 1.0)
    return TokensView(
        rate_in=tokens["tokens_in"] / lasted,
        rate_out=tokens["tokens_out"] / lasted,
        cached=tokens["tokens_cached"] / tokens["tokens_in"] if tokens["tokens_in"] else None,
        ttft=ttft,
        tpot=tpot,
        waiting=sum(waiting) if waiting else None,
        kv_used=max(used, default=None),
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
    """True if enough requests were answered in time. None without an objective or without requests."""
    if requests is None or objective is None or not requests.arrived:
        return None
    bad = requests.late + requests.refused + requests.failed
    return 100 * bad <= round(requests.arrived * (100.0 - objective.percentile), 6)
