"""Reads the metrics of engines: GET /metrics at each replica of a service that serves a model."""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from weftd.router.thinking.backends import Backend
from weftd.router.thinking.engine_metrics import NOTHING, TEXT_BYTES_MAX, engine_load
from weftd.router.thinking.service_queue import ServiceQueue

AT_ONCE_MAX = 16
ANSWER_SECONDS_MAX = 2.0
AGAIN_SECONDS = 2.0  # one that tells something is asked again
SILENT_SECONDS = 60.0  # one that tells nothing


class EngineReader:
    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock

    async def read(self, queues: Iterable[ServiceQueue]) -> None:
        """Ask each replica whose turn it is, a few at once."""
        now = self._clock()
        due = [
            backend
            for queue in queues
            if queue.service.models and not queue.service.h2c
            for backend in queue.backends.values()
            if backend.replica.takes and not backend.gone and now >= backend.engine_at
        ]
        for begin in range(0, len(due), AT_ONCE_MAX):
            async with asyncio.TaskGroup() as tasks:
                for backend in due[begin : begin + AT_ONCE_MAX]:
                    tasks.create_task(self._one(backend))

    async def _one(self, backend: Backend) -> None:
        text = b""
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                text = await _metrics(backend.replica.address)
        backend.engine = engine_load(text)
        backend.engine_at = self._clock() + (SILENT_SECONDS if backend.engine == NOTHING else AGAIN_SECONDS)


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
