"""The part of NATS' protocol that emulated nodes need: connect, subscribe, publish with a reply subject, be told.

A client library costs more processor time for each message than the scheduler does, and thousands of nodes share the
machine with the services that are measured.
"""

import asyncio
import json
from collections.abc import Callable
from urllib.parse import urlsplit


class Wire(asyncio.Protocol):
    """One connection. `hear` gets the number of the subscription and the subject and payload of each message."""

    def __init__(self, hear: Callable[[int, str, bytes], None]) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.lost = asyncio.Event()
        self._hear = hear
        self._rest = b""
        self._out: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._greeted = asyncio.Event()

    @classmethod
    async def connect(cls, url: str, hear: Callable[[int, str, bytes], None], *, name: str) -> "Wire":
        parts = urlsplit(url)
        _, wire = await asyncio.get_running_loop().create_connection(lambda: cls(hear), parts.hostname, parts.port)
        async with asyncio.timeout(10):
            await wire._greeted.wait()
        wire._send(b"CONNECT %s\r\n" % json.dumps({"verbose": False, "name": name, "lang": "bench"}).encode())
        return wire

    def subscribe(self, subject: str, number: int) -> None:
        self._send(f"SUB {subject} {number}\r\n".encode())

    def publish(self, subject: str, payload: bytes, *, reply: str = "") -> None:
        self._send(f"PUB {subject} {reply} {len(payload)}\r\n".encode() + payload + b"\r\n")

    def _send(self, data: bytes) -> None:
        """What is sent in one turn of the loop goes out in one write."""
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        assert self._transport is not None
        data, self._out = b"".join(self._out), []
        self.bytes_out += len(data)
        self._transport.write(data)

    # of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()

    def data_received(self, data: bytes) -> None:
        self.bytes_in += len(data)
        data, at = self._rest + data, 0
        while (end := data.find(b"\r\n", at)) >= 0:
            line = data[at:end]
            if line.startswith(b"MSG "):
                fields = line.split(b" ")
                payload_at, size = end + 2, int(fields[-1])
                if len(data) < payload_at + size + 2:
                    break
                at = payload_at + size + 2
                self._hear(int(fields[2]), fields[1].decode(), data[payload_at : payload_at + size])
                continue
            at = end + 2
            if line == b"PING":
                self._send(b"PONG\r\n")
            elif line.startswith(b"INFO "):
                self._greeted.set()
            elif line.startswith(b"-ERR"):
                raise ConnectionError(line.decode())
        self._rest = data[at:]
