"""`weft call`: one request to a service, through its router and with your token; the answer as it comes.

Exit status: 0 answered below 400, 22 answered with an error, 1 not answered.
"""

import argparse
import asyncio
import os
import re
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from urllib.parse import quote, unquote

import aiohttp
import msgspec
from msgspec import Struct
from yarl import URL

from weft.client.place import Place
from weft.messages.http import ErrorView
from weft.messages.http.services import EndpointsView
from weftd.cli import connection, page
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean
from weftd.cli.jobs.logs import Writer, terminal_text
from weftd.cli.jobs.wait import seconds
from weftd.cli.services.endpoints import SERVICE_HELP

HTTP_ERROR = 22  # as curl's
CONNECT_SECONDS_MAX = 5.0
SILENCE_SECONDS_MAX = 300.0  # without a byte of the answer; a service may be given an hour: `--timeout`
PATH_BYTES_MAX = 8192
HEADERS_MAX = 100
HEADER_BYTES_MAX = 8192
BODY_BYTES_MAX = 64 << 20  # that --json and errors keep in memory
SHOWN_CHARACTERS = 300

_METHOD = re.compile(r"[A-Za-z]{1,20}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
_OURS = frozenset({"authorization", "host", "content-length", "transfer-encoding", "connection", "upgrade"})
_AS_IT_IS = "/%?:@!$&'()*+,;=~-._"  # in a path that may be encoded already


class CallAnswer(Struct, frozen=True, kw_only=True):
    """The output of `--json`. `body`: bytes that are no UTF-8 are replaced."""

    status: int
    headers: dict[str, str]
    body: str


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "call",
        help="send a request to a service",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("job", metavar="JOB", help=SERVICE_HELP)
    parser.add_argument(
        "path", metavar="PATH", nargs="?", default="/", help="path to request, such as /v1/models (default: /)"
    )
    parser.add_argument("-X", "--method", metavar="M", help="HTTP method (default: GET, or POST with -d)")
    parser.add_argument("-d", "--data", metavar="DATA", help="request body; @FILE: content of a file, @-: stdin")
    parser.add_argument("-H", "--header", action="append", default=[], metavar="'NAME: VALUE'", help="repeat it")
    parser.add_argument("-i", "--include", action="store_true", help="print the status and headers first")
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=SILENCE_SECONDS_MAX,
        metavar="TIME",
        help="give up after this long without data (default: 5m)",
    )
    connection.options(parser)
    parser.set_defaults(func=call)


async def call(args: argparse.Namespace) -> int:
    path, headers, body = checked_path(args.path), checked_headers(args.header), await _body(args.data)
    method = args.method or ("GET" if body is None else "POST")
    if not _METHOD.fullmatch(method):
        raise CliError(f"expected a method such as GET or POST, not {clean(method[:100])!r}", field="-X", status=2)
    if body is not None and not any(name.lower() == "content-type" for name, _ in headers):
        headers.append(("Content-Type", _content(body)))
    place = connection.find_place(args, os.environ)
    async with connection.connected(args) as client:
        view = await client.endpoints(args.job)
    if not view.url:
        raise CliError("this cluster has no router: GATEWAY_ROUTER_URL is not set at its gateway")
    if view.token:
        headers.append(("Authorization", f"Bearer {place.token}"))
    url = URL(view.url.rstrip("/") + path, encoded=True)
    async with _sent(view, place, method.upper(), url, headers, body, args.timeout) as response:
        return await (_as_json(response, view) if args.json else _shown(response, view, include=args.include))


def checked_path(text: str) -> str:
    """The path as it is sent: characters that no URL may have are percent-encoded. Raises `CliError`."""
    if not text.startswith("/"):
        raise CliError(f"expected a path that begins with /, not {clean(text[:100])!r}", status=2)
    place = next((place for place, char in enumerate(text) if ord(char) < 32 or 127 <= ord(char) < 160), None)
    if place is not None:
        raise CliError(f"the path has a control character, its character {place + 1}", status=2)
    if "#" in text or "\\" in text:
        raise CliError("the path has a character that no path may have: write # as %23, \\ as %5C", status=2)
    encoded = quote(os.fsencode(text), safe=_AS_IT_IS)
    if len(encoded) > PATH_BYTES_MAX:
        raise CliError(f"the path has {len(encoded)} bytes; at most {PATH_BYTES_MAX}", status=2)
    if {".", ".."} & set(unquote(encoded.partition("?")[0]).replace("\\", "/").split("/")):
        raise CliError("the path has a part . or .., which could lead out of the service", status=2)
    return encoded


