"""The router's metrics, read from what the admission process counts when they are asked for."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from weftd.router.admission import Admission
from weftd.router.thinking.service_queue import ServiceQueue

COUNTERS = {
    "weft_router_arrived": ("arrived", "Requests that came for a service."),
    "weft_router_answered": ("answered", "Requests that a replica answered."),
    "weft_router_refused": ("refused", "Requests refused since too many wait (429)."),
    "weft_router_failed": ("failed", "Requests that a replica failed, or that waited too long."),
    "weft_router_late": ("late", "Requests answered later than the objective allows."),
}


class RouterMeters:
    """Metrics in a registry of their own, which the admin port serves."""

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
        lost = CounterMetricFamily("weft_router_ends_lost", "Requests whose end was never heard of.")
        lost.add_metric([], routing.lost)
        yield lost
        refusals = CounterMetricFamily("weft_router_refusals", "Answers of the router itself.", labels=["status"])
        for status, times in sorted(self._admission.refused.items()):
            refusals.add_metric([str(status)], times)
        yield refusals


def _of(queue: ServiceQueue) -> list[str]:
    return [queue.service.job_id, queue.service.tenant]
