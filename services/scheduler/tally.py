"""The metrics of the scheduler, for /metrics."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from libs.domain.job import Step
from libs.messages.history import Record
from services.scheduler.thinking.core import Scheduler


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
        self._recorded = Counter(
            "weft_scheduler_history_bytes", "Bytes added to the history of decisions.", registry=self.registry
        )
        self._doubted = Gauge(
            "weft_scheduler_nodes_doubted",
            "Nodes silent for longer than their lease, not given up because many fell silent together.",
            registry=self.registry,
        )
        self._strays = Gauge(
            "weft_scheduler_strays", "Runs that nodes report as alive and no job has.", registry=self.registry
        )
        self._holding_back = Gauge(
            "weft_scheduler_holding_back",
            "1 while nothing is placed: nodes have yet to report, or the store went back in time.",
            registry=self.registry,
        )
        self._holds = Gauge(
            "weft_scheduler_holds_nodes",
            "1 while the store is away and the nodes are told to go on as they are.",
            registry=self.registry,
        )
        self._went_back = Counter(
            "weft_scheduler_store_went_back",
            "How often the store was found to have gone back in time.",
            registry=self.registry,
        )

    @contextmanager
    def deciding(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._deciding.observe(time.perf_counter() - began)

    def watch_outbox(self, waiting: Callable[[], int]) -> None:
        Gauge(
            "weft_scheduler_outbox_waiting", "Events that the stream does not take at present.", registry=self.registry
        ).set_function(waiting)

    def count(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self._steps.labels(step.event).inc()

    def recorded(self, record: Record) -> None:
        self._recorded.inc(len(record.body))

    def hold(self, holds: bool) -> None:
        self._holds.set(holds)

    def store_went_back(self) -> None:
        self._went_back.inc()

    def show(self, core: Scheduler) -> None:
        holding = len(core.picture.pool.runs.holding)
        self._jobs.labels("holding").set(holding)
        self._jobs.labels("waiting").set(len(core.picture.jobs) - holding)
        self._nodes.set(sum(node.ready for node in core.picture.pool.nodes.values()))
        self._doubted.set(core.reaper.held_back)
        self._strays.set(core.picture.pool.strays.living)
        self._holding_back.set(core.holding_back)
