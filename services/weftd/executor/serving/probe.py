"""Asks a run once whether it takes requests. Whatever answers, this takes PROBE_SECONDS_MAX at most, and reads no more
than the first line: no body, no redirect, no header.
"""

import asyncio
import socket
from urllib.parse import quote

PROBE_SECONDS_MAX = 2.0
LINE_BYTES_MAX = 1024
# A port that Docker publishes takes every connection, and closes it at once if nothing listens behind it.
CLOSED_SECONDS = 0.2
PATH_SAFE = "/:?#[]@!$&'()*+,;=%-._~"


async def probe(address: str, port: int, ready: str) -> str:
    """Empty if the listener takes requests, else why not. `ready`: the path that must answer with 200 to 399;
    empty: a connection is enough."""
    try:
        async with asyncio.timeout(PROBE_SECONDS_MAX):
            return await _ask(address, port, ready)
    except TimeoutError:
        return f"no answer within {PROBE_SECONDS_MAX:g} s"
    except ConnectionRefusedError:
        return f"connection refused at port {port}"
    except (OSError, ValueError, OverflowError) as error:  # The last two: no address, or no port.
        return f"{getattr(error, 'strerror', None) or error}"


async def _ask(address: str, port: int, ready: str) -> str:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as connection:
        connection.setblocking(False)
        await loop.sock_connect(connection, (address, port))
        if not ready:
            return await _stays(connection)
        request = f"GET {quote(ready, safe=PATH_SAFE)} HTTP/1.1\r\nHost: {address}:{port}\r\nConnection: close\r\n\r\n"
        await loop.sock_sendall(connection, request.encode())
        line = b""
        while b"\n" not in line and len(line) < LINE_BYTES_MAX:
            part = await loop.sock_recv(connection, LINE_BYTES_MAX)
            if not part:
                break
            line += part
    return _verdict(line.partition(b"\n")[0], ready)


async def _stays(connection: socket.socket) -> str:
    try:
        async with asyncio.timeout(CLOSED_SECONDS):
            if not await asyncio.get_running_loop().sock_recv(connection, 1):
                return "it closes connections at once"
    except TimeoutError:
        pass
    return ""


def _verdict(line: bytes, ready: str) -> str:
    """Judge the first line of an answer, such as `HTTP/1.1 200 OK`."""
    version, _, rest = line.partition(b" ")
    status = rest[:3]
    if not version.startswith(b"HTTP/1.") or len(status) != 3 or not status.isdigit():
        return "its answer is no HTTP"
    return "" if 200 <= int(status) < 400 else f"it answers {status.decode()} for {ready}"
