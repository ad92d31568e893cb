"""The listening socket: limits of connections, in total and by source, and of their time without a request.

A connection is a stranger's until it has brought a known token. Strangers may not stay for long, and the oldest is
closed if there is no room left, so that connections without a token never keep out those with one.
"""

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from aiohttp import web

from weft.messages.problems import PROBLEM, problem
from weft.sockets import notice_death
from weftd.gateway.limits.access import source_of

FIRST_REQUEST_SECONDS_MAX = 10.0
STRANGER_SECONDS_MAX = 5.0  # for a stranger's next request
IDLE_SECONDS_MAX = 75.0
TAKEN_SECONDS_MAX = 30.0  # for a reader to read the bytes that wait in our memory
HANDSHAKE_SECONDS_MAX = 10.0
UNHEARD_SECONDS_MAX = 30  # the client has vanished if sent bytes are not acknowledged for this long
LEAVE_SECONDS = 1.0  # for the rest of a refused body, so that its sender reads the refusal
BACKLOG = 1024
REFUSED_AT_ONCE_MAX = 256  # connections that get the refusal; more are closed without an answer

BUSY = problem(503, "", "too many connections are open; ask again later")
BUSY_ANSWER = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: %s\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (PROBLEM.encode(), len(BUSY), BUSY)
)


class HttpConnection(web.RequestHandler):
    """One connection. Bytes that are no HTTP are answered in the shape of all errors."""

    _left: "Callable[[HttpConnection], None] | None" = None
    _known = False
    _silent: asyncio.TimerHandle | None = None  # until its next request
    _untaken: asyncio.TimerHandle | None = None
    stream: "asyncio.Task[object] | None" = None  # serves an answer that stays open; cancelled with the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        notice_death(transport, seconds=UNHEARD_SECONDS_MAX)
        self._wait_for_a_request(FIRST_REQUEST_SECONDS_MAX)

    def leaving(self, left: "Callable[[HttpConnection], None]") -> None:
        """`left` is called once the connection is lost."""
        self._left = left

    def connection_lost(self, exc: BaseException | None) -> None:
        self.asked()
        if self._left is not None:
            self._left(self)
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

    @property
    def is_idle_stranger(self) -> bool:
        return not self._known and self._silent is not None

    def asked(self) -> None:
        """A request has come."""
        if self._silent is not None:
            self._silent.cancel()
            self._silent = None

    def let_in(self) -> None:
        """Its request has a known token."""
        self._known = True

    def answered(self) -> None:
        """Its request was answered."""
        if not self._known and self.transport is not None:
            self._wait_for_a_request(STRANGER_SECONDS_MAX)

    def _wait_for_a_request(self, seconds: float) -> None:
        self._silent = asyncio.get_running_loop().call_later(seconds, self._nothing_asked)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if status >= 500:
            super().handle_error(request, status, exc, None)  # for its log line
        reason = "not a request that can be read" if status < 500 else "an error in the gateway"
        response = web.Response(body=problem(status, "", reason), status=status, content_type=PROBLEM)
        response.force_close()
        return response

    def _nothing_asked(self) -> None:
        if self.transport is not None and self.transport.get_write_buffer_size():
            self._wait_for_a_request(STRANGER_SECONDS_MAX)
        else:
            self.force_close()

    def _taken(self) -> None:
        if self._untaken is not None:
            self._untaken.cancel()
            self._untaken = None

    def _nothing_taken(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Busy(asyncio.Protocol):
    """Answers that there are too many connections, and closes once the client has read that, or soon."""

    def __init__(self, left: Callable[["Busy"], None]) -> None:
        self._left = left
        self._transport: asyncio.WriteTransport | None = None
        self._closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)
        loop = asyncio.get_running_loop()
        loop.call_soon(self._say)  # not here: the transport is not ready before this returns
        self._closing = loop.call_later(LEAVE_SECONDS, self._transport.abort)

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._closing is not None:
            self._closing.cancel()
        self._left(self)

    def _say(self) -> None:
        assert self._transport is not None
        if self._transport.is_closing():
            return
        self._transport.write(BUSY_ANSWER)
        if self._transport.can_write_eof():
            self._transport.write_eof()  # its bytes are read and dropped meanwhile: else it would get a reset


class Connection(asyncio.Protocol):
    """The first protocol of every connection. It continues as an `HttpConnection` or as `Busy`, or is closed."""

    def __init__(self, limiter: "ConnectionLimiter") -> None:
        self._limiter = limiter

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        socket = cast("asyncio.Transport", transport)  # uvloop's is one, without the type
        protocol = self._limiter.protocol_for(source_of(peer[0] if isinstance(peer, tuple) else ""))
        if protocol is None:
            asyncio.get_running_loop().call_soon(socket.abort)
            return
        socket.set_protocol(protocol)
        protocol.connection_made(transport)


class ConnectionLimiter:
    """All connections, counted by the address that they come from."""

    def __init__(self, make: Callable[[], HttpConnection], *, connections_max: int, per_address_max: int) -> None:
        self._make = make
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._open: dict[HttpConnection, str] = {}  # the oldest first
        self._addresses: Counter[str] = Counter()
        self._refused: set[Busy] = set()

    def protocol_for(self, address: str) -> HttpConnection | Busy | None:
        """None: the connection is closed without an answer."""
        if self._addresses[address] < self._per_address_max and self._has_room():
            connection = self._make()
            connection.leaving(self._left)
            self._open[connection] = address
            self._addresses[address] += 1
            return connection
        if len(self._refused) >= REFUSED_AT_ONCE_MAX:
            return None
        busy = Busy(self._refused.discard)
        self._refused.add(busy)
        return busy

    def _has_room(self) -> bool:
        """True if there is room, if necessary after closing the oldest stranger without a request."""
        if len(self._open) < self._connections_max:
            return True
        stranger = next((connection for connection in self._open if connection.is_idle_stranger), None)
        if stranger is None:
            return False
        self._left(stranger)
        stranger.force_close()
        return True

    def _left(self, connection: HttpConnection) -> None:
        address = self._open.pop(connection, None)
        if address is None:
            return
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]


@asynccontextmanager
async def listening(
    app: web.Application,
    *,
    host: str,
    port: int,
    connections_max: int,
    per_address_max: int,
    stop_seconds: float = 5.0,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """Serve until the block ends, then finish the requests in progress. Yields the port."""
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

    limiter = ConnectionLimiter(
        lambda: HttpConnection(server, loop=loop, **options),
        connections_max=connections_max,
        per_address_max=per_address_max,
    )
    handshake = None if tls is None else HANDSHAKE_SECONDS_MAX
    listener = await loop.create_server(
        lambda: Connection(limiter),
        host,
        port,
        backlog=BACKLOG,
        ssl=tls,
        ssl_handshake_timeout=handshake,
        ssl_shutdown_timeout=handshake,
    )
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        await asyncio.shield(runner.cleanup())
