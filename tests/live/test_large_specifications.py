"""One tenant queues the largest specifications, and sends the largest updates: the cost for others and the history."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support import postgres
from tests.support.builders import capacity, spec
from tests.support.doubles.bus import MemoryBus
from tests.support.nodes import ScriptedNode
from weft.domain.job import JobState
from weft.domain.tenants import Allowance
from weft.messages.asks import AskKind, Update
from weft.store import LargeAskWaitsError, TenantFullError
from weftd.scheduler.counters import Counters
from weftd.scheduler.leadership import Leadership
from weftd.scheduler.scheduler_loop import SchedulerLoop
from weftd.scheduler.thinking.core import Scheduler
from weftd.scheduler.thinking.core_settings import Settings
from weftd.scheduler.thinking.record.history import JournalPace

LARGE = 60  # jobs, each with an environment of so many bytes
ENVIRONMENT_BYTES = 960_000
TURNS = 40


class Pool:
    """One leader's desk over a real Postgres, and one node; time is the test's."""

    def __init__(self, stores: postgres.Stores, pace: JournalPace | None = None) -> None:
        self.stores = stores
        self.now = 1_700_000_000.0
        self.node = ScriptedNode("node-1", capacity(gpus=2, cpus=64.0))
        self.leadership = Leadership(
            name="default", holder="me", store=stores.scheduler, clock=lambda: self.now, leader_seconds=1e9
        )
        self.scheduler_loop = SchedulerLoop(
            core=Scheduler(pool="default", settings=Settings(settle_seconds=0.0)),
            store=stores.scheduler,
            bus=MemoryBus(),
            leadership=self.leadership,
            clock=lambda: self.now,
            counters=Counters(),
            pace=pace,
        )
        self.jobs = 0

    async def submit(self, *, large: bool = False) -> str:
        self.jobs += 1
        job_id = f"j-{self.jobs}"
        env = large_environment() if large else {}
        wanted = spec(f"job-{self.jobs}", gpus=4 if large else 0, env=env, role={"cpus": 0.1, "memory": "64MiB"})
        await self.stores.gateway.submit(
            wanted, job_id=job_id, tenant="large" if large else "small", key=None, at=self.now
        )
        return job_id

    async def service(self) -> str:
        """A service that waits."""
        self.jobs += 1
        job_id = f"j-{self.jobs}"
        role = {"server": {"gpus": 4, "replicas": {"min": 1, "want": 1, "max": 2}}}
        made = spec(f"job-{self.jobs}", kind="inference", service={"ready": "/"}, roles=role)
        await self.stores.gateway.submit(made, job_id=job_id, tenant="large", key=None, at=self.now)
        return job_id

    async def update(self, job_id: str, allowance: Allowance | None = None) -> None:
        await self.stores.gateway.ask(
            AskKind.UPDATE,
            subject_id=job_id,
            pool="default",
            tenant="large",
            at=self.now,
            update=Update(env=large_environment()),
            allowance=allowance,
        )

    async def cycle(self) -> float:
        """How long it took."""
        self.now += 1.0
        await self.leadership.beat()
        self.scheduler_loop.asked()
        began = time.perf_counter()
        await self.scheduler_loop.cycle()
        return time.perf_counter() - began

    async def placed(self) -> float:
        """How long it takes until a small job that is submitted now is placed."""
        job_id = await self.submit()
        began = time.perf_counter()
        for _ in range(TURNS):
            await self.cycle()
            job = await self.stores.gateway.job(job_id)
            assert job is not None
            if job.state is JobState.PLACED:
                return time.perf_counter() - began
        raise AssertionError(f"{job_id} still waits")

    async def sync(self) -> None:
        waiting = asyncio.ensure_future(self.scheduler_loop.report(self.node.report()))
        await asyncio.sleep(0)
        await self.cycle()
        answered = await waiting
        assert answered is not None
        assert not answered.refused
        self.node.hear(answered.jobs, now=self.now, leader=answered.leader)

    async def history_bytes(self) -> int:
        found = await self.stores.owner.fetchval("SELECT COALESCE(sum(octet_length(body)), 0) FROM decisions")
        return int(found)

    async def bytes_of(self, column: str) -> int:
        """The bytes of a column as text, such as `events.data`."""
        table, _, name = column.partition(".")
        return int(
            await self.stores.owner.fetchval(f"SELECT COALESCE(sum(octet_length({name}::text)), 0) FROM {table}")
        )


def large_environment() -> dict[str, str]:
    return {f"A{n}": os.urandom(ENVIRONMENT_BYTES // 60).hex() for n in range(30)}


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    async with postgres.embedded(tmp_path) as server, postgres.stores(server) as stores:
        made = Pool(stores, JournalPace(begin_bytes=100_000))
        await made.cycle()
        for _ in range(3):
            await made.sync()
        yield made


async def test_a_queue_of_large_specifications_delays_nobody_and_fills_no_history(pool: Pool) -> None:
    at_rest = sorted([await pool.placed() for _ in range(10)])[5]
    for _ in range(LARGE):
        await pool.submit(large=True)
    before = await pool.history_bytes()
    for _ in range(LARGE // 10):
        await pool.cycle()
    beside = sorted([await pool.placed() for _ in range(10)])[5]
    assert await pool.history_bytes() - before < ENVIRONMENT_BYTES, "the history holds specifications"
    assert beside < max(5 * at_rest, 0.2), f"{beside:.3f} s beside them, {at_rest:.3f} s at rest"


@pytest.mark.nightly
async def test_a_leader_that_begins_with_large_specifications_has_all_of_them(pool: Pool) -> None:
    large = [await pool.submit(large=True) for _ in range(LARGE)]
    for _ in range(LARGE):
        await pool.cycle()
        if set(large) <= pool.scheduler_loop.core.cluster_state.jobs.keys():
            break
    another = Pool(pool.stores)
    another.now = pool.now
    await pool.leadership.resign()
    await another.cycle()
    assert set(large) <= another.scheduler_loop.core.cluster_state.jobs.keys()
    assert len(await pool.stores.scheduler.open_jobs(pool="default")) == len(large)


@pytest.mark.nightly
async def test_updates_of_services_are_stored_once_and_delay_nobody(pool: Pool) -> None:
    at_rest = sorted([await pool.placed() for _ in range(10)])[5]
    services = [await pool.service() for _ in range(LARGE)]
    await pool.cycle()
    before = await pool.history_bytes()
    for job_id in services:
        await pool.update(job_id)
    async with asyncio.timeout(60):
        while await pool.bytes_of("asks.update"):
            await pool.cycle()
            await asyncio.sleep(0.02)  # after each large update others go first
    beside = sorted([await pool.placed() for _ in range(10)])[5]
    updates = LARGE * ENVIRONMENT_BYTES
    assert 0.9 * updates < await pool.bytes_of("revisions.text") < 1.1 * updates
    held = [await pool.bytes_of(column) for column in ("asks.update", "jobs.revisions", "events.data")]
    assert sum(held) + await pool.history_bytes() - before < ENVIRONMENT_BYTES, f"texts of updates in {held}"
    assert beside < max(5 * at_rest, 0.2), f"{beside:.3f} s beside them, {at_rest:.3f} s at rest"


async def test_updates_beyond_what_a_tenant_may_have_are_refused_and_a_leader_loads_the_others(pool: Pool) -> None:
    services = [await pool.service() for _ in range(4)]
    await pool.cycle()
    most = Allowance(spec_bytes_max=9 * ENVIRONMENT_BYTES // 2)
    refused = 0
    for number in range(LARGE):
        try:
            await pool.update(services[number // 2 % len(services)], most)
        except (LargeAskWaitsError, TenantFullError) as error:
            refused += isinstance(error, TenantFullError)
            await pool.cycle()
    assert refused > 5
    assert await pool.bytes_of("asks.update") + await pool.bytes_of("revisions.text") < 5 * ENVIRONMENT_BYTES
    for _ in range(TURNS):
        await pool.cycle()
    another = Pool(pool.stores)
    another.now = pool.now
    await pool.leadership.resign()
    await another.cycle()
    found = [another.scheduler_loop.core.cluster_state.jobs[job_id].revisions for job_id in services]
    assert [len(one[-1].env or {}) for one in found] == [30] * len(services)
