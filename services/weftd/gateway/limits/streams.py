"""Answers that stay open: their limit, and their end when the gateway stops."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from weftd.gateway.errors import RejectedError
from weftd.gateway.limits.concurrency import ConcurrencyLimit
from weftd.gateway.limits.connections import HttpConnection

WRITE_SECONDS_MAX = 30.0
CLOSE_AGAIN_SECONDS = 0.5


class Streams:
    def __init__(self, most: int, most_per_tenant: int) -> None:
        self._limit = ConcurrencyLimit("streams", at_once=most, per_tenant=most_per_tenant, wait_seconds=0)
        self._open: dict[asyncio.Task[object], web.Request] = {}
        self._closing = False

    @property
    def count(self) -> int:
        return len(self._open)

    @property
    def closing(self) -> bool:
        return self._closing

    @asynccontextmanager
    async def one(self, tenant: str, request: web.Request) -> AsyncIterator[None]:
        """Count the calling task as one stream. If it is cut, its reader can see that the answer is incomplete."""
        if self._closing:
            raise RejectedError(503, "", "this gateway is stopping")
        turn = await self._limit.take(tenant)
        task = asyncio.current_task()
        assert task is not None, "a stream is served by a task"
        self._open[task] = request
        connection = request.protocol
        if isinstance(connection, HttpConnection):
            connection.stream = task
        try:
            yield
        except asyncio.CancelledError:
            if request.transport is not None:
                request.transport.abort()
            raise
        finally:
            if isinstance(connection, HttpConnection):
                connection.stream = None
            del self._open[task]
            turn.end()

    async def end_unless(self, may_go_on: Callable[[web.Request], Awaitable[bool]]) -> None:
        """Cut the streams whose request would no longer be admitted."""
        for task, request in list(self._open.items()):
            if not await may_go_on(request):
                task.cancel()

    async def close(self) -> None:
        """Return when all streams have ended. A stream that missed its cancellation is cancelled again."""
        self._closing = True
        while serving := list(self._open):
            for task in serving:
                task.cancel()
            await asyncio.wait(serving, timeout=CLOSE_AGAIN_SECONDS)


async def write(response: web.StreamResponse, data: bytes) -> None:
    """Raises ConnectionError if the reader has gone, or reads nothing for WRITE_SECONDS_MAX."""
    try:
        async with asyncio.timeout(WRITE_SECONDS_MAX):
            await response.write(data)
    except TimeoutError:
        raise ConnectionAbortedError("the reader reads nothing") from None


def gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()
