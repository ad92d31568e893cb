"""Reads the number of requests that Caddy passes on now."""

import asyncio
from pathlib import Path

import msgspec
from msgspec import Struct

SECONDS_MAX = 2.0
PASSED = "{http.vars.weft_to}"
QUESTION = b"GET /reverse_proxy/upstreams HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n"


class CaddyAwayError(Exception):
    """Caddy does not run."""


class _Upstream(Struct):
    address: str
    num_requests: int


class Passing:
    """Asks Caddy by its own socket."""

    def __init__(self, admin: Path) -> None:
        self._admin = admin

    async def count(self) -> int | None:
        """The number of requests; None if Caddy did not answer in time. Raises CaddyAwayError."""
        try:
            async with asyncio.timeout(SECONDS_MAX):
                reader, writer = await asyncio.open_unix_connection(str(self._admin))
                try:
                    writer.write(QUESTION)
                    answer = await reader.read()
                finally:
                    writer.close()
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise CaddyAwayError(str(self._admin)) from error
        except (OSError, TimeoutError):
            return None
        head, _, body = answer.partition(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            return None
        try:
            upstreams = msgspec.json.decode(body, type=list[_Upstream] | None)
        except msgspec.DecodeError:
            return None
        return sum(upstream.num_requests for upstream in upstreams or () if upstream.address == PASSED)
