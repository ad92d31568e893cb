"""What a scheduler counts and times, for /metrics."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from libs.domain.job import Step
from services.scheduler.core import Scheduler


class Tally:
    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._steps = Counter("weft_scheduler_steps", "Steps stored, by event.", ["event"], registry=self.registry)
        self._deciding = Histogram(
            "weft_scheduler_decide_seconds",
            "One decision over the whole queue.",
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
            registry=self.registry,
        )
        self._jobs = Gauge("weft_scheduler_jobs", "Open jobs that the leader knows.", ["held"], registry=self.registry)
        self._nodes = Gauge("weft_scheduler_nodes", "Nodes that are heard of.", registry=self.registry)

    @contextmanager
    def deciding(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._deciding.observe(time.perf_counter() - began)

    def count(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self._steps.labels(step.event).inc()

    def show(self, core: Scheduler) -> None:
        holding = len(core.picture.runs.holding)
        self._jobs.labels("holding").set(holding)
        self._jobs.labels("waiting").set(len(core.picture.jobs) - holding)
        self._nodes.set(sum(node.ready for node in core.picture.nodes.values()))
