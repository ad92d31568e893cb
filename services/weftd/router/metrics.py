"""The router's metrics, read from the counts of the admission process on request."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from weft.messages.serving import BUCKET_FIRST_SECONDS, BUCKET_GROWTH
from weftd.router.admission import Admission
from weftd.router.thinking.service_queue import ServiceQueue

COUNTERS = {
    "weft_router_arrived": ("arrived", "Requests that came for a service."),
    "weft_router_answered": ("answered", "Requests that a replica answered."),
    "weft_router_refused": ("refused", "Requests refused because too many wait (429)."),
    "weft_router_failed": ("failed", "Requests that a replica failed, or that waited too long."),
    "weft_router_late": ("late", "Requests answered later than the objective allows."),
    "weft_router_tokens_in": ("tokens_in", "Tokens of prompts, as engines counted them."),
    "weft_router_tokens_out": ("tokens_out", "Tokens of answers."),
    "weft_router_tokens_cached": ("tokens_cached", "Tokens of prompts that were in the prefix cache of an engine."),
    "weft_router_batch_answered": ("batch_answered", "Batch requests that a replica answered."),
    "weft_router_batch_refused": ("batch_refused", "Batch requests for which no replica was idle (429, 503)."),
}

TIMES = (
    ("weft_router_first_token_seconds", "From a request to the first token of its stream.", "first_tokens"),
    ("weft_router_token_seconds", "The mean time of each token of a stream after the first.", "token_times"),
)

SHOWN = range(0, 69, 4)  # buckets of a histogram: 1 ms, 2 ms, … 131 s


class RouterMeters:
    """Metrics in their own registry, which the admin port serves."""

    def __init__(self, admission: Admission) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._admission = admission
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        routing = self._admission.routing
        queues = [*routing.queues.values()]
        labels = ["job_id", "tenant"]
        for name, (field, words) in COUNTERS.items():
            counted = CounterMetricFamily(name, words, labels=labels)
            for queue in queues:
                counted.add_metric(_of(queue), getattr(queue.counts, field))
            yield counted
        queued = GaugeMetricFamily("weft_router_queued", "Requests that wait.", labels=labels)
        passed = GaugeMetricFamily("weft_router_in_flight", "Requests at replicas.", labels=labels)
        ready = GaugeMetricFamily("weft_router_replicas", "Replicas that take requests.", labels=labels)
        for queue in queues:
            backends = [*queue.backends.values()]
            queued.add_metric(_of(queue), len(queue.line))
            passed.add_metric(_of(queue), sum(len(backend.requests) for backend in backends))
            ready.add_metric(_of(queue), sum(backend.replica.takes and not backend.gone for backend in backends))
        yield from (queued, passed, ready)
        yield from _of_engines(queues, labels)
        for metric, words, field in TIMES:
            told = HistogramMetricFamily(metric, words, labels=labels)
            for queue in queues:
                if counted_times := getattr(queue.counts, field):
                    told.add_metric(_of(queue), *_histogram(counted_times))
            yield told
        lost = CounterMetricFamily("weft_router_ends_lost", "Requests whose end was never heard of.")
        lost.add_metric([], routing.lost)
        yield lost
        refusals = CounterMetricFamily("weft_router_refusals", "Answers of the router itself.", labels=["status"])
        for status, times in sorted(self._admission.refused.items()):
            refusals.add_metric([str(status)], times)
        yield refusals


def _of_engines(queues: Iterable[ServiceQueue], labels: list[str]) -> Iterator[Metric]:
    """Gauges of the engines of each service, where they have them."""
    waiting = GaugeMetricFamily("weft_router_engine_waiting", "Requests that wait in the engines.", labels=labels)
    used = GaugeMetricFamily(
        "weft_router_kv_cache_used", "The part of the KV cache in use, the highest.", labels=labels
    )
    for queue in queues:
        engines = [backend.engine for backend in queue.backends.values() if not backend.gone]
        if lines := [engine.waiting for engine in engines if engine.waiting is not None]:
            waiting.add_metric(_of(queue), sum(lines))
        if parts := [engine.kv_used for engine in engines if engine.kv_used is not None]:
            used.add_metric(_of(queue), max(parts))
    yield from (waiting, used)


def _histogram(counts: Mapping[int, int]) -> tuple[list[tuple[str, float]], float]:
    """Cumulative, by the upper bounds of the buckets, and about the sum of all times."""
    seconds = {bucket: BUCKET_FIRST_SECONDS * BUCKET_GROWTH**bucket for bucket in (*counts, *SHOWN)}
    buckets = [
        (f"{seconds[shown]:g}", float(sum(times for bucket, times in counts.items() if bucket <= shown)))
        for shown in SHOWN
    ]
    total = sum(counts.values())
    return [*buckets, ("+Inf", float(total))], sum(times * seconds[bucket] for bucket, times in counts.items())


def _of(queue: ServiceQueue) -> list[str]:
    return [queue.service.job_id, queue.service.tenant]
