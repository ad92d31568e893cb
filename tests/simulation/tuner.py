"""A reallocator that asks for other limits by chance: more, less, from rank to rank, and what makes no sense.

It asks the store itself, as nobody's process: whatever else happens in a life is thrown with other dice.
"""

import asyncio
import random
from collections.abc import Callable

from tests.simulation.history import History
from tests.support.doubles.store import MemoryStore
from weft.domain.job import Cause, CauseCode, Job, JobState
from weft.messages.asks import RankTuning, Tune
from weft.store.tuning import Envelope

GIB = 1 << 30
CODES = (CauseCode.UPSCALED, CauseCode.RECLAIMED, CauseCode.REBALANCED, CauseCode.ROLLED_BACK, CauseCode.KEPT)
CPUS = (0.25, 0.5, 1.0, 2.0, 4.0, 9.0, 15.0)
MEMORY = (64 << 20, GIB, 8 * GIB, 40 * GIB)
NONSENSE = (RankTuning(rank=99, cpus=1.0), RankTuning(rank=0, cpus=-1.0), RankTuning(rank=0, memory=1))


class Tuner:
    def __init__(
        self, store: MemoryStore, dice: random.Random, *, history: History, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._dice = dice
        self._history = history
        self._clock = clock

    async def tune(self, seconds: float) -> None:
        """For so long, every few seconds; in every third life not at all."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        if self._dice.random() < 1 / 3:
            return
        pace = self._dice.uniform(0.5, 5.0)
        while (pause := self._dice.expovariate(1.0 / pace)) + loop.time() < until:
            await asyncio.sleep(pause)
            running = await self._store.jobs(tenant=None, states=[JobState.RUNNING])
            if running:
                await self._ask(self._dice.choice(running))

    async def _ask(self, job: Job) -> None:
        assert job.placement is not None
        dice = self._dice
        ranks = tuple(
            RankTuning(
                rank=allocation.rank,
                cpus=dice.choice([None, *CPUS]),
                memory=dice.choice([None, None, *MEMORY]),
                egress=dice.choice([None, None, 2_500_000]),
            )
            for allocation in job.placement.allocations
            if dice.random() < 0.7
        )
        if dice.random() < 0.1:
            ranks = (*ranks, dice.choice(NONSENSE))
        epoch = job.epoch - (dice.random() < 0.05)
        tune = Tune(epoch=epoch, ranks=ranks, cause=Cause(code=dice.choice(CODES), sentence="by chance"))
        envelope = Envelope(job_id=job.id, pool=job.pool, epoch=job.epoch, state=b"{}")
        if await self._store.ask_tune(envelope, tune, at=self._clock()):
            self._history.note("tuner", f"asks for other limits of {job.id}")
            self._history.counts["tunings asked"] += 1
