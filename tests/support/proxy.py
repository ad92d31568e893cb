"""A TCP link that fails as links do, switched while it runs: between any client and any server of this machine.

    async with Proxy(server.port) as link:
        ...connect to link.port...
        link.cut()            # nothing arrives any more, either way, and nobody is told
        link.mend()
        link.reset()          # every connection ends with RST; new ones are welcome

One fault at a time, for all connections of the link, also those that come later. `mend` ends it.

| fault       | bytes                    | acknowledged | new connections             | as when                       |
|-------------|--------------------------|--------------|-----------------------------|-------------------------------|
| cut         | lost until mended        | no           | never answered (SYN lost)   | a cable is pulled, a host dies |
| swallow     | taken and forgotten      | yes          | accepted, never answered    | a firewall lost its table     |
| freeze      | held back, one way or both | until full | accepted, held back         | a process is stopped          |
| refuse      | flow                     | yes          | refused                     | a server takes nobody more    |
| slow        | flow, late and few       | yes          | accepted                    | a bad line                    |

A connection that a cut or a freeze spared goes on where it was, one that was swallowed from is reset by `mend`.
`reset` and `refuse` together are a server that died. Linux only: `cut` is a socket filter that drops all segments.
"""

import asyncio
import ctypes
import socket
import struct
from collections import Counter
from contextlib import suppress
from enum import Enum
from functools import partial
from types import TracebackType
from typing import Self

SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27  # asm-generic/socket.h
CONNECT_SECONDS_MAX = 5.0
CHUNK = 65_536
CHUNKS_UNDER_WAY_MAX = 4
BACKLOG = 4096


class Way(Enum):
    TO_SERVER = "to the server"
    TO_CLIENT = "to the client"


BOTH = (Way.TO_SERVER, Way.TO_CLIENT)


class Fault(Enum):
    NONE = "none"
    CUT = "cut"
    SWALLOW = "swallow"
    FREEZE = "freeze"
    REFUSE = "refuse"
    SLOW = "slow"


