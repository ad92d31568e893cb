"""True if the names of hosts have addresses, each asked in a thread of its own.

An event loop looks names up in a few threads. A lookup may hang for many seconds, as that of a host that is gone often
does, and a few of them would keep all other names waiting. So what reconnects to several hosts asks here first.
"""

import asyncio
import socket
import threading
from concurrent.futures import Future
from contextlib import suppress
from ipaddress import ip_address

from weft.threads import aside

_lock = threading.Lock()
_asked: dict[str, "Future[None]"] = {}


async def has_address(host: str | None) -> None:
    """Return once the name has an address. All that ask for a name wait for one lookup of it; each bounds its own wait.
    Raises OSError."""
    if not host or _is_address(host):
        return
    with _lock:
        answer = _asked.get(host)
        if answer is None:
            answer = _asked[host] = aside(lambda: _look_up(host), name=f"name-{host}")
            answer.add_done_callback(lambda _: _asked.pop(host))
    await asyncio.wrap_future(answer)


def _look_up(host: str) -> None:
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"{host}: {error}") from error


def _is_address(host: str) -> bool:
    with suppress(ValueError):
        ip_address(host)
        return True
    return False
