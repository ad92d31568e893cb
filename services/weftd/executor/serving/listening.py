"""The addresses at which the processes of a run listen, to explain a failed probe.

A service that listens at another port, or in a container on loopback alone, runs well and is never ready: the reason
must name both places.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from ipaddress import ip_address

from msgspec import Struct

from weftd.executor.runs import RunKey

LISTENS = "0A"
LOOK_SECONDS = 2.0  # between two looks for one run
LOOKS_KEPT_MAX = 4096
SHOWN_MAX = 4
ENGINES_RESOLVER = "127.0.0.11"  # at which Docker answers names in a container's network


class Listening(Struct, frozen=True):
    """A socket that listens. `address`: empty if it listens at every address."""

    address: str
    port: int
    inode: str
    v6: bool = False


def listening(folder: str = "/proc/self/net") -> list[Listening] | None:
    """All TCP sockets that listen in a network; None if the kernel shows none of its tables."""
    found, read = [], False
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with suppress(OSError), open(f"{folder}/{name}", encoding="ascii") as file:
            read = True
            for line in file.readlines()[1:]:
                fields = line.split()
                address, _, port = fields[1].partition(":")
                if fields[3] == LISTENS:
                    found.append(
                        Listening(_address(address, family), int(port, 16), fields[9], family == socket.AF_INET6)
                    )
    return found if read else None


def _address(text: str, family: int) -> str:
    raw = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    return socket.inet_ntop(family, raw) if any(raw) else ""


def reason(why: str, port: int, found: Iterable[Listening], *, contained: bool) -> str:
    """The reason of a failed probe with where the run listens; the reason alone if the run does listen at `port`."""
    places = [one for one in found if one.address != ENGINES_RESOLVER]
    if any(one.port == port and not (contained and _is_loopback(one.address)) for one in places):
        return why
    nothing = f"no process listens at 0.0.0.0:{port} in the container" if contained else why
    shown = list(dict.fromkeys(_shown(one, contained=contained) for one in places))[:SHOWN_MAX]
    return f"{nothing}; it listens on {', '.join(shown) if shown else 'no port'}"


def _shown(one: Listening, *, contained: bool) -> str:
    if not one.address or (_is_loopback(one.address) and not contained):
        return f"port {one.port}"
    only = " only" if _is_loopback(one.address) else ""
    return (f"[{one.address}]:{one.port}" if ":" in one.address else f"{one.address}:{one.port}") + only


def _is_loopback(address: str) -> bool:
    return bool(address) and ip_address(address.partition("%")[0]).is_loopback


class Ears:
    """Looks where runs listen whose probes fail, each run at most every LOOK_SECONDS."""

    def __init__(self) -> None:
        self._looks: dict[RunKey, tuple[float, list[Listening] | None]] = {}

    async def reason(
        self,
        key: RunKey,
        why: str,
        port: int,
        find: Callable[[], list[Listening] | None],
        *,
        contained: bool,
    ) -> str:
        """`find`: the sockets of the run, None if they cannot be seen."""
        if not why:
            return ""
        now = asyncio.get_running_loop().time()
        at, found = self._looks.get(key, (-LOOK_SECONDS, None))
        if now - at >= LOOK_SECONDS:
            found = await asyncio.to_thread(find)
            self._looks.pop(key, None)
            self._looks[key] = (now, found)
            if len(self._looks) > LOOKS_KEPT_MAX:
                del self._looks[next(iter(self._looks))]
        return why if found is None else reason(why, port, found, contained=contained)
