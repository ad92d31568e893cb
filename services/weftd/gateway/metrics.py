"""The gateway's metrics: its requests, counted and timed."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from weft.store import StoreUnavailableError
from weftd.gateway.errors import RejectedError
from weftd.gateway.limits.streams import Streams

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class RequestMeters:
    """Metrics in their own registry, which the admin port serves."""

    def __init__(self, streams: Streams) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._seconds = Histogram(
            "weft_gateway_request_seconds",
            "Duration of a request, from its headers to the end of its answer; streams take long.",
            ["operation"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._refused = Counter(
            "weft_gateway_refused", "Requests that were refused.", ["operation", "status"], registry=self.registry
        )
        Gauge("weft_gateway_streams", "Answers that stay open.", registry=self.registry).set_function(
            lambda: streams.count
        )

    def timed(self, operation: str) -> Callable[[], AbstractContextManager[None]]:
        """Time each request of one operation, and count the refused ones."""
        seconds = self._seconds.labels(operation)

        @contextmanager
        def timing() -> Iterator[None]:
            began = time.perf_counter()
            try:
                yield
            except RejectedError as error:
                self._refused.labels(operation, str(error.status)).inc()
                raise
            except StoreUnavailableError:
                self._refused.labels(operation, "503").inc()
                raise
            finally:
                seconds.observe(time.perf_counter() - began)

        return timing
