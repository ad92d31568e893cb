"""Users and a reallocator that ask for other sizes of jobs by chance: more, fewer, and what makes no sense.

The reallocator asks the store itself, as nobody's process; the users ask as they ask for everything else.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

from tests.simulation.history import History
from tests.simulation.workload import Client, size_of
from tests.support.doubles.store import MemoryStore
from weft.domain.job import Cause, CauseCode, Job
from weft.domain.sizes import how_resized
from weft.domain.spec import ResizeHow
from weft.messages.asks import AskKind, Scale


class Scaler:
    """`specs`: the specifications as they were sent, by the name of the job."""

    def __init__(
        self,
        store: MemoryStore,
        dice: random.Random,
        *,
        specs: Mapping[str, dict[str, Any]],
        history: History,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._dice = dice
        self._specs = specs
        self._history = history
        self._clock = clock

    async def scale(self, client: Client, seconds: float) -> None:
        """For so long, every few seconds; in every fifth life not at all."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        if self._dice.random() < 0.2:
            return
        pace = self._dice.uniform(0.4, 5.0)
        while (pause := self._dice.expovariate(1.0 / pace)) + loop.time() < until:
            await asyncio.sleep(pause)
            jobs = [job for job in await self._store.jobs(tenant=None) if job.name in self._specs]
            able = [job for job in jobs if job.state.holding and how_resized(job.spec) is not ResizeHow.NEVER]
            if jobs:
                await self._ask(self._dice.choice(able if able and self._dice.random() < 0.9 else jobs), client)

    async def _ask(self, job: Job, client: Client) -> None:
        size = size_of(self._dice, self._specs[job.name])
        self._history.counts["scalings asked"] += 1
        if self._dice.random() < 0.5:
            await client.ask(AskKind.SCALE, job.id, scale=Scale(size=size))
            return
        epoch = self._dice.choice([None, job.epoch, job.epoch, job.epoch - 1])
        cause = Cause(code=CauseCode.PARTITIONED, sentence="by chance")
        scales = {job.id: Scale(size=size, epoch=epoch, cause=cause)}
        if await self._store.ask_sizes(scales, pool="default", at=self._clock()):
            self._history.note("scaler", f"asks for {size} of {job.id}")
