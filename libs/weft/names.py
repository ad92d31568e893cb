"""Whether the names of hosts have addresses, each asked in a thread of its own.

An event loop looks names up in a few threads. A lookup may hang for many seconds, as that of a host that is gone often
does, and a few of them would keep all other names waiting. So what reconnects to several hosts asks here first.
"""

import asyncio
import socket
import threading
from concurrent.futures import Future
from contextlib import suppress
from ipaddress import ip_address

_lock = threading.Lock()
_asked: dict[str, "Future[OSError | None]"] = {}


async def has_address(host: str | None) -> None:
    """Return once the name has an address. All that ask for a name wait for one lookup of it; each bounds its own wait.
    Raises OSError."""
    if not host or _is_address(host):
        return
    with _lock:
        answer = _asked.get(host)
        if answer is None:
            answer = _asked[host] = Future()
            # A daemon: a process that ends does not wait for it.
            threading.Thread(target=_ask, args=(host, answer), name=f"name-{host}", daemon=True).start()
    error = await asyncio.shield(asyncio.wrap_future(answer))
    if error is not None:
        raise error


def _ask(host: str, answer: "Future[OSError | None]") -> None:
    error: OSError | None = None
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as raised:
        error = raised
    except UnicodeError as raised:
        error = OSError(f"{host}: {raised}")
    with _lock:
        del _asked[host]
    answer.set_result(error)


def _is_address(host: str) -> bool:
    with suppress(ValueError):
        ip_address(host)
        return True
    return False
