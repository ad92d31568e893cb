"""Who is told to end while it waits for an answer ends, also when the answer comes at that very moment."""

import asyncio
from pathlib import Path

from tests.support.nats_server import NatsServer
from weft.bus.nats import NatsBus
from weft.messages.nodes import LogRead, ReadLog

TRIES = 1500
SPINS = 150  # of the loop, before it is told to end; an answer takes some tens


async def test_a_request_that_is_cancelled_as_its_answer_comes_is_cancelled(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)

    async def answer(ask: ReadLog) -> LogRead:
        return LogRead(offset=ask.offset, data=b"x")

    async def ask(bus: NatsBus) -> None:
        asked = ReadLog(node_id="node-1", job_id="job-1", epoch=0, rank=0)
        await bus.request(asked, LogRead, seconds_max=10)
        await asyncio.sleep(0)  # as whoever goes on with the answer: a cancel that was forgotten shows

    cancelled = answered = 0
    try:
        async with NatsBus.connect(server.url, name="node") as node, NatsBus.connect(server.url, name="asker") as asker:
            await node.answer(ReadLog, answer, node_id="node-1")
            for number in range(TRIES):
                asking = asyncio.create_task(ask(asker))
                for _ in range(number % SPINS):
                    await asyncio.sleep(0)
                told = asking.cancel()
                await asyncio.wait([asking])
                assert asking.cancelled() is told
                cancelled, answered = cancelled + told, answered + (not told)
    finally:
        server.stop()
    assert cancelled
    assert answered
