"""nats-py's client without its ways of hanging. All that reaches into its insides is in this file.

What each override undoes was measured with nats-py 2.16; look again when the lock file moves to another.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any

from nats import errors
from nats.aio.client import Client
from nats.protocol.parser import AUTHORIZATION_VIOLATION

from libs.sockets import notice_death

logger = logging.getLogger(__name__)

UNHEARD_SECONDS_MAX = 4  # bytes sent and not acknowledged for so long: the link is dead
FLUSH_SECONDS_MAX = 2
BETWEEN_FAULTS_SECONDS = 1.0


class SteadyClient(Client):
    """Reconnects for as long as it lives, and knows what the server has seen.

    `tls`, where set, is asked for each connection: a certificate that was renewed counts from the next one on.
    """

    def __init__(self, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        super().__init__()
        self._tls = tls

    @property
    def ssl_context(self) -> ssl.SSLContext:
        return self._tls() if self._tls is not None else super().ssl_context

    @property
    def server_and_number(self) -> tuple[str, int] | None:
        """The server's id, which lasts as long as its process, and its number for this connection."""
        if not self.is_connected:
            return None
        return str(self._server_info["server_id"]), int(self._server_info["client_id"])

    def _connect_command(self) -> bytes:
        """Theirs tells its password in plain text to whoever answers and asks for no TLS, whatever it was given."""
        writer = getattr(self._transport, "_io_writer", None)
        if self._tls is not None and (writer is None or writer.get_extra_info("ssl_object") is None):
            raise errors.Error("nats: the server offers no TLS, and we say nothing without it")
        return super()._connect_command()

    def abort(self) -> None:
        """Break the connection now, without a last word."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()

    async def flush(self, timeout: int = FLUSH_SECONDS_MAX) -> None:
        """A barrier: on return the server has seen all that was said before.

        Theirs sends its PING ahead of what still waits to be written.
        """
        await self._flush_pending(force_flush=True)
        await super().flush(timeout)

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        """Theirs swallows a cancellation, and with it the bound of whoever waits."""
        task = asyncio.current_task()
        cancelled_before = task.cancelling() if task is not None else 0
        flushed = await super()._flush_pending(force_flush)
        if task is not None and task.cancelling() > cancelled_before:
            raise asyncio.CancelledError
        return flushed

    async def close(self) -> None:
        """Theirs cannot be closed before it has tried to connect."""
        if self._flush_queue is not None:
            await super().close()

    async def _connect_to_server(self, s: Any) -> None:
        """Theirs drops the transport of a failed attempt unclosed, and lets a dead link live for 15 minutes."""
        self.abort()
        await super()._connect_to_server(s)
        writer = getattr(self._transport, "_io_writer", None)
        notice_death(writer.transport if writer is not None else None, seconds=UNHEARD_SECONDS_MAX)

    async def _process_err(self, err_msg: str) -> None:
        """Theirs closes for good when a password was changed under it; ours comes back with the new one."""
        if AUTHORIZATION_VIOLATION in err_msg and self.is_connected:
            await self._process_op_err(errors.AuthorizationError())
        else:
            await super()._process_err(err_msg)

    async def _attempt_reconnect(self) -> None:
        """Theirs waits without end for a dead peer to take the last bytes, and an unforeseen error ends it for good."""
        while True:
            self.abort()
            try:
                return await super()._attempt_reconnect()
            except Exception:
                logger.exception("reconnecting failed in an unforeseen way")
                await asyncio.sleep(BETWEEN_FAULTS_SECONDS)
