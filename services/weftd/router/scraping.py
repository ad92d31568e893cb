"""Reads the metrics of engines: GET /metrics at each replica of a service that serves a model."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from weftd.router.thinking.backends import Backend
from weftd.router.thinking.engine_metrics import NOTHING, TEXT_BYTES_MAX, engine_load
from weftd.router.thinking.service_queue import ServiceQueue

AT_ONCE_MAX = 64
OF_SERVICE_MAX = 16  # at once: one whose replicas do not answer keeps no other waiting
ANSWER_SECONDS_MAX = 2.0
AGAIN_SECONDS = 5.0  # one that tells something is asked again
SILENT_SECONDS = 60.0  # one that tells nothing


class EngineReader:
    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock

    async def read(self, queues: Iterable[ServiceQueue]) -> None:
        """Ask the replicas whose turn it is, those that have waited longest for it first."""
        now, due = self._clock(), list[Backend]()
        for queue in queues:
            if queue.service.models and not queue.service.h2c:
                asked = (one for one in queue.backends.values() if one.replica.takes and not one.gone)
                turns = sorted((one for one in asked if now >= one.engine_at), key=_turn)
                due += turns[:OF_SERVICE_MAX]
        async with asyncio.TaskGroup() as tasks:
            for backend in sorted(due, key=_turn)[:AT_ONCE_MAX]:
                tasks.create_task(self._one(backend, now))

    async def _one(self, backend: Backend, now: float) -> None:
        text, before = b"", backend.engine
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                text = await _metrics(backend.replica.address)
        backend.engine = engine_load(text)
        is_silent = backend.engine == before == NOTHING  # one that told before may be late once
        # A little less than the time between two rounds, so that none is left out by a hair's breadth.
        backend.engine_at = now + (SILENT_SECONDS if is_silent else 0.75 * AGAIN_SECONDS)


def _turn(backend: Backend) -> float:
    return backend.engine_at


async def _metrics(address: str) -> bytes:
    """The body of the answer; empty if there is none. By HTTP/1.0, whose answers have no chunks."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), limit=64 << 10)
    try:
        writer.write(f"GET /metrics HTTP/1.0\r\nHost: {address}\r\nAccept: text/plain\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            return b""
        text = bytearray()
        while len(text) <= TEXT_BYTES_MAX and (piece := await reader.read(64 << 10)):
            text += piece
        return bytes(text)
    finally:
        writer.transport.abort()
