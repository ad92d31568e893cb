"""The node's runs as containers, ended through the engine; where it does not answer, by their processes on the host.

Containers live on when the engine is killed. Their processes are then found by the container's id in their control
group, so that a reused pid is never taken for one of them. Where the guard cannot see the host's
processes (in a container without `pid: host`), a run can be ended through the engine alone.
"""

import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress

from weftd.executor.files.home import Home
from weftd.executor.guard.engine import EngineSilentError, EngineSocket
from weftd.executor.guard.files import GuardOrders
from weftd.executor.guard.thinking import Action, Seen
from weftd.executor.runs import RunKey
from weftd.executor.runtime.docker.kept import guarded
from weftd.executor.runtime.docker.labels import grace_of, key_of, of_node, signal_number, stop_signal_of
from weftd.executor.thinking.core import Kill, Remove, Terminate

ENDED = ("exited", "dead", "removing")
SILENT_SECONDS = 5.0  # before an engine that did not answer is asked again


class Containers:
    def __init__(self, home: Home, orders: GuardOrders) -> None:
        self._home = home
        self._engine = EngineSocket(orders.engine)
        self._filters = of_node(node_id=orders.node_id, cluster=orders.cluster)
        self._silent_until = float("-inf")
        self._ids: dict[RunKey, str] = {}
        self._graces: dict[RunKey, float] = {}
        self._stop_signals: dict[RunKey, str] = {}

    @property
    def sure(self) -> bool:
        """True if the last look saw every run."""
        return not self._silent

    @property
    def _silent(self) -> bool:
        return time.monotonic() < self._silent_until

    def look(self) -> list[Seen]:
        """The runs by the engine's answer; without an answer, those with live processes."""
        for key, one in guarded(self._home).all().items():
            self._ids[key], self._graces[key] = one.container, one.grace
            self._stop_signals[key] = one.stop_signal
        if not self._silent:
            try:
                return self._listed()
            except EngineSilentError:
                self._give_up()
        living = processes(set(self._ids.values()))
        return [Seen(key=key, grace=self._graces[key]) for key, container in self._ids.items() if living[container]]

    def carry_out(self, action: Action) -> None:
        """Carry out an action; one that fails now is decided again."""
        container = self._ids[action.key]
        if not self._silent:
            try:
                self._ask(action, container)
            except EngineSilentError:
                self._give_up()
        if self._silent and not isinstance(action, Remove):
            asks = signal_number(self._stop_signals[action.key]) or signal.SIGTERM
            _signal(container, signal.SIGKILL if isinstance(action, Kill) else asks)

    def follow(self, keys: Collection[RunKey]) -> None:
        """The first process of a container follows what remains of a run by itself."""

    def known(self) -> set[str]:
        return {str(key) for key in self._ids}

    def _listed(self) -> list[Seen]:
        listed = self._engine.containers(self._filters)
        found: list[Seen] = []
        self._ids.clear()
        self._graces.clear()
        self._stop_signals.clear()
        for one in listed:
            key = key_of(one["Labels"])
            if key is not None:
                self._ids[key], self._graces[key] = one["Id"], grace_of(one["Labels"])
                self._stop_signals[key] = stop_signal_of(one["Labels"])
                if one["State"] not in ENDED:
                    found.append(Seen(key=key, grace=self._graces[key], begun=one["State"] != "created"))
        return found

    def _ask(self, action: Action, container: str) -> None:
        match action:
            case Terminate():
                self._engine.kill(container, self._stop_signals[action.key])
            case Kill():
                self._engine.kill(container, "SIGKILL")
            case Remove():
                self._engine.remove(container)

    def _give_up(self) -> None:
        self._silent_until = time.monotonic() + SILENT_SECONDS


def processes(containers: set[str]) -> dict[str, dict[int, int]]:
    """The visible processes of each of these containers: pid → its parent's pid."""
    found: dict[str, dict[int, int]] = {container: {} for container in containers}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            for container in containers & _containers_of(name):
                found[container][int(name)] = _parent(name)
    return found


def _containers_of(pid: str) -> set[str]:
    """All parts of the process's control groups that may be the id of a container."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
            words = file.read().replace("/", " ").replace("-", " ").replace(".", " ").replace(":", " ").split()
    except OSError:  # Gone.
        return set()
    return {word for word in words if len(word) == 64}


def _parent(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _signal(container: str, number: int) -> None:
    """The stop signal to its first process, which passes it on; SIGKILL to all of them."""
    living = processes({container})[container]
    for pid, parent in living.items():
        if number == signal.SIGKILL or parent not in living:
            _signal_one(pid, container, number)


def _signal_one(pid: int, container: str, number: int) -> None:
    """Signal one process; its container is checked once more when the pid can no longer be reused."""
    with suppress(ProcessLookupError, PermissionError):
        pidfd = os.pidfd_open(pid)
        try:
            if container in _containers_of(str(pid)):
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)
