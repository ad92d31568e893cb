"""Posts one request and reads only the status of its answer.

The name is looked up once, each of its addresses is checked, and the connection uses a checked address. Redirects,
proxies and cookies are ignored; at most a few kilobytes of the answer are read, in a bounded time.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from urllib.parse import SplitResult, urlsplit

from weft.threads import aside
from weftd.gateway.notifications.urls import mistake
from weftd.gateway.thinking.notifications.addresses import Address, Network, literal, may_reach

SECONDS_MAX = 10.0  # in all
HEAD_BYTES_MAX = 8 << 10
INFORMED_MAX = 3  # answers of status 1xx before the one that counts
LOOKING_UP_MAX = 16  # at once; a look-up may hang for long
PORTS = {"http": 80, "https": 443}
NOT_FOUND = "its host has no address that webhooks may use"


class PostError(Exception):
    """No answer came; the text says why."""


Find = Callable[[str, int], Sequence[str]]


def find_addresses(host: str, port: int) -> Sequence[str]:
    """Addresses of a host, as the machine resolves them. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


class Poster:
    """`allowed`: networks that may be reached besides the Internet; None: every address."""

    def __init__(
        self, allowed: Sequence[Network] | None, *, seconds_max: float = SECONDS_MAX, find: Find = find_addresses
    ) -> None:
        self._allowed = allowed
        self._seconds_max = seconds_max
        self._find = find
        self._finders = asyncio.Semaphore(LOOKING_UP_MAX)
        self._finding: dict[str, asyncio.Lock] = {}
        self._tls: ssl.SSLContext | None = None

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], *, of: str = "") -> int:
        """The status of the answer. Look-ups of one tenant (`of`) come one after the other. Raises PostError."""
        try:
            async with asyncio.timeout(self._seconds_max):
                return await self._post(url, body, headers, of)
        except TimeoutError:
            raise PostError(f"no answer within {self._seconds_max:g} s") from None
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            raise PostError(_words(error)) from error

    async def _post(self, url: str, body: bytes, headers: Mapping[str, str], of: str) -> int:
        parts = urlsplit(url)
        if self._allowed is not None and (why := mistake(url, self._allowed)):
            raise PostError(why)
        assert parts.hostname is not None, "a URL that was checked has a host"
        port = parts.port or PORTS[parts.scheme]
        address = await self._address(parts.hostname, port, of)
        tls = self._context() if parts.scheme == "https" else None
        reader, writer = await asyncio.open_connection(
            str(address), port, ssl=tls, server_hostname=parts.hostname if tls else None, limit=HEAD_BYTES_MAX
        )
        try:
            writer.write(_request(parts, port, body, headers))
            sending = asyncio.create_task(_sent(writer))
            try:
                return await _status(reader)
            finally:
                sending.cancel()
        finally:
            writer.transport.abort()  # the rest is not read

    async def _address(self, host: str, port: int, of: str) -> Address:
        known = literal(host)
        found = [known] if known is not None else await self._looked_up(host, port, of)
        if self._allowed is not None and not all(may_reach(address, self._allowed) for address in found):
            raise PostError(NOT_FOUND)
        return found[0]

    async def _looked_up(self, host: str, port: int, of: str) -> list[Address]:
        lock, loop = self._finding.setdefault(of, asyncio.Lock()), asyncio.get_running_loop()
        await lock.acquire()
        try:
            await self._finders.acquire()
        except BaseException:
            lock.release()
            raise

        def over(_: object) -> None:
            """An abandoned look-up still occupies its thread; the tenant's next look-up waits for it."""
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(lock.release)
                loop.call_soon_threadsafe(self._finders.release)

        asked = aside(lambda: self._find(host, port), name="look-up")
        asked.add_done_callback(over)
        try:
            texts = await asyncio.wrap_future(asked)
        except (OSError, UnicodeError):
            raise PostError(NOT_FOUND) from None
        found = [address for text in texts if (address := literal(text.partition("%")[0])) is not None]
        if not found:
            raise PostError(NOT_FOUND)
        return found

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


def _request(parts: SplitResult, port: int, body: bytes, headers: Mapping[str, str]) -> bytes:
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    named = host if port == PORTS[parts.scheme] else f"{host}:{port}"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    given = {"Host": named, "User-Agent": "weft", "Content-Length": str(len(body)), "Connection": "close", **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"POST {target} HTTP/1.1\r\n{head}\r\n".encode("ascii") + body


async def _sent(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        await writer.drain()


async def _status(reader: asyncio.StreamReader) -> int:
    for _ in range(INFORMED_MAX):
        head = await reader.readuntil(b"\r\n")
        version, _, rest = head.partition(b" ")
        code = rest[:3]
        if not version.startswith(b"HTTP/1.") or len(code) != 3 or not code.isdigit():
            raise PostError("the answer is not HTTP/1.1")
        if (status := int(code)) >= 200:
            return status
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass
    raise PostError("no answer came")


def _words(error: BaseException) -> str:
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or 'refused'}"
    if isinstance(error, EOFError):
        return "it closed the connection without an answer"
    if isinstance(error, OSError):
        return error.strerror or "the connection broke"
    return "the answer is not HTTP/1.1"
