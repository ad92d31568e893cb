"""Receivers of webhooks on this machine: one that takes what is posted, and ones that do it harm."""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from msgspec import Struct, field

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Receiver(Struct):
    """Answers with the next of `statuses`, then with 204. `bodies` and `heads` of all requests in order."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    heads: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)

    @property
    def events(self) -> list[Any]:
        return [msgspec.json.decode(body) for body in self.bodies]

    def is_signed(self, place: int, secret: str) -> bool:
        """As Standard Webhooks has it, written here once more."""
        head, body = self.heads[place], self.bodies[place]
        signed = f"{head['webhook-id']}.{head['webhook-timestamp']}.".encode() + body
        digest = hmac.new(base64.b64decode(secret.partition("_")[2]), signed, hashlib.sha256).digest()
        return hmac.compare_digest(head["webhook-signature"], f"v1,{base64.b64encode(digest).decode()}")

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = dict(_pair(line) for line in head[1:] if line)
        self.targets.append(head[0])
        self.bodies.append(await reader.readexactly(int(fields["content-length"])))
        self.heads.append(fields)
        status = self.statuses.pop(0) if self.statuses else 204
        more = "Location: http://127.0.0.1:1/\r\n" if 300 <= status < 400 else ""
        writer.write(f"HTTP/1.1 {status} x\r\n{more}Content-Length: 0\r\n\r\n".encode())
        await writer.drain()


def _pair(line: str) -> tuple[str, str]:
    name, _, value = line.partition(": ")
    return name.lower(), value


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(600)


async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\xff" * 2000 + b"\r\n")
    await writer.drain()


async def endless_line(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 " * 10_000)
        await writer.drain()


async def endless_hints(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 103 x\r\n\r\n" * 100)
        await writer.drain()


async def huge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 x\r\n")
    while True:
        writer.write(b"X: " + b"y" * 65_000 + b"\r\n")
        await writer.drain()


async def close_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


@asynccontextmanager
async def serving(behaviour: Behaviour) -> AsyncIterator[str]:
    """Its URL, for as long as the block lasts."""
    working: set[asyncio.Task[None]] = set()

    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        working.add(task)
        try:
            with suppress(OSError, EOFError, asyncio.CancelledError):
                await behaviour(reader, writer)
        finally:
            working.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(work, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook?a=1"
    finally:
        server.close()
        for task in list(working):
            task.cancel()


@asynccontextmanager
async def receiving(*statuses: int) -> AsyncIterator[Receiver]:
    receiver = Receiver(statuses=list(statuses))
    async with serving(receiver.take) as url:
        receiver.url = url
        yield receiver
