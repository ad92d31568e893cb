"""Requests to the gateway: bounded, repeated where that is safe, every refusal as one error."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qsl, urlsplit

import msgspec

from weft.client.errors import ClientError, Refused, Unreachable
from weft.client.http import Exchange, Reply, Requests, Stream
from weft.client.paths import checked_text
from weft.messages.http import ErrorView
from weft.messages.tolerant import TolerantDecoder
from weft.version import HEADER, which_to_upgrade

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")

CONNECT_SECONDS_MAX = 5.0
ANSWER_SECONDS_MAX = 30.0
SILENCE_SECONDS_MAX = 45.0  # of a stream: longer than the gateway's heartbeat, and than the gateway waits for a node
PAUSE_SECONDS_MIN = 0.1
PAUSE_SECONDS_MAX = 2.0
LIVED_SECONDS_MIN = 5.0  # a stream that was open for longer counts as a success
AGAIN = (429, 502, 503, 504)  # the gateway, or a proxy before it, is away for a moment, or got too many requests
RETRY_AFTER_SECONDS_MAX = 60.0
OF_ANOTHER_VERSION = (400, 404, 405, 422)  # unknown fields and values, paths and methods
SOCKET_BYTES_MAX = 256 << 10  # of one frame

JSON_HEADERS = {"Content-Type": "application/json"}
_NEXT = re.compile(r'<([^>]*)>; rel="next"')


class Wire:
    """The connections to one gateway.

    `retry_seconds`: how long it repeats a request while the gateway is away; `first_seconds`: the same for one
    that has not answered yet."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        retry_seconds: float,
        first_seconds: float,
        clock: Callable[[], float],
        ca_file: str = "",
    ) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"}
        self._seconds = min(first_seconds, retry_seconds)
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._ca_file = ca_file
        self._tls: ssl.SSLContext | None = None
        self._requests: Requests | None = None
        self._session: aiohttp.ClientSession | None = None
        self._gateway_version = ""

    async def open(self) -> None:
        try:
            if self._ca_file or self._url.startswith("https:"):
                self._tls = await asyncio.to_thread(ssl.create_default_context, cafile=self._ca_file or None)
        except (OSError, ValueError) as error:
            raise ClientError(f"{self._ca_file} is not a file of certificates: {_words(error)}") from error
        self._requests = Requests(self._url, self._headers, lambda: self._tls)

    async def close(self) -> None:
        if self._requests is not None:
            self._requests.close()
            self._requests = None
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        once: bool = False,
        seconds: float = ANSWER_SECONDS_MAX,
    ) -> T:
        """One answer, decoded. Repeated while none comes; with `once` only if the request surely had no effect.

        `seconds`: how long one try may take.
        """
        answer = await self.read(method, path, query=query, body=body, headers=headers, once=once, seconds=seconds)
        return self._decoded(path, kind, answer)

    async def page(self, path: str, kind: type[T], *, query: Mapping[str, str]) -> tuple[T, dict[str, str]]:
        """One page of a list, and the query of the next page; an empty one if there is none."""
        answer, headers = await self._answered("GET", path, query=query)
        following = _NEXT.search(headers.get("link", ""))
        return self._decoded(path, kind, answer), dict(parse_qsl(urlsplit(following[1]).query)) if following else {}

    def _decoded(self, path: str, kind: type[T], answer: bytes) -> T:
        try:
            return TolerantDecoder(kind).decode(answer)
        except msgspec.DecodeError as error:
            reason = f"{self._url}{path} did not answer like a Weft gateway: {error}"
            raise ClientError(reason, versions=which_to_upgrade(self._gateway_version)) from error

    async def read(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        once: bool = False,
        seconds: float = ANSWER_SECONDS_MAX,
    ) -> bytes:
        """The bytes of one answer."""
        answer, _ = await self._answered(
            method, path, query=query, body=body, headers=headers, once=once, seconds=seconds
        )
        return answer

    async def _answered(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        once: bool = False,
        seconds: float = ANSWER_SECONDS_MAX,
    ) -> tuple[bytes, Mapping[str, str]]:
        """The bytes of one answer, and its headers, their names in lower case."""
        retrying = self.retrying()
        while True:
            exchange = Exchange(method, path, query=_checked(query), headers=headers, body=body, once=once)
            try:
                async with asyncio.timeout(seconds):
                    reply = await self._sent(exchange)
                self._seconds = self._retry_seconds
                self._gateway_version = reply.headers.get(HEADER.lower(), "")
                if reply.status < 300:
                    return reply.body, reply.headers
                error: Exception = _refused(reply.status, reply.body, reply.headers)
                if reply.status not in AGAIN:
                    raise error
            except ssl.SSLCertVerificationError as untrusted:
                raise self._untrusted(untrusted) from untrusted
            except OSError as broken:
                error = broken
                if once and exchange.is_sent:
                    raise Unreachable(f"{self._url}: {_words(broken)}; the request may have been executed") from broken
            await retrying.pause(error)

    async def _sent(self, exchange: Exchange) -> Reply:
        """One try. Raises OSError."""
        return await self._open.send(exchange, connect_seconds=CONNECT_SECONDS_MAX)

    @property
    def _open(self) -> Requests:
        assert self._requests is not None, "use it inside `async with`"
        return self._requests

    @asynccontextmanager
    async def stream(self, path: str, *, query: Mapping[str, str], headers: Mapping[str, str]) -> AsyncIterator[Stream]:
        """One answer that stays open; never repeated. Raises Refused, ClientError, or OSError."""
        exchange = Exchange("GET", path, query=_checked(query), headers=headers)
        try:
            async with self._open.stream(
                exchange, connect_seconds=CONNECT_SECONDS_MAX, silence_seconds=SILENCE_SECONDS_MAX
            ) as response:
                self._seconds = self._retry_seconds
                if response.status >= 300:
                    raise _refused(response.status, await response.read(), response.headers)
                yield response
        except ssl.SSLCertVerificationError as untrusted:
            raise self._untrusted(untrusted) from untrusted

    async def socket(self, path: str, *, query: Mapping[str, str]) -> "aiohttp.ClientWebSocketResponse":
        """A WebSocket. Never repeated. Raises Refused, ClientError, aiohttp.ClientError, or OSError."""
        import aiohttp

        timeout = aiohttp.ClientWSTimeout(ws_close=CONNECT_SECONDS_MAX)
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                return await self._opened_session.ws_connect(
                    f"{self._url}{path}",
                    params=_checked(query),
                    timeout=timeout,
                    max_msg_size=SOCKET_BYTES_MAX,
                    compress=0,
                )
        except aiohttp.WSServerHandshakeError as refused:
            # The refusal's own words are not in that error; asked without the upgrade, the gateway says them again.
            reply = await self._sent(Exchange("GET", path, query=query))
            again = _refused(reply.status, reply.body, reply.headers)
            if again.status == refused.status:
                raise again from refused
            raise Refused(refused.status, "", f"refused with status {refused.status}: {refused.message}") from None
        except ssl.SSLCertVerificationError as untrusted:
            raise self._untrusted(untrusted) from untrusted
        except aiohttp.ClientConnectorError as error:
            raise Unreachable(f"{self._url}: {_words(error)}") from error

    def _untrusted(self, error: ssl.SSLCertVerificationError) -> ClientError:
        """A bad certificate: waiting does not help, and no token is sent to a server that cannot prove its name."""
        return ClientError(f"{self._url}: its certificate is not trusted: {_reason(error)}")

    def retrying(self) -> "Retrying":
        return Retrying(self._url, lambda: self._seconds, self._clock)

    @property
    def _opened_session(self) -> "aiohttp.ClientSession":
        """The session of aiohttp, which is slow to import, for WebSockets."""
        assert self._requests is not None, "use it inside `async with`"
        if self._session is None:
            import aiohttp

            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._tls or True), headers=self._headers, auto_decompress=True
            )
        return self._session


