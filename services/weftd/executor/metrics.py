"""The executor's own metrics on /metrics."""

from collections import Counter
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client import Counter as Counted

from weft.messages.nodes import RunState
from weftd.executor.logs.retention import Found
from weftd.executor.runs import Run
from weftd.executor.thinking.core import Action


class ExecutorGauges:
    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._runs = Gauge("weft_executor_runs", "Runs on this node.", ["state"], registry=self.registry)
        self._actions = Counted("weft_executor_actions", "What was decided.", ["action"], registry=self.registry)
        self._fenced = Gauge(
            "weft_executor_fenced", "1 while the control plane was out of reach for too long.", registry=self.registry
        )
        self._logs = self._gauge("logs_bytes", "What the logs of runs take on the disk.")
        self._dropped = self._gauge("logs_dropped_bytes", "What was dropped of logs, by the limits, since the start.")
        self._uncut = self._gauge("logs_uncut", "Logs over their limit that this file system cannot shorten.")
        self._free = self._gauge("disk_free_bytes", "Free on the disk of the logs.")
        self._full = self._gauge("disk_full", "1 while the disk of the logs has almost nothing left.")

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(f"weft_executor_{name}", meaning, registry=self.registry)

    def show_logs(self, found: Found) -> None:
        self._logs.set(found.logs_bytes)
        self._dropped.set(found.dropped_bytes)
        self._uncut.set(found.uncut)
        self._free.set(found.disk_free_bytes)
        self._full.set(found.full)

    def show(self, runs: Iterable[Run], actions: Iterable[Action], *, fenced: bool) -> None:
        counts = Counter(run.state for run in runs)
        for state in RunState:
            self._runs.labels(state).set(counts[state])
        for action in actions:
            self._actions.labels(type(action).__name__.lower()).inc()
        self._fenced.set(fenced)
