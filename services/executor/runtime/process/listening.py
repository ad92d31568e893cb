"""Which ports the processes of one run listen on, so that nobody reaches another port of the host through a run.

Processes share their host's network, so a port by itself says nothing: the socket that listens there must be open in a
process of the run. It is looked at before the connection is made and once more after, as a port may change hands.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress

from msgspec import Struct

from services.executor.channel import SessionRefusedError
from services.executor.runs import RunKey
from services.executor.runtime.process.stragglers import stragglers
from services.executor.sessions.connection import PortChannel

LISTENS = "0A"
CONNECT_SECONDS_MAX = 3.0


class Listener(Struct, frozen=True):
    address: str
    inode: str


def listeners(port: int, folder: str = "/proc/self/net") -> list[Listener]:
    """Every socket of this host that listens on a port, at an address by which it is reached from here."""
    found = []
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with suppress(OSError), open(f"{folder}/{name}", encoding="ascii") as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                address, _, at = fields[1].partition(":")
                if fields[3] == LISTENS and int(at, 16) == port:
                    found.append(Listener(_reached(address, family), fields[9]))
    return found


def _reached(text: str, family: int) -> str:
    raw = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    if not any(raw):
        return "127.0.0.1" if family == socket.AF_INET else "::1"
    return socket.inet_ntop(family, raw)


def sockets_of(pids: Iterable[int]) -> set[str]:
    """The inodes of all sockets that these processes have open."""
    found = set()
    for pid in pids:
        with suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    target = os.readlink(f"/proc/{pid}/fd/{fd}")
                    if target.startswith("socket:["):
                        found.add(target[8:-1])
    return found


def pids_of(key: RunKey, runs_folder: str, groups: Iterable[str]) -> set[int]:
    """The processes of a run: those of its control groups, or those that have its variables where there are none."""
    return pids_in(groups) or {pid for pid, of_run in stragglers(runs_folder) if of_run == key}


def pids_in(groups: Iterable[str]) -> set[int]:
    found: set[int] = set()
    for group in groups:
        with suppress(OSError, ValueError), open(f"{group}/cgroup.procs", encoding="ascii") as file:
            found |= {int(line) for line in file}
    return found


async def connect(port: int, pids: Callable[[], set[int]]) -> PortChannel:
    """A connection to a port on which one of a run's processes listens itself. Raises SessionRefusedError."""

    def own() -> list[Listener]:
        there = listeners(port)
        mine = sockets_of(pids()) if there else set()
        return [one for one in there if one.inode in mine]

    for listener in await asyncio.to_thread(own):
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                reader, writer = await asyncio.open_connection(listener.address, port)
        except (OSError, TimeoutError):
            continue
        is_still_own = False
        try:
            is_still_own = listener in await asyncio.to_thread(own)
        finally:
            if not is_still_own:
                writer.transport.abort()
        if is_still_own:
            return PortChannel(reader, writer)
    raise SessionRefusedError(f"no process of this run listens on port {port}")
