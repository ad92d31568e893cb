"""A few calls to the Docker engine over its socket, each bounded as a whole; no client library is loaded."""

import socket
import time
from collections.abc import Mapping
from typing import Any

import msgspec

CALL_SECONDS_MAX = 2.0
ANSWER_BYTES_MAX = 64 << 20
PREFIX = "unix://"


class EngineSilentError(Exception):
    """The engine is not there, or did not answer in time."""


class EngineSocket:
    """`address` as in DOCKER_HOST; only a socket of this host is used."""

    def __init__(self, address: str) -> None:
        self._path = address.removeprefix(PREFIX) if address.startswith(PREFIX) else ""

    def containers(self, filters: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        """The containers, ended ones too. Raises EngineSilentError."""
        quoted = "".join(f"%{byte:02X}" for byte in msgspec.json.encode(filters))
        status, body = self._call("GET", f"/containers/json?all=1&filters={quoted}")
        if status != 200:
            raise EngineSilentError(f"the engine answered {status}")
        try:
            return msgspec.json.decode(body, type=list[dict[str, Any]])
        except msgspec.DecodeError as error:
            raise EngineSilentError(f"the engine's list: {error}") from error

    def kill(self, container: str, signal: str) -> None:
        """Signal a container, if it still runs. Raises EngineSilentError."""
        self._done(*self._call("POST", f"/containers/{container}/kill?signal={signal}"))

    def remove(self, container: str) -> None:
        """Raises EngineSilentError."""
        self._done(*self._call("DELETE", f"/containers/{container}?force=1&v=1"))

    def _done(self, status: int, body: bytes) -> None:
        if status not in (200, 204, 304, 404, 409):
            raise EngineSilentError(f"the engine answered {status}: {body[:200]!r}")

    def _call(self, method: str, path: str) -> tuple[int, bytes]:
        if not self._path:
            raise EngineSilentError("there is no socket of an engine here")
        deadline = time.monotonic() + CALL_SECONDS_MAX
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(CALL_SECONDS_MAX)
                connection.connect(self._path)
                connection.sendall(f"{method} {path} HTTP/1.0\r\nHost: engine\r\nContent-Length: 0\r\n\r\n".encode())
                return _parsed(_read(connection, deadline))
        except OSError as error:
            raise EngineSilentError(str(error)) from error


def _read(connection: socket.socket, deadline: float) -> bytes:
    """Read the answer until the engine closes the connection, as in HTTP/1.0. Raises OSError."""
    whole = bytearray()
    while (left := deadline - time.monotonic()) > 0 and len(whole) <= ANSWER_BYTES_MAX:
        connection.settimeout(left)
        piece = connection.recv(1 << 16)
        if not piece:
            return bytes(whole)
        whole += piece
    raise TimeoutError("the engine did not end its answer in time")


def _parsed(whole: bytes) -> tuple[int, bytes]:
    """The status and body. Raises OSError if the answer is not HTTP."""
    head, _, body = whole.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        raise OSError("the engine's answer is no HTTP")
    return int(words[1]), body
