"""Which runs serve requests, and how, on disk before they start: the next executor probes and drains them as this one.
A record that cannot be read counts as none: that run is neither probed nor drained.
"""

from collections.abc import Container, Set
from typing import Annotated

from msgspec import Meta, Struct

from weft.messages.nodes import Serve
from weftd.executor.files.home import Home
from weftd.executor.files.runfiles import RunFiles
from weftd.executor.machine.node import Refusal
from weftd.executor.machine.ports import PortRange, free_port
from weftd.executor.runs import RunKey, RuntimeUnavailableError

PORT_MAX = 65_535


class ServedRun(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a run serves requests. `port`: that the node chose for it; None: its runtime knows where it listens."""

    serve: Serve
    port: Annotated[int, Meta(ge=1, le=PORT_MAX)] | None = None


class ServedRuns:
    def __init__(self, home: Home) -> None:
        self._files = RunFiles(home, "serving", ServedRun)
        self._runs = self._files.all()

    @property
    def keys(self) -> Set[RunKey]:
        return self._runs.keys()

    def serve(self, key: RunKey) -> Serve | None:
        """How the run serves requests; None if it does not."""
        run = self._runs.get(key)
        return None if run is None else run.serve

    def port(self, key: RunKey) -> int | None:
        run = self._runs.get(key)
        return None if run is None else run.port

    def begin(self, key: RunKey, serve: Serve, ports: PortRange | None) -> int | None:
        """Store how a run will serve requests, and return a free port of `ports` for it; that of an earlier try if it
        is still free. Raises Refusal, RuntimeUnavailableError.
        """
        port = None
        if ports is not None:
            others = {run.port for other, run in self._runs.items() if other != key}
            port = self._free(key, ports, others)
        run = ServedRun(serve=serve, port=port)
        try:
            self._files.write(key, run)
        except OSError as error:
            raise RuntimeUnavailableError(f"cannot record how {key} serves requests: {error}") from error
        self._runs[key] = run
        return port

    def forget(self, key: RunKey) -> None:
        if self._runs.pop(key, None) is not None:
            self._files.remove(key)

    def forget_others(self, known: Container[RunKey]) -> None:
        for key in [key for key in self._runs if key not in known]:
            self.forget(key)

    def _free(self, key: RunKey, ports: PortRange, others: Container[int | None]) -> int:
        port = free_port(key, ports, others)
        if port is None:
            raise Refusal(f"no port is free for it among {ports.first} to {ports.last}")
        return port
