"""Which runs serve requests, and how, on disk before they start: the next executor probes and drains them as this one.

serving/<job>-<epoch>-<rank>   in the home, where no job in a container reaches it; removed with the run
"""

import os
from collections.abc import Container, Set
from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from weft.messages.nodes import Serve
from weftd.executor.home import Home
from weftd.executor.node import Refusal
from weftd.executor.ports import PortRange, free_port
from weftd.executor.regular import read_small
from weftd.executor.runs import RunKey, RuntimeUnavailableError

RECORD_BYTES_MAX = 64 * 1024
PORT_MAX = 65_535


class ServedRun(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a run serves requests. `port`: that the node chose for it; None: its runtime knows where it listens."""

    key: RunKey
    serve: Serve
    port: Annotated[int, Meta(ge=1, le=PORT_MAX)] | None = None


class ServedRuns:
    """The records of this home. A record that cannot be read counts as none: that run is neither probed nor drained."""

    def __init__(self, home: Home) -> None:
        self._folder = f"{home.root}/serving"
        self._runs: dict[RunKey, ServedRun] = {}
        with suppress(FileNotFoundError):
            for name in os.listdir(self._folder):
                run = _read(f"{self._folder}/{name}", name)
                if run is not None:
                    self._runs[run.key] = run

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
            others = {run.port for run in self._runs.values() if run.key != key}
            port = self._free(key, ports, others)
        run = ServedRun(key=key, serve=serve, port=port)
        try:
            self._write(run)
        except OSError as error:
            raise RuntimeUnavailableError(f"cannot keep how {key} serves requests: {error}") from error
        self._runs[key] = run
        return port

    def forget(self, key: RunKey) -> None:
        if self._runs.pop(key, None) is not None:
            with suppress(FileNotFoundError):
                os.unlink(f"{self._folder}/{key}")

    def forget_others(self, known: Container[RunKey]) -> None:
        for key in [key for key in self._runs if key not in known]:
            self.forget(key)

    def _free(self, key: RunKey, ports: PortRange, others: Container[int | None]) -> int:
        port = free_port(key, ports, others)
        if port is None:
            raise Refusal(f"no port is free for it among {ports.first} to {ports.last}")
        return port

    def _write(self, run: ServedRun) -> None:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        new = f"{self._folder}/.{run.key}.new"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, msgspec.json.encode(run))
        finally:
            os.close(fd)
        os.replace(new, f"{self._folder}/{run.key}")


def _read(path: str, name: str) -> ServedRun | None:
    found = read_small(path, bytes_max=RECORD_BYTES_MAX)
    try:
        run = None if found is None else msgspec.json.decode(found.data, type=ServedRun)
    except msgspec.DecodeError:
        return None
    return run if run is not None and str(run.key) == name else None
