"""One address before several gateways, as a cluster's users have it: each connection goes to one that takes it.

Nothing in it knows HTTP: a gateway that takes connections and answers nothing is found out by its users alone, whose
next connection goes to another.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

CONNECT_SECONDS_MAX = 0.5
CHUNK = 65_536


class Front:
    def __init__(self, port: int, gateways: Sequence[tuple[str, int]]) -> None:
        self._port = port
        self._gateways = list(gateways)
        self._server: asyncio.Server | None = None
        self._carrying: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        try:
            await self._carry(reader, writer)
        finally:
            self._carrying.discard(task)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until either end has ended."""
        there = await self._reach()
        if there is None:
            return
        answers, asks = there
        ways = [asyncio.create_task(_pump(reader, asks)), asyncio.create_task(_pump(answers, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            asks.transport.abort()

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """The first gateway that takes the connection; the next one is asked first by the next."""
        for _ in range(len(self._gateways)):
            self._gateways.append(self._gateways.pop(0))
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(CONNECT_SECONDS_MAX):
                    return await asyncio.open_connection(*self._gateways[-1])
        return None


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(CHUNK):
            sink.write(data)
            await sink.drain()
