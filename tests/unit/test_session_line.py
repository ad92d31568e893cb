"""The line of a session: what it carries is paid for piece by piece, by the tenant whose session it is."""

import asyncio
from typing import cast

from aiohttp import WSMessage, WSMsgType, web

from tests.support.doubles.bus import MemoryBus
from weft.messages.sessions import ReadSession, SessionRead, SessionWritten, WriteSession
from weftd.gateway.sessions.relayed import SessionEnd, SessionLine


class Program:
    """A person's program: it sends some input, and takes all that comes."""

    def __init__(self, *frames: bytes) -> None:
        self._frames = list(frames)
        self.took = bytearray()

    async def send_str(self, _: str) -> None:
        """It needs none of that."""

    async def send_bytes(self, data: bytes) -> None:
        self.took += data[1:]

    async def receive(self) -> WSMessage:
        if not self._frames:
            await asyncio.Event().wait()
        return WSMessage(WSMsgType.BINARY, self._frames.pop(), None)


async def test_each_piece_both_ways_is_paid_for_before_the_next_one_is_carried() -> None:
    """Sessions carried as much as they could, and other tenants' requests waited for it."""
    bus, program = MemoryBus(), Program(b"typed")
    output = [b"one", b"three", b""]
    paid: list[int] = []
    typed = asyncio.Event()

    async def write(asked: WriteSession) -> SessionWritten:
        typed.set()
        return SessionWritten(taken=asked.offset + len(asked.data))

    async def read(asked: ReadSession) -> SessionRead:
        await typed.wait()
        assert sum(paid) >= asked.offset
        data = output.pop(0)
        return SessionRead(data=data, ended=not data, status=0)

    async def pace(count: int) -> None:
        await asyncio.sleep(0)
        paid.append(count)

    await bus.answer(WriteSession, write, node_id="node-1")
    await bus.answer(ReadSession, read, node_id="node-1")
    line = SessionLine(
        cast(web.WebSocketResponse, program),
        bus,
        node_id="node-1",
        session_id="s",
        number=1,
        taken=0,
        read=0,
        clock=lambda: 0.0,
        pace=pace,
    )
    async with asyncio.timeout(10):
        assert await line.carry() is SessionEnd.ENDED
    assert bytes(program.took) == b"onethree"
    assert sorted(paid) == [3, 5, 5]
    await bus.close()
