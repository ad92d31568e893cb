"""While nobody leads, nodes are told what the store says, and the store is asked once for all of them."""

import asyncio
from collections.abc import Sequence

from tests.support.builders import capacity
from tests.support.doubles.store import MemoryStore
from tests.support.nodes import ScriptedNode
from weft.domain.job import Job
from weft.messages.nodes import NodeDesired
from weft.store import StoreUnavailableError
from weftd.scheduler.store_outage import FRESH_SECONDS, StoreOutage

NODES = 100


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.read = 0
        self.away = False

    async def holding_jobs(self, *, pool: str) -> list[Job]:
        self.read += 1
        await asyncio.sleep(0)
        if self.away:
            raise StoreUnavailableError("on purpose")
        return await super().holding_jobs(pool=pool)


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.store = CountingStore()
        self.scheduler_loop = StoreOutage(pool="default", store=self.store, clock=lambda: self.now)
        self.nodes = [ScriptedNode(f"node-{number}", capacity(gpus=1)) for number in range(NODES)]

    async def ask_all(self) -> Sequence[NodeDesired | None]:
        return await asyncio.gather(*(self.scheduler_loop.answer(node.report()) for node in self.nodes))


async def test_all_who_ask_at_once_share_one_reading() -> None:
    world = World()
    assert all(answer is not None for answer in await world.ask_all())
    assert world.store.read == 1
    world.now += FRESH_SECONDS * 2
    await world.ask_all()
    assert world.store.read == 2


async def test_while_the_store_is_away_nobody_is_answered_and_it_is_not_asked_for_each() -> None:
    world = World()
    world.store.away = True
    assert set(await world.ask_all()) == {None}
    assert world.store.read == 1
    world.store.away, world.now = False, FRESH_SECONDS * 2
    assert all(answer is not None for answer in await world.ask_all())
