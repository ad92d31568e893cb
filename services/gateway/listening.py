"""The listening socket: how many connections there may be, and how long one may stay without asking anything."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from libs.service.sockets import notice_death
from services.gateway.errors import error_body

FIRST_REQUEST_SECONDS_MAX = 15.0
IDLE_SECONDS_MAX = 75.0
TAKEN_SECONDS_MAX = 30.0  # for a reader to take what was written to it and waits in our memory
HANDSHAKE_SECONDS_MAX = 10.0
UNHEARD_SECONDS_MAX = 30  # bytes sent and not acknowledged for so long: whoever asked has vanished
LEAVE_SECONDS = 1.0  # for the rest of a body that was refused: so that its sender reads the refusal
BACKLOG = 1024

BUSY = error_body(503, "", "too many connections are open; ask again later")
BUSY_ANSWER = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(BUSY), BUSY)
)


class Connection(web.RequestHandler):
    """One connection. What is not HTTP is answered in the shape of all errors."""

    _first: asyncio.TimerHandle | None = None
    _untaken: asyncio.TimerHandle | None = None
    stream: "asyncio.Task[object] | None" = None  # what serves an answer that stays open: for nobody once we are lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        notice_death(transport, seconds=UNHEARD_SECONDS_MAX)
        self._first = asyncio.get_running_loop().call_later(FIRST_REQUEST_SECONDS_MAX, self._nothing_asked)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.asked()
        self._taken()
        super().connection_lost(exc)
        if self.stream is not None:
            self.stream.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._untaken = asyncio.get_running_loop().call_later(TAKEN_SECONDS_MAX, self._nothing_taken)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._taken()

    def asked(self) -> None:
        if self._first is not None:
            self._first.cancel()
            self._first = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if status >= 500:
            super().handle_error(request, status, exc, None)  # for its log line
        reason = "not a request that can be read" if status < 500 else "a mistake of the gateway"
        response = web.Response(body=error_body(status, "", reason), status=status, content_type="application/json")
        response.force_close()
        return response

    def _nothing_asked(self) -> None:
        self.force_close()

    def _taken(self) -> None:
        if self._untaken is not None:
            self._untaken.cancel()
            self._untaken = None

    def _nothing_taken(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Busy(asyncio.Protocol):
    """Says that there are too many, and closes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(BUSY_ANSWER)
        transport.close()


@asynccontextmanager
async def listening(
    app: web.Application,
    *,
    host: str,
    port: int,
    connections_max: int,
    stop_seconds: float = 5.0,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """Serve until the block ends; yields the port. Then nothing new is taken, and what is in hand is finished."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=stop_seconds)
    await runner.setup()
    server = runner.server
    assert server is not None, "a runner that is set up has a server"
    options: dict[str, Any] = {
        "access_log": None,
        "auto_decompress": False,
        "keepalive_timeout": IDLE_SECONDS_MAX,
        "lingering_time": LEAVE_SECONDS,
    }
    loop = asyncio.get_running_loop()

    def accept() -> asyncio.Protocol:
        if len(server.connections) >= connections_max:
            return Busy()
        return Connection(server, loop=loop, **options)

    handshake = None if tls is None else HANDSHAKE_SECONDS_MAX
    listener = await loop.create_server(
        accept, host, port, backlog=BACKLOG, ssl=tls, ssl_handshake_timeout=handshake, ssl_shutdown_timeout=handshake
    )
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        await asyncio.shield(runner.cleanup())
