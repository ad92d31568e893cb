"""HTTP requests over the streams of asyncio.

aiohttp opens WebSockets alone. Its import takes 150 ms of CPU, more than all that `weft ps` does, so a command without
a session in a run does without it.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

CONNECTIONS_MAX = 100
ASKED_FIRST_BYTES = 65536  # a larger body is sent once the server has agreed to take it
PIECE_BYTES = 65536
IDLE_SECONDS_MAX = 15.0  # a connection that was idle for longer may be gone without a word, behind a router
_ENDINGS = (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError)


class Reply(NamedTuple):
    """The names of the headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Exchange:
    """A request. `once`: it may have an effect each time, so that it is sent once. `is_sent`: bytes of it may have
    reached the server."""

    def __init__(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        once: bool = False,
    ) -> None:
        self.method, self.path, self.query = method, path, query or {}
        self.headers, self.body, self.once = headers or {}, body, once
        self.is_sent = False

    @property
    def asks_first(self) -> bool:
        return len(self.body or b"") > ASKED_FIRST_BYTES


class Stream:
    """An answer that is read as it comes. The names of the headers are in lower case."""

    def __init__(self, reader: asyncio.StreamReader, status: int, headers: dict[str, str], silence: float) -> None:
        """`silence`: the longest time between two pieces, in seconds."""
        self.status, self.headers = status, headers
        self._reader, self._silence = reader, silence

    @property
    def length(self) -> int | None:
        """The size of the body in bytes, if the server says it before."""
        return None if _is_chunked(self.headers) else _length(self.headers)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body. Raises OSError; TimeoutError, which is one, after a silence."""
        pieces = _pieces(self._reader, self.status, self.headers)
        while True:
            with _endings():
                async with asyncio.timeout(self._silence):
                    piece = await anext(pieces, None)
            if piece is None:
                return
            yield piece

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self.pieces()])


class Connection(NamedTuple):
    """`used_at`: the time of the loop when its last reply was complete; 0 before the first."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    used_at: float = 0.0

    def close(self) -> None:
        self.writer.transport.abort()


class Requests:
    """Requests to one server, over connections that are kept open."""

    def __init__(self, url: str, headers: Mapping[str, str], tls: Callable[[], ssl.SSLContext | None]) -> None:
        """`tls`: the context for an address with https; it is called once a connection is opened."""
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        self._base, self._headers, self._tls = parts.path, {"Host": parts.netloc.rpartition("@")[2], **headers}, tls
        self._is_secure = parts.scheme == "https"
        self._idle: list[Connection] = []
        self._room, self._room_for_streams = asyncio.Semaphore(CONNECTIONS_MAX), asyncio.Semaphore(CONNECTIONS_MAX)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def send(self, exchange: Exchange, *, connect_seconds: float) -> Reply:
        """Raises OSError; ssl.SSLCertVerificationError, which is one, if the server cannot prove its name."""
        head = self._head(exchange)
        async with self._room:
            while not exchange.once and (kept := self._kept()) is not None:
                with suppress(ConnectionError):  # the server closed it meanwhile: the request may be sent again
                    return await self._answer(kept, exchange, head)
            return await self._answer(await self._connection(connect_seconds), exchange, head)

    @asynccontextmanager
    async def stream(
        self, exchange: Exchange, *, connect_seconds: float, silence_seconds: float
    ) -> AsyncIterator[Stream]:
        """The answer to a request, on a connection of its own. Raises OSError, as `send` does."""
        head = self._head(exchange)
        async with self._room_for_streams:
            connection = await self._connection(connect_seconds)
            try:
                with _endings():
                    async with asyncio.timeout(silence_seconds):
                        status, headers = await _begun(connection, exchange, head)
                yield Stream(connection.reader, status, headers, silence_seconds)
            finally:
                connection.close()

    def _head(self, exchange: Exchange) -> bytes:
        asked = f"?{urlencode(exchange.query, safe='*,:/')}" if exchange.query else ""
        lines = [f"{exchange.method} {self._base}{exchange.path}{asked} HTTP/1.1"]
        headers = {"Accept": "*/*", **self._headers, **exchange.headers}
        if exchange.method != "GET":
            headers["Content-Length"] = str(len(exchange.body or b""))
        if exchange.asks_first:
            headers["Expect"] = "100-continue"
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if any(not line.isprintable() for line in lines):
            raise ValueError("a header has a character that no header may have")
        return "\r\n".join([*lines, "", ""]).encode()

    def _kept(self) -> Connection | None:
        oldest = asyncio.get_running_loop().time() - IDLE_SECONDS_MAX
        while self._idle:
            kept = self._idle.pop()
            if kept.used_at >= oldest and not kept.reader.at_eof() and not kept.writer.is_closing():
                return kept
            kept.close()
        return None

    async def _connection(self, seconds: float) -> Connection:
        """Try each address of the host, and raise the error of the last."""
        tls = self._tls() if self._is_secure else None
        loop, error = asyncio.get_running_loop(), OSError(f"{self._host} has no address")
        host = self._host.encode() if self._host.isascii() else self._host  # the codec of IDNA is slow to import
        for *_, address in await loop.getaddrinfo(host, self._port, type=socket.SOCK_STREAM):
            try:
                async with asyncio.timeout(seconds):
                    name = self._host if tls else None
                    return Connection(
                        *await asyncio.open_connection(str(address[0]), self._port, ssl=tls, server_hostname=name)
                    )
            except ssl.SSLError:
                raise
            except TimeoutError:
                error = TimeoutError(f"no connection within {seconds:g} s")
            except OSError as refused:
                error = refused
        raise error

    async def _answer(self, connection: Connection, exchange: Exchange, head: bytes) -> Reply:
        stays = False
        try:
            with _endings():
                status, headers = await _begun(connection, exchange, head)
                body = b"".join([piece async for piece in _pieces(connection.reader, status, headers)])
            stays = "close" not in headers.get("connection", "").lower() and _has_end(status, headers)
            return Reply(status, headers, body)
        finally:
            if stays:
                self._idle.append(connection._replace(used_at=asyncio.get_running_loop().time()))
            else:
                connection.close()


