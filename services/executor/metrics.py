"""What the executor shows of itself on /metrics."""

from collections import Counter
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client import Counter as Counted

from libs.messages.nodes import RunState
from services.executor.core import Action
from services.executor.runtime import Run


class ExecutorGauges:
    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._runs = Gauge("weft_executor_runs", "Runs on this node.", ["state"], registry=self.registry)
        self._actions = Counted("weft_executor_actions", "What was decided.", ["action"], registry=self.registry)
        self._fenced = Gauge(
            "weft_executor_fenced", "1 while the control plane was out of reach for too long.", registry=self.registry
        )

    def show(self, runs: Iterable[Run], actions: Iterable[Action], *, fenced: bool) -> None:
        counts = Counter(run.state for run in runs)
        for state in RunState:
            self._runs.labels(state).set(counts[state])
        for action in actions:
            self._actions.labels(type(action).__name__.lower()).inc()
        self._fenced.set(fenced)
