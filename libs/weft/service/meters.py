"""The metrics of a service, in a registry of its own: each name is `weft_<service>_…`, with its unit last."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Meters:
    def __init__(self, service: str, registry: CollectorRegistry | None = None) -> None:
        self.service = service
        self.registry = registry or CollectorRegistry(auto_describe=True)
        self._prefix = f"weft_{service.replace('-', '_')}_"
        ProcessCollector(registry=self.registry)

    def counter(self, name: str, meaning: str, labels: Sequence[str] = ()) -> Counter:
        """A count that only grows; Prometheus adds `_total` to its name."""
        return Counter(self._prefix + name, meaning, labels, registry=self.registry)

    def gauge(self, name: str, meaning: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(self._prefix + name, meaning, labels, registry=self.registry)

    def histogram(
        self, name: str, meaning: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = SECONDS
    ) -> Histogram:
        return Histogram(self._prefix + name, meaning, labels, buckets=buckets, registry=self.registry)

    def watch(self, name: str, meaning: str, label: str, read: Callable[[], Mapping[str, int]]) -> None:
        """Counts that another object keeps, read at each scrape."""
        self.registry.register(_Watched(self._prefix + name, meaning, label, read))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Watched(Collector):
    def __init__(self, name: str, meaning: str, label: str, read: Callable[[], Mapping[str, int]]) -> None:
        self._name = name
        self._meaning = meaning
        self._label = label
        self._read = read

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._meaning, labels=[self._label])
        for value, count in sorted(self._read().items()):
            family.add_metric([value], count)
        yield family
