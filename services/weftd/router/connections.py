"""The sockets of admission: a connection for Caddy's questions, and the log that reports ends of requests."""

import asyncio
from typing import Protocol, cast

HEAD_BYTES_MAX = 1 << 20  # Caddy refuses larger ones


class Asked(Protocol):
    def ask(self, connection: "AdmissionConnection", head: bytes) -> None: ...

    def left(self, connection: "AdmissionConnection") -> None: ...

    def hear_end(self, line: bytes) -> None: ...


class AdmissionConnection(asyncio.Protocol):
    """One connection of Caddy: a question, its answer, the next question."""

    def __init__(self, admission: Asked) -> None:
        self.ticket = 0  # of the question that waits
        self.looking_up: asyncio.Task[object] | None = None
        self._admission = admission
        self._transport: asyncio.Transport | None = None
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._read += data
        end = self._read.find(b"\r\n\r\n")
        if end >= 0:
            head, self._read = self._read[:end], self._read[end + 4 :]
            self._admission.ask(self, head)
        elif len(self._read) > HEAD_BYTES_MAX:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._admission.left(self)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def answer(self, text: bytes) -> None:
        self.looking_up = None
        if self._transport is not None:
            self._transport.write(text)


class EndListener(asyncio.DatagramProtocol):
    """Caddy's log, a datagram a line."""

    def __init__(self, admission: Asked) -> None:
        self._admission = admission

    def datagram_received(self, data: bytes, addr: object) -> None:
        self._admission.hear_end(data)
