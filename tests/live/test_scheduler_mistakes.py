"""A mistake of the scheduler that shows with one job, over a real Postgres: it ends there for its cause, others run."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support import postgres
from tests.support.builders import capacity, spec
from tests.support.doubles.bus import MemoryBus
from tests.support.nodes import ScriptedNode
from weft.domain.job import CauseCode, JobState
from weftd.scheduler.counters import Counters
from weftd.scheduler.leadership import Leadership
from weftd.scheduler.scheduler_loop import SchedulerLoop
from weftd.scheduler.thinking.core import Scheduler
from weftd.scheduler.thinking.core_settings import Settings
from weftd.scheduler.thinking.decide import lifecycle
from weftd.scheduler.thinking.record.replay import Replay

BAD, GOOD = "j-bad", "j-good"


class Pool:
    """One node, and one leader's desk after another; time is the test's."""

    def __init__(self, stores: postgres.Stores) -> None:
        self.stores = stores
        self.now = 1_700_000_000.0
        self.node = ScriptedNode("node-1", capacity(gpus=4))
        self.lead("scheduler-1")

    def lead(self, holder: str) -> None:
        def clock() -> float:
            return self.now

        store = self.stores.scheduler
        self.leadership = Leadership(name="default", holder=holder, store=store, clock=clock, leader_seconds=60.0)
        self.scheduler_loop = SchedulerLoop(
            core=Scheduler(pool="default", settings=Settings(settle_seconds=0.0)),
            store=store,
            bus=MemoryBus(),
            leadership=self.leadership,
            clock=clock,
            counters=Counters(),
        )

    async def sync(self) -> None:
        waiting = asyncio.ensure_future(self.scheduler_loop.report(self.node.report()))
        await asyncio.sleep(0)
        self.now += 1.0
        await self.leadership.beat()
        self.scheduler_loop.asked()
        await self.scheduler_loop.cycle()
        answer = await waiting
        if answer is not None:
            self.node.take(answer)

    async def submit(self, job_id: str) -> None:
        await self.stores.gateway.submit(spec(gpus=2), job_id=job_id, tenant="alice", key=None, at=self.now)

    async def state(self, job_id: str) -> JobState:
        job = await self.stores.gateway.job(job_id)
        assert job is not None
        return job.state


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[postgres.Stores]:
    async with postgres.embedded(tmp_path) as server, postgres.stores(server) as found:
        yield found


async def test_a_job_that_the_core_fails_to_decide_about_ends_and_the_next_leader_has_a_sound_pool(
    stores: postgres.Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(stores)
    await pool.submit(BAD)
    for _ in range(5):
        await pool.sync()
    assert await pool.state(BAD) is JobState.RUNNING
    right = lifecycle.follow

    def wrong(cluster_state: Any, job: Any, now: float) -> Any:
        if job.id == BAD:
            raise KeyError(job.id)
        return right(cluster_state, job, now)

    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "follow", wrong)
        await pool.submit(GOOD)
        for _ in range(12):
            await pool.sync()
    assert await pool.state(GOOD) is JobState.RUNNING
    assert await pool.state(BAD) is JobState.FAILED
    told = [event.data for event in await stores.gateway.story(BAD)]
    causes = [msgspec.json.decode(data)["cause"] for data in told]
    assert [cause["code"] for cause in causes[-2:]] == [CauseCode.DECISION_FAILED] * 2
    assert "KeyError in" in causes[-1]["sentence"]
    await pool.leadership.resign()
    pool.lead("scheduler-2")
    for _ in range(4):
        await pool.sync()
    pool.scheduler_loop.core.cluster_state.check()
    assert [key[0] for key in pool.node.live] == [GOOD]
    replay = Replay()
    for record in await stores.scheduler.history(pool="default", limit=100_000, bytes_max=1 << 40):
        if wanted := replay.lacks(record):
            replay.specify({job.id: job.spec for job in await stores.scheduler.jobs_of(wanted)})
        assert replay.feed(record) is None