def checked_headers(texts: Sequence[str]) -> list[tuple[str, str]]:
    """`Name: value` pairs. Raises `CliError`."""
    if len(texts) > HEADERS_MAX:
        raise CliError(f"{len(texts)} headers; at most {HEADERS_MAX}", field="-H", status=2)
    headers = []
    for text in texts:
        name, given, value = text.partition(":")
        value = value.strip(" \t")
        shown = clean(name[:100])
        if not given or not _HEADER.fullmatch(name):
            raise CliError(f"expected 'NAME: VALUE', not {clean(text[:100])!r}", field="-H", status=2)
        if name.lower() in _OURS or name.lower().startswith("x-weft-"):
            raise CliError(f"{shown} is set by weft itself", field="-H", status=2)
        if not (value.replace("\t", " ").isprintable() and value.isascii()):
            raise CliError(f"the value of {shown} has a character that is not printable ASCII", field="-H", status=2)
        if len(value) > HEADER_BYTES_MAX:
            raise CliError(f"the value of {shown} has {len(value)} bytes; at most {HEADER_BYTES_MAX}", field="-H")
        headers.append((name, value))
    return headers


async def _body(data: str | None) -> bytes | None:
    if data is None or not data.startswith("@"):
        return None if data is None else os.fsencode(data)
    if data == "@-":
        return await asyncio.to_thread(sys.stdin.buffer.read)
    try:
        return await asyncio.to_thread(_read, data[1:])
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise CliError(f"cannot read {clean(data[1:])}: {why}", field="-d") from error


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _content(body: bytes) -> str:
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "application/octet-stream"
    return "application/json"


@asynccontextmanager
async def _sent(
    view: EndpointsView,
    place: Place,
    method: str,
    url: URL,
    headers: list[tuple[str, str]],
    body: bytes | None,
    timeout: float,
) -> AsyncIterator[aiohttp.ClientResponse]:
    """The answer, once its headers are there; what goes wrong on the way becomes a complaint."""
    tls = await asyncio.to_thread(ssl.create_default_context, cafile=place.ca_file) if place.ca_file else True
    bounds = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS_MAX, sock_read=timeout)
    shown = f"{url.scheme}://{url.authority}"
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls), timeout=bounds) as session,
            session.request(method, url, headers=headers, data=body, allow_redirects=False) as response,
        ):
            yield response
    except aiohttp.ClientConnectorCertificateError as error:
        raise CliError(f"{shown}: its certificate is not trusted: {error.certificate_error}") from error
    except aiohttp.ClientConnectorError as error:
        raise CliError(f"no answer from the router at {shown}: {error.strerror or error}") from error
    except TimeoutError as error:
        raise CliError(f"{view.name}: nothing came for {timeout:g} s") from error
    except (aiohttp.ClientError, OSError) as error:
        raise CliError(f"{view.name}: the connection broke: {clean(str(error)) or type(error).__name__}") from error


async def _shown(response: aiohttp.ClientResponse, view: EndpointsView, *, include: bool) -> int:
    """The answer on stdout as it comes; of an error its beginning is read for the sentence too."""
    writer = Writer(page.write, screen=terminal_text())
    if include:
        lines = [
            f"{response.status} {response.reason}",
            *(f"{name}: {value}" for name, value in response.headers.items()),
        ]
        page.write("".join(f"{clean(line)}\n" for line in [*lines, ""]).encode(errors="replace"))
    kept = b""
    async for chunk in response.content.iter_any():
        writer.write(chunk)
        if response.status >= 400 and len(kept) < SHOWN_CHARACTERS * 4:
            kept += chunk
    writer.close()
    return _ended(response, view, kept)


async def _as_json(response: aiohttp.ClientResponse, view: EndpointsView) -> int:
    body = b""
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise CliError(f"the answer has more than {BODY_BYTES_MAX} bytes, too many for --json")
    text = body.decode(errors="replace")
    page.json_line(CallAnswer(status=response.status, headers=dict(response.headers), body=text))
    return _ended(response, view, body)


def _ended(response: aiohttp.ClientResponse, view: EndpointsView, body: bytes) -> int:
    if response.status < 400:
        return 0
    later = response.headers.get("Retry-After", "")
    again = f"; ask again in {later} s" if later.isascii() and later.isdigit() and len(later) < 6 else ""
    words = clean(f"{response.status} {response.reason or ''}".strip())
    raise CliError(f"{view.name} answered {words}{_reason(body)}{again}", status=HTTP_ERROR)


def _reason(body: bytes) -> str:
    """The reason in an error of the router, or the first line of another short text."""
    try:
        return f": {msgspec.json.decode(body, type=ErrorView).error.reason}"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
