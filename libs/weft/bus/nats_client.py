"""nats-py's client without its ways of hanging. This file alone overrides its private methods.

Each override was measured against nats-py 2.16; check them again when the lock file moves to another version.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from nats import errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.protocol.parser import AUTHORIZATION_VIOLATION

from weft.names import has_address
from weft.sockets import notice_death

logger = logging.getLogger(__name__)

UNHEARD_SECONDS_MAX = 4  # the link is dead if sent bytes are not acknowledged for this long
FLUSH_SECONDS_MAX = 2
READ_BYTES = 256 << 10  # at once; twice as many wait, and then the server does
BETWEEN_FAULTS_SECONDS = 1.0


class SteadyTransport(TcpTransport):
    """Raises OSError from writes on a closed connection, as nats-py expects. uvloop raises RuntimeError there."""

    async def read(self, buffer_size: int) -> bytes:
        """nats-py asks for 32 KiB at a time, and goes once through its parser for each."""
        return bytes(await super().read(max(buffer_size, READ_BYTES)))

    def write(self, payload: bytes) -> None:
        self.writelines([payload])

    def writelines(self, payload: list[bytes]) -> None:
        try:
            super().writelines(payload)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise ConnectionResetError(str(error)) from error

    @property
    def is_closing(self) -> bool:
        return self._io_writer is None or bool(self._io_writer.is_closing())


class SteadyClient(Client):
    """A client that reconnects for as long as it lives, and knows which messages the server has seen.

    `tls`, where set, is called for each connection: a renewed certificate takes effect with the next one.
    """

    def __init__(self, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        super().__init__()
        self._tls = tls

    @property
    def ssl_context(self) -> ssl.SSLContext:
        return self._tls() if self._tls is not None else super().ssl_context

    @property
    def server_and_number(self) -> tuple[str, int] | None:
        """The server's id, which changes with its process, and its number for this connection."""
        if not self.is_connected:
            return None
        return str(self._server_info["server_id"]), int(self._server_info["client_id"])

    def _connect_command(self) -> bytes:
        """nats-py sends its password in plain text to a server that offers no TLS, even where TLS was demanded."""
        writer = getattr(self._transport, "_io_writer", None)
        if self._tls is not None and (writer is None or writer.get_extra_info("ssl_object") is None):
            raise errors.Error("nats: the server offers no TLS, and we say nothing without it")
        return super()._connect_command()

    def abort(self) -> None:
        """Break the connection now, without sending what waits."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            with suppress(AttributeError):  # of the asyncio of Python 3.11.2, where TLS is closed already
                writer.transport.abort()

    async def flush(self, timeout: int = FLUSH_SECONDS_MAX) -> None:
        """Wait until the server has received everything published before.

        nats-py sends its PING ahead of the bytes that still wait to be written, and where one of its loops has ended it
        sends no PING at all.
        """
        await self._flush_pending(force_flush=True)
        if not self.is_connected or self._flusher_task is None or self._flusher_task.done():
            raise errors.StaleConnectionError
        await super().flush(timeout)

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        """nats-py swallows a cancellation, and with it the caller's time limit. A connection that broke, which its
        reader has not noticed yet, makes a subscription or a publication fail there; here the client reconnects."""
        task = asyncio.current_task()
        cancelled_before = task.cancelling() if task is not None else 0
        try:
            flushed = await super()._flush_pending(force_flush)
        except OSError as error:
            await self._reconnect_after(error)
            return None
        if task is not None and task.cancelling() > cancelled_before:
            raise asyncio.CancelledError
        return flushed

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        try:
            await super()._send_ping(future)
        except OSError as error:
            await self._reconnect_after(error)

    async def _reconnect_after(self, error: OSError) -> None:
        if asyncio.current_task() is self._reconnection_task:
            raise error  # nats-py's reconnecting task catches it and tries the next server
        await self._process_op_err(error)

    async def close(self) -> None:
        """nats-py's close fails before the first attempt to connect, and on a closed connection with unsent bytes."""
        if self._flush_queue is None:
            return
        if isinstance(self._transport, SteadyTransport) and self._transport.is_closing:
            self._pending, self._pending_data_size = [], 0
        await super().close()

    async def _connect_to_server(self, s: Any) -> None:
        """nats-py leaves the transport of a failed attempt open, and a dead link alive for 15 minutes."""
        self.abort()
        s.last_attempt = time.monotonic()
        async with asyncio.timeout(self.options["connect_timeout"]):
            await has_address(s.uri.hostname)
        self._transport = SteadyTransport()  # type: ignore[no-untyped-call]
        await self._transport.connect(s.uri, READ_BYTES, self.options["connect_timeout"])
        writer = self._transport._io_writer
        notice_death(writer.transport if writer is not None else None, seconds=UNHEARD_SECONDS_MAX)

    def forget(self, subscription: Subscription) -> None:
        """Listen no more, also if the server could not be told: the next connection begins without this one.

        nats-py keeps a subscription whose UNSUB was not confirmed, and sends it again when it reconnects.
        """
        self._remove_sub(subscription._id)
        subscription._stop_processing()

    async def _send_subscribe(self, sub: Subscription) -> None:
        """nats-py lets the SUB wait for the next connection, which begins with all subscriptions anyway: one that is
        given up before would stay at the server, and each message would come twice."""
        if self.is_connected:
            await super()._send_subscribe(sub)

    def _drop_waiting_subs(self) -> None:
        """The next connection begins with the subscriptions of that moment."""
        self._pending = [command for command in self._pending if not command.startswith((b"SUB ", b"UNSUB "))]
        self._pending_data_size = sum(map(len, self._pending))

    async def _process_err(self, err_msg: str) -> None:
        """nats-py closes for good when its password was changed; ours reconnects with the new one."""
        if AUTHORIZATION_VIOLATION in err_msg and self.is_connected:
            await self._process_op_err(errors.AuthorizationError())
        else:
            await super()._process_err(err_msg)

    async def _attempt_reconnect(self) -> None:
        """nats-py waits for ever for a dead peer to take the last bytes, and an unforeseen error ends it for good."""
        while True:
            self.abort()
            self._drop_waiting_subs()
            try:
                return await super()._attempt_reconnect()
            except Exception:
                logger.exception("reconnecting failed in an unforeseen way")
                await asyncio.sleep(BETWEEN_FAULTS_SECONDS)
