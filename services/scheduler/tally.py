"""What a scheduler counts and times, for /metrics."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from libs.domain.job import Step
from libs.service.meters import Meters
from services.scheduler.core import Scheduler


class Tally:
    def __init__(self, meters: Meters) -> None:
        self._steps = meters.counter("steps", "Steps stored, by event.", ["event"])
        self._deciding = meters.histogram("decide_seconds", "One decision over the whole queue.")
        self._jobs = meters.gauge("jobs", "Open jobs that the leader knows.", ["held"])
        self._nodes = meters.gauge("nodes", "Nodes that are heard of.")

    @contextmanager
    def deciding(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._deciding.observe(time.perf_counter() - began)

    def count(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self._steps.labels(step.event).inc()

    def show(self, core: Scheduler) -> None:
        holding = len(core.runs.holding)
        self._jobs.labels("holding").set(holding)
        self._jobs.labels("waiting").set(len(core.jobs) - holding)
        self._nodes.set(sum(node.ready for node in core.nodes.values()))