class Retrying:
    """Growing pauses between tries, for this many seconds in all since the first failure."""

    def __init__(self, url: str, seconds: Callable[[], float], clock: Callable[[], float]) -> None:
        self._url = url
        self._seconds = seconds
        self._clock = clock
        self.succeeded()

    def succeeded(self) -> None:
        self._failing_since: float | None = None
        self._connected_at: float | None = None
        self._pause = PAUSE_SECONDS_MIN

    def connected(self) -> None:
        """Note that a stream opened. That alone is no success: each stream may be cut at once."""
        self._connected_at = self._clock()

    async def pause(self, error: BaseException) -> None:
        """Wait before the next try; raises the error once failures have lasted too long."""
        now = self._clock()
        if self._connected_at is not None and now - self._connected_at > LIVED_SECONDS_MIN:
            self.succeeded()
        self._connected_at = None
        if self._failing_since is None:
            self._failing_since = now
        asked = error.retry_after if isinstance(error, Refused) else 0.0
        pause = max(self._pause, min(asked, RETRY_AFTER_SECONDS_MAX))
        if now + pause - self._failing_since > self._seconds():
            if isinstance(error, Refused):
                raise error
            raise Unreachable(f"{self._url}: {_words(error)}") from error
        await asyncio.sleep(pause)
        self._pause = min(self._pause * 2, PAUSE_SECONDS_MAX)


def worth_another(error: Refused) -> Refused:
    """Raises the refusal, unless another try may succeed."""
    if error.status in AGAIN:
        return error
    raise error


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _reason(error: ssl.SSLCertVerificationError) -> object:
    """The error of ssl, which aiohttp has inside its own."""
    return getattr(error, "certificate_error", error)


def _checked(query: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """The same query. Raises ClientError for a value with bytes that are no UTF-8."""
    return None if query is None else {name: checked_text(name, value) for name, value in query.items()}


def _refused(status: int, answer: bytes, headers: Mapping[str, str]) -> Refused:
    asked = headers.get("retry-after", "")
    later = float(asked) if asked.isascii() and asked.isdigit() else 0.0  # else it is a date
    try:
        error = msgspec.json.decode(answer, type=ErrorView).error
    except msgspec.DecodeError:
        return Refused(status, "", f"status {status}, and not from a Weft gateway", retry_after=later)
    errors = [(each.field, each.reason) for each in error.errors]
    may_be_why = status in OF_ANOTHER_VERSION and not (status == 404 and error.field)
    versions = which_to_upgrade(headers.get(HEADER.lower(), "")) if may_be_why else ""
    return Refused(status, error.field, error.reason, retry_after=later, errors=errors, versions=versions)
