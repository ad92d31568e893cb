"""The metrics of the scheduler, for /metrics."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from weft.domain.health import CLOSED, HealthState
from weft.domain.job import Step
from weft.messages.history import Record
from weftd.scheduler.thinking.core import Scheduler
from weftd.scheduler.thinking.state.pool import Pool


class Counters:
    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._shown: dict[str, _Shown] = {}  # by pool that is led
        self._counted: dict[str, tuple[Pool, int, _Nodes]] = {}  # by pool: its nodes, at which change, in numbers
        self._held: set[str] = set()  # pools whose nodes are held without the store
        self._led = Gauge("weft_scheduler_pools_led", "Pools that this scheduler leads.", registry=self.registry)
        self._steps = Counter("weft_scheduler_steps", "Steps stored, by event.", ["event"], registry=self.registry)
        self._deciding = Histogram(
            "weft_scheduler_decide_seconds",
            "One decision over the whole queue.",
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
            registry=self.registry,
        )
        self._jobs = Gauge("weft_scheduler_jobs", "Open jobs that the leader knows.", ["held"], registry=self.registry)
        self._nodes = Gauge("weft_scheduler_nodes", "Nodes that report.", registry=self.registry)
        self._out_of_use = Gauge(
            "weft_scheduler_out_of_use",
            "GPUs and nodes of ready nodes that are out of use, by state: quarantined, broken.",
            ["what", "state"],
            registry=self.registry,
        )
        self._recorded = Counter(
            "weft_scheduler_history_bytes", "Bytes added to the history of decisions.", registry=self.registry
        )
        self._doubted = Gauge(
            "weft_scheduler_nodes_doubted",
            "Nodes silent for longer than their lease, not given up because many fell silent together.",
            registry=self.registry,
        )
        self._orphans = Gauge(
            "weft_scheduler_orphans", "Runs that nodes report as alive and no job has.", registry=self.registry
        )
        self._holding_back = Gauge(
            "weft_scheduler_holding_back",
            "1 while nothing is placed: nodes have yet to report, or the store went back in time.",
            registry=self.registry,
        )
        self._holds = Gauge(
            "weft_scheduler_holds_nodes",
            "1 while the store does not answer and nodes keep their runs.",
            registry=self.registry,
        )
        self._went_back = Counter(
            "weft_scheduler_store_went_back",
            "How often the store was found to have gone back in time.",
            registry=self.registry,
        )

        self._poison_messages = Counter(
            "weft_scheduler_mistakes",
            "How often a decision ended with an exception; the log has it.",
            registry=self.registry,
        )

    @contextmanager
    def deciding(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._deciding.observe(time.perf_counter() - began)

    def watch_outbox(self, waiting: Callable[[], int]) -> None:
        Gauge(
            "weft_scheduler_outbox_waiting",
            "Events that the stream does not accept at present.",
            registry=self.registry,
        ).set_function(waiting)

    def count(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self._steps.labels(step.event).inc()

    def recorded(self, record: Record) -> None:
        self._recorded.inc(len(record.body))

    def hold(self, pool: str, *, holds: bool) -> None:
        (self._held.add if holds else self._held.discard)(pool)
        self._holds.set(bool(self._held))

    def store_went_back(self) -> None:
        self._went_back.inc()

    def mistake(self) -> None:
        self._poison_messages.inc()

    def show(self, core: Scheduler) -> None:
        holding = len(core.cluster_state.pool.runs.holding)
        self._shown[core.pool] = _Shown(
            holding=holding,
            waiting=len(core.cluster_state.jobs) - holding,
            nodes=self._nodes_of(core),
            doubted=core.node_failures.held_back,
            orphans=core.cluster_state.pool.orphans.living,
            holding_back=core.holding_back,
        )
        self._sum()

    def _nodes_of(self, core: Scheduler) -> "_Nodes":
        """Counted only when a node has changed: there may be thousands, and many cycles a second."""
        pool = core.cluster_state.pool
        counted = self._counted.get(core.pool)
        if counted is None or counted[0] is not pool or counted[1] != pool.changes:
            counted = self._counted[core.pool] = (pool, pool.changes, _nodes_of(pool))
        return counted[2]

    def leads_no_more(self, pool: str) -> None:
        """Discard this scheduler's outdated view of the pool."""
        self._counted.pop(pool, None)
        if self._shown.pop(pool, None) is not None:
            self.hold(pool, holds=False)
            self._sum()

    def _sum(self) -> None:
        shown = self._shown.values()
        self._led.set(len(shown))
        self._jobs.labels("holding").set(sum(one.holding for one in shown))
        self._jobs.labels("waiting").set(sum(one.waiting for one in shown))
        self._nodes.set(sum(one.nodes.ready for one in shown))
        for what, state in OUT_OF_USE:
            total = sum(one.nodes.out_of_use.get((what, state), 0) for one in shown)
            self._out_of_use.labels(what, state).set(total)
        self._doubted.set(sum(one.doubted for one in shown))
        self._orphans.set(sum(one.orphans for one in shown))
        self._holding_back.set(any(one.holding_back for one in shown))


OUT_OF_USE = [(what, state) for what in ("gpu", "node") for state in sorted(CLOSED)]


class _Nodes(Struct, frozen=True):
    """`ready`: number of ready nodes; `out_of_use`: number of their GPUs, and of themselves, by state."""

    ready: int
    out_of_use: dict[tuple[str, HealthState], int]


def _nodes_of(pool: Pool) -> _Nodes:
    ready = [node for node in pool.nodes.values() if node.ready]
    closed = [each for node in ready for each in node.health if each.closed]
    found: dict[tuple[str, HealthState], int] = {}
    for each in closed:
        key = ("node" if each.gpu is None else "gpu", each.state)
        found[key] = found.get(key, 0) + 1
    return _Nodes(len(ready), found)


class _Shown(Struct, frozen=True, kw_only=True):
    """One pool, in numbers."""

    holding: int
    waiting: int
    nodes: _Nodes
    doubted: int
    orphans: int
    holding_back: bool