@contextmanager
def _endings() -> Iterator[None]:
    """Raise each of _ENDINGS as a ConnectionError."""
    try:
        yield
    except _ENDINGS as error:
        if isinstance(error, asyncio.IncompleteReadError):
            raise ConnectionResetError("the connection was closed before the whole answer came") from error
        raise ConnectionError("the server there does not speak HTTP") from error


async def _begun(connection: Connection, exchange: Exchange, head: bytes) -> tuple[int, dict[str, str]]:
    """Send a request; the status and the headers of its answer. Raises one of _ENDINGS, or OSError."""
    exchange.is_sent = True
    waiting = exchange.body if exchange.asks_first else None
    connection.writer.write(head if waiting else head + (exchange.body or b""))
    status, headers = await _answer_head(connection.reader)
    while status < 200:
        if status == 100 and waiting:
            connection.writer.write(waiting)
            waiting = None
            await connection.writer.drain()
        status, headers = await _answer_head(connection.reader)
    return status, {**headers, "connection": "close"} if waiting else headers  # it was refused before it was sent


def _is_chunked(headers: Mapping[str, str]) -> bool:
    return headers.get("transfer-encoding", "").lower() == "chunked"


def _length(headers: Mapping[str, str]) -> int | None:
    """Raises ValueError."""
    if (told := headers.get("content-length")) is None:
        return None
    if not (told.isascii() and told.isdigit()):
        raise ValueError(told)
    return int(told)


def _has_end(status: int, headers: Mapping[str, str]) -> bool:
    """Return True if the answer ends before the connection does."""
    return status in (204, 304) or _is_chunked(headers) or "content-length" in headers


async def _pieces(reader: asyncio.StreamReader, status: int, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """The body of an answer. Raises one of _ENDINGS."""
    if status in (204, 304):
        return
    if _is_chunked(headers):
        while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            async for piece in _exactly(reader, size):
                yield piece
            await reader.readexactly(2)
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass  # a trailer
    elif (length := _length(headers)) is not None:
        async for piece in _exactly(reader, length):
            yield piece
    else:
        while piece := await reader.read(PIECE_BYTES):
            yield piece


async def _exactly(reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    while size > 0:
        piece = await reader.read(min(size, PIECE_BYTES))
        if not piece:
            raise asyncio.IncompleteReadError(piece, size)
        size -= len(piece)
        yield piece


async def _answer_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip().split("\r\n")
    version, status, *_ = [*first.split(" ", 2), ""]
    if version not in ("HTTP/1.0", "HTTP/1.1"):
        raise ValueError(first)
    headers = {"connection": "close"} if version == "HTTP/1.0" else {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(status), headers


# server-sent events: lines in, the name and the data of each event out


async def data_of(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The data of each event that arrived whole; one that was cut off is dropped."""
    async for _, data in events_of(chunks):
        yield data


async def events_of(chunks: AsyncIterable[bytes]) -> AsyncIterator[tuple[bytes, bytes]]:
    """The name (empty: none was given) and the data of each event that arrived whole."""
    rest: list[bytes] = []  # the chunks so far of a line that is not complete: a large event arrives in many
    lines: list[bytes] = []
    name = b""
    async for chunk in chunks:
        first, *more = chunk.split(b"\n")
        rest.append(first)
        if not more:
            continue
        whole = [b"".join(rest), *more[:-1]]
        rest = [more[-1]]
        for line in whole:
            if not line:
                if lines:
                    yield name, b"\n".join(lines)
                lines, name = [], b""
            elif line.startswith(b"data:"):
                lines.append(line[5:].removeprefix(b" "))
            elif line.startswith(b"event:"):
                name = line[6:].strip()
