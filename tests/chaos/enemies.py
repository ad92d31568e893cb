"""The hostile tenant and the rogue node of one run."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.chaos.customers import Customers
from tests.chaos.hostile import TENANT, Hostile
from tests.chaos.misdeeds import Misdeed, misdeeds
from tests.chaos.rogue import Rogue
from tests.chaos.world import World
from weft.client import Client


class Enemies:
    """`lies` counts what the rogue node sent, by what it was about."""

    def __init__(self, made: World, hostile: Hostile, seed: int, misdeeds: list[Misdeed], *, there: bool) -> None:
        self.hostile = hostile
        self.misdeeds = misdeeds
        self.lies: Counter[str] = Counter()
        self._there = there
        self._seed = seed
        self._made = made

    @asynccontextmanager
    async def lying(self, *customers: Customers) -> AsyncIterator[None]:
        """The rogue node lies about the customers' jobs until the block ends."""
        if not self._there:
            yield
            return

        def jobs() -> list[str]:
            return [one.id for each in customers for one in each.submissions if one.ids]

        rogue = Rogue(self._made.nats_url, self._made.credentials, self._seed, jobs)
        self.lies = rogue.said
        lying = asyncio.create_task(rogue.lie())
        try:
            yield
        finally:
            failed = lying.done()
            lying.cancel()
            await asyncio.wait([lying])
            if failed:
                lying.result()


@asynccontextmanager
async def enemies_of(made: World, client: Client, seed: int, seconds: float, *, there: bool) -> AsyncIterator[Enemies]:
    """None of them does anything unless they are `there`: without fencing only the fences are looked at."""
    token = (await client.make_token(TENANT, "chaos")).token
    async with Client(made.url, token, retry_seconds=2.0, first_seconds=2.0) as own:
        hostile = Hostile(own, made.hostile_folder, seed)
        planned = misdeeds(seed, seconds, engine=made.engine is not None) if there else []
        yield Enemies(made, hostile, seed, planned, there=there)
