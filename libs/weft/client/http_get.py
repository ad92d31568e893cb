"""GET requests over the streams of asyncio.

aiohttp sends every other request. Its import takes 150 ms of CPU, about as much as everything else that `weft ps` does,
so a command that only reads does without it.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

CONNECTIONS_MAX = 100
IDLE_SECONDS_MAX = 15.0  # a connection that was idle for longer may be gone without a word, behind a router
_ENDINGS = (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError)


class Reply(NamedTuple):
    """The names of the headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Connection(NamedTuple):
    """`used_at`: the time of the loop when its last reply was complete; 0 before the first."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    used_at: float = 0.0

    def close(self) -> None:
        self.writer.transport.abort()


class Gets:
    """Requests to one server, over connections that are kept open."""

    def __init__(self, url: str, headers: Mapping[str, str], tls: Callable[[], ssl.SSLContext | None]) -> None:
        """`tls`: the context for an address with https; it is called once a connection is opened."""
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        self._base, self._headers, self._tls = parts.path, {"Host": parts.netloc.rpartition("@")[2], **headers}, tls
        self._is_secure = parts.scheme == "https"
        self._idle: list[Connection] = []
        self._room = asyncio.Semaphore(CONNECTIONS_MAX)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def get(
        self, path: str, query: Mapping[str, str], headers: Mapping[str, str], *, connect_seconds: float
    ) -> Reply:
        """Raises OSError; ssl.SSLCertVerificationError, which is one, if the server cannot prove its name."""
        request = self._request(path, query, headers)
        async with self._room:
            while (kept := self._kept()) is not None:
                with suppress(ConnectionError):  # the server closed it meanwhile: a GET may be sent again
                    return await self._answer(kept, request)
            return await self._answer(await self._connection(connect_seconds), request)

    def _request(self, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> bytes:
        asked = f"?{urlencode(query, safe='*,:/')}" if query else ""
        lines = [f"GET {self._base}{path}{asked} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in {"Accept": "*/*", **self._headers, **headers}.items()]
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
        for *_, address in await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM):
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

    async def _answer(self, connection: Connection, request: bytes) -> Reply:
        complete = False
        try:
            connection.writer.write(request)
            reply, stays = await _reply(connection.reader)
            complete = stays
            return reply
        except _ENDINGS as error:
            if isinstance(error, asyncio.IncompleteReadError):
                raise ConnectionResetError("the connection was closed before the whole answer came") from error
            raise ConnectionError("what listens there does not speak HTTP") from error
        finally:
            if complete:
                self._idle.append(connection._replace(used_at=asyncio.get_running_loop().time()))
            else:
                connection.close()


async def _reply(reader: asyncio.StreamReader) -> tuple[Reply, bool]:
    """The reply, and whether the connection can be used for another. Raises one of _ENDINGS."""
    status, headers = await _head(reader)
    while status < 200:
        status, headers = await _head(reader)
    stays = "close" not in headers.get("connection", "").lower()
    if status in (204, 304):
        return Reply(status, headers, b""), stays
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return Reply(status, headers, await _chunks(reader)), stays
    if (length := headers.get("content-length")) is not None:
        return Reply(status, headers, await reader.readexactly(int(length))), stays
    return Reply(status, headers, await reader.read()), False


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip().split("\r\n")
    version, status, *_ = [*first.split(" ", 2), ""]
    if version not in ("HTTP/1.0", "HTTP/1.1"):
        raise ValueError(first)
    headers = {"connection": "close"} if version == "HTTP/1.0" else {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(status), headers


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    pieces: list[bytes] = []
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        pieces.append((await reader.readexactly(size + 2))[:-2])
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # a trailer
    return b"".join(pieces)
