"""Which ports the processes of one run listen on, so that nobody reaches another port of the host through a run.

Processes share their host's network, so a port by itself says nothing: the socket that listens there must be open in a
process of the run. It is looked at before the connection is made and once more after, as a port may change hands.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from contextlib import suppress

from msgspec import Struct

from weftd.executor.channel import SessionRefusedError
from weftd.executor.runs import RunKey
from weftd.executor.runtime.process.stragglers import stragglers
from weftd.executor.serving.listening import Listening, listening
from weftd.executor.sessions.connection import PortChannel

CONNECT_SECONDS_MAX = 3.0


class Listener(Struct, frozen=True):
    address: str
    inode: str


def listeners(port: int, folder: str = "/proc/self/net") -> list[Listener]:
    """Every socket of this host that listens on a port, at an address by which it is reached from here."""
    return [Listener(_reached(one), one.inode) for one in listening(folder) or () if one.port == port]


def _reached(one: Listening) -> str:
    return one.address or ("::1" if one.v6 else "127.0.0.1")


def listening_of(pids: Callable[[], set[int]]) -> list[Listening] | None:
    """The sockets on which the processes of a run listen; None if it is not known which processes it has."""
    there = pids()
    if not there:
        return None
    mine = sockets_of(there)
    return [one for one in listening() or () if one.inode in mine]


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