class Proxy:
    """Everything that comes to `port` goes to `server_port`. `carried`: bytes delivered, of each way."""

    def __init__(self, server_port: int, *, host: str = "127.0.0.1") -> None:
        self.host = host
        self.port = 0
        self.fault = Fault.NONE
        self.accepted = 0
        self.carried: Counter[Way] = Counter()
        self._server_port = server_port
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = {way: asyncio.Event() for way in Way}
        self._delay_seconds = 0.0
        self._bytes_per_second: float | None = None
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.setblocking(False)
        with socket.socket() as probe:
            probe.bind((self.host, 0))
            self.port = probe.getsockname()[1]
        self._listener.bind((self.host, self.port))  # Bound by number it stays bound while it refuses.
        for event in self._flowing.values():
            event.set()
        self._listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop_listening()
        assert self._listener is not None
        self._listener.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def connections(self) -> int:
        """How many are open now."""
        return len(self._links)

    def cut(self) -> None:
        self._begin(Fault.CUT)
        self._stop_flow(BOTH)
        for end in self._all_ends():
            _drop_all(end)

    def swallow(self) -> None:
        self._begin(Fault.SWALLOW)

    def freeze(self, *ways: Way) -> None:
        """Both ways, if none is named."""
        self._begin(Fault.FREEZE)
        self._stop_flow(ways or BOTH)

    def refuse(self) -> None:
        """Connections that are open go on: see `reset`. The port stays ours."""
        self._begin(Fault.REFUSE)
        assert self._listener is not None
        self._listener.shutdown(socket.SHUT_RD)

    def slow(self, *, delay_seconds: float = 0.0, bytes_per_second: float | None = None) -> None:
        """Each way and each connection for itself: so much later, and so few at a time."""
        self._begin(Fault.SLOW)
        self._delay_seconds, self._bytes_per_second = delay_seconds, bytes_per_second

    def mend(self) -> None:
        self._begin(Fault.NONE)

    def reset(self) -> None:
        """End every connection that is open with RST to both ends. Whatever fault there is stays."""
        for link in list(self._links):
            link.reset()

    def _begin(self, fault: Fault) -> None:
        """End the fault there is: each of them starts from a link that is whole."""
        before, self.fault = self.fault, fault
        if before is Fault.CUT:
            for end in self._all_ends():
                _drop_nothing(end)
        if before is Fault.REFUSE:
            self._listen()
        self._delay_seconds, self._bytes_per_second = 0.0, None
        for link in list(self._links):
            if link.swallowed:
                link.reset()
        for event in self._flowing.values():
            event.set()

    def _stop_flow(self, ways: tuple[Way, ...]) -> None:
        for way in ways:
            self._flowing[way].clear()

    def _all_ends(self) -> list[socket.socket]:
        assert self._listener is not None
        return [self._listener, *(end for link in self._links for end in link.ends)]

    def _listen(self) -> None:
        assert self._listener is not None
        self._listener.listen(BACKLOG)
        if self._accepting is None or self._accepting.done():
            self._accepting = asyncio.create_task(self._accept(self._listener))

    async def _stop_listening(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(0.01)  # shut down, or out of descriptors: look again
                continue
            self.accepted += 1
            link = _Link(client, socket.socket(), swallowed=self.fault is Fault.SWALLOW)
            if self.fault is Fault.REFUSE:  # it came a moment before that
                link.close(told=False)
                continue
            self._links.add(link)  # at once: a reset before the first step of its task ends it, too
            link.task = loop.create_task(self._carry(link))
            self._tasks.add(link.task)
            link.task.add_done_callback(partial(self._carried, link))

    def _carried(self, link: "_Link", task: asyncio.Task[None]) -> None:
        """The link is used up. A task that was cancelled before its first step has closed nothing."""
        link.close(told=False)
        self._links.discard(link)
        self._tasks.discard(task)

    async def _carry(self, link: "_Link") -> None:
        try:
            with link:
                await self._flowing[Way.TO_SERVER].wait()
                if not link.swallowed:
                    await self._reach(link.server)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._pump(link, Way.TO_SERVER))
                    if not link.swallowed:
                        tasks.create_task(self._pump(link, Way.TO_CLIENT))
        except* OSError:
            pass  # one end is gone, so the other was told

    async def _reach(self, server: socket.socket) -> None:
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            await asyncio.get_running_loop().sock_connect(server, (self.host, self._server_port))
        if self.fault is Fault.CUT:
            _drop_all(server)  # what it had before it was connected is gone

    async def _pump(self, link: "_Link", way: Way) -> None:
        """One way of one connection. What has left its sender waits here, a bounded amount, until it is due."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS_UNDER_WAY_MAX)
        source, sink = (link.client, link.server) if way is Way.TO_SERVER else (link.server, link.client)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._take(link, way, source, under_way))
            tasks.create_task(self._deliver(way, sink, under_way))

    async def _take(
        self, link: "_Link", way: Way, source: socket.socket, under_way: "asyncio.Queue[tuple[float, bytes]]"
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            data = await loop.sock_recv(source, CHUNK)
            if self.fault is Fault.SWALLOW:
                link.swallowed = True
            if link.swallowed:
                if data:
                    continue
                return  # nobody is told
            await under_way.put((loop.time() + self._delay_seconds, data))
            if not data:
                return

    async def _deliver(self, way: Way, sink: socket.socket, under_way: "asyncio.Queue[tuple[float, bytes]]") -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await under_way.get()
            await asyncio.sleep(due - loop.time())
            await self._flowing[way].wait()
            if not data:
                sink.shutdown(socket.SHUT_WR)
                return
            await self._send(way, sink, data)

    async def _send(self, way: Way, sink: socket.socket, data: bytes) -> None:
        """As much at a time as a tenth of a second may carry, so that a change of the fault is soon felt."""
        loop = asyncio.get_running_loop()
        while data:
            rate = self._bytes_per_second
            piece = data if rate is None else data[: max(1, int(rate / 10))]
            await self._flowing[way].wait()
            await loop.sock_sendall(sink, piece)
            self.carried[way] += len(piece)
            data = data[len(piece) :]
            if rate is not None:
                await asyncio.sleep(len(piece) / rate)


class _Link:
    """One connection: its two ends, and the task that carries between them. Used up, both ends are closed."""

    task: "asyncio.Task[None] | None" = None

    def __init__(self, client: socket.socket, server: socket.socket, *, swallowed: bool) -> None:
        self.client = client
        self.server = server
        self.swallowed = swallowed
        for end in self.ends:
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def ends(self) -> tuple[socket.socket, socket.socket]:
        return self.client, self.server

    def reset(self) -> None:
        assert self.task is not None
        self.task.cancel()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Where it did not end by itself, on both sides, it ends with RST to both."""
        self.close(told=kind is None)

    def close(self, *, told: bool) -> None:
        """Close both ends, with RST unless both were `told` of the end. To close again does nothing."""
        for end in self.ends:
            if not told:
                with suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()


def _drop_all(end: socket.socket) -> None:
    """The kernel drops every segment that arrives here: no acknowledgement, no RST, no word to anybody."""
    program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # one instruction: return 0
    end.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))


def _drop_nothing(end: socket.socket) -> None:
    with suppress(OSError):  # it has no filter: it came while the link was cut
        end.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
