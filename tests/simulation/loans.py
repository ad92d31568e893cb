"""A service whose load comes and goes beside training on all GPUs: what is lent, how soon, and that it comes back.

A scheduler may die meanwhile; nothing else goes wrong, so that what loans do can be told.
"""

import asyncio
from functools import partial
from typing import Any

import msgspec

from tests.simulation.history import dice
from tests.simulation.machine import DO, Plan
from tests.simulation.simulate import Variation, World
from tests.simulation.workload import Client
from tests.support.doubles.store import MemoryStore
from weft.domain.job import Cause, CauseCode, Job, JobState
from weft.messages.asks import AskKind, Scale

NODES, GPUS = 3, 4
GRACE_SECONDS = 5
RECLAIM_SECONDS_MAX = 30.0  # from the ask to the start of the last replica that it is for
BEGIN_SECONDS = 40.0
BACK_SECONDS_MAX = 240.0  # until training has all again: a minute for shares and notebooks, and its restart
STEP_SECONDS = 0.25


def beside_training(**shape: Any) -> Variation:
    """A life with training, a service, and loads by the seed."""
    usual = {"nodes": NODES, "gpus": GPUS, "gateways": 1, "nats_servers": 1, "scores": (1.0,), "sync_seconds": 1.0}
    return Variation(shape={**usual, "schedulers": 2, **shape}, live=_live)


async def _live(world: World) -> None:
    cluster, thrown = world.cluster, dice(world.seed, "loans")
    await cluster.let_clients_in()
    cluster.begin()
    await asyncio.sleep(6.0)
    client = world.client = world.make_client()
    for spec in _specs():
        world.specs[spec["name"]] = spec
        await client.submit(spec, keyed=True)
        await asyncio.sleep(2.0)
    await asyncio.sleep(BEGIN_SECONDS)
    load = _Load(world, client)
    await load.expect_full()
    dies_at = thrown.randrange(6) if world.seed % 2 else None
    for phase in range(6):
        if phase == dies_at:
            leader = next(one for one in cluster.services if one.name.startswith("scheduler") and one.life is not None)
            cluster.later(thrown.uniform(0.0, 8.0), partial(leader.kill, down_seconds=5.0))
        await load.should_be(thrown.randint(0, 6), dies=phase == dies_at)
        await asyncio.sleep(thrown.uniform(1.0, 90.0))
    await load.should_be(1)
    await load.expect_all_back()
    world.history.counts["loans"] += load.seen
    for job_id in sorted(cluster.witness.acknowledged):
        world.begin(client.ask(AskKind.CANCEL, job_id))
    await world.end()


class _Load:
    def __init__(self, world: World, client: Client) -> None:
        self._world = world
        self._client = client
        self._store: MemoryStore = world.cluster.database.store
        self.seen = 0  # loans, each replica once

    async def job(self, name: str) -> Job:
        jobs = await self._store.jobs(tenant=None)
        return next(job for job in jobs if job.name == name)

    async def expect_full(self) -> None:
        for name, count in (("chat", 1), ("live", 6), ("restarts", 3), ("whole", 1)):
            job = await self.job(name)
            if job.granted["worker"] != count:
                self._world.history.fail(f"{name} begins with {job.granted} of {count}")

    async def should_be(self, count: int, *, dies: bool = False) -> None:
        """Ask for so many replicas, as the autoscaler does, and wait for them."""
        job = await self.job("chat")
        cause = Cause(code=CauseCode.LOAD, sentence=f"{count} replicas are needed")
        scale = Scale(size={"worker": count}, epoch=job.epoch, cause=cause)
        known = {(loan.lender, loan.rank) for loan in job.loans}
        began = self._world.loop.time()
        await self._client.ask(AskKind.SCALE, job.id, scale=scale)
        alive = self._world.cluster.witness.alive
        most = RECLAIM_SECONDS_MAX + (40.0 if dies else 0.0)
        while sum(key.job_id == job.id for key in alive) < count:
            await asyncio.sleep(STEP_SECONDS)
            if (took := self._world.loop.time() - began) > most:
                has = [await self.job(name) for name in ("chat", "live", "restarts", "whole")]
                told = ", ".join(f"{one.name} {one.state} {one.granted}" for one in has)
                self._world.history.fail(f"late: no {count} replicas {took:.1f} s after they were asked for: {told}")
                return
        took = self._world.loop.time() - began
        self._world.history.note("loans", f"{count} replicas after {took:.2f} s")
        counts = self._world.history.counts
        counts["slowest load, ms"] = max(counts["slowest load, ms"], round(1000 * took))
        self.seen += len({(loan.lender, loan.rank) for loan in (await self.job("chat")).loans} - known)

    async def expect_all_back(self) -> None:
        """Training has again all that it should have, nothing is owed, and no job was lost for ever."""
        until = self._world.loop.time() + BACK_SECONDS_MAX
        while self._world.loop.time() < until:
            await asyncio.sleep(1.0)
            jobs = [await self.job(name) for name in ("live", "restarts", "whole")]
            if all(job.state is JobState.RUNNING and _has_all(job) for job in jobs):
                break
        else:
            told = ", ".join(f"{job.name} {job.state} {job.granted} of {job.wanted}" for job in jobs)
            self._world.history.fail(f"not paid back: {told}")
        chat = await self.job("chat")
        owed = [loan for loan in chat.loans if loan.rank not in {one.rank for one in chat.held}]
        if owed:
            self._world.history.fail(f"still owed, without a replica: {owed}")
        if any(job.attempts for job in jobs):
            self._world.history.fail("a job is blamed for what it lent")


def _specs() -> list[dict[str, Any]]:
    """All GPUs are in use: 1 by the service, 6 by live training, 3 by training that restarts, 2 by whole jobs."""
    stubborn = {"seconds": None, "on_term": None}  # it takes all its grace
    live, restarts = {"resize": {"how": "live"}}, {"resize": {"how": "restart"}, "checkpoints": {"on_stop": True}}
    return [
        _spec("chat", {"min": 0, "want": 1, "max": 6}, {"seconds": None}, kind="inference", service={"start": "1h"}),
        _spec("live", {"min": 2, "want": 6, "max": 6}, stubborn, **live),
        _spec("restarts", {"min": 1, "want": 3, "max": 3}, stubborn, **restarts),
        _spec("whole", {"want": 1}, stubborn, priority=-5),
        _spec("stays", {"want": 1}, stubborn, preemptible=False),
    ]


def _spec(name: str, replicas: dict[str, int], does: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "kind": "training",
        "command": ["true"],
        "env": {DO: msgspec.json.encode(Plan(tries=(does,))).decode()},
        "roles": {"worker": {"replicas": replicas, "gpus": 1, "cpus": 1.0, "memory": "1GiB"}},
        "grace": f"{GRACE_SECONDS}s",
        **fields,
    }


def _has_all(job: Job) -> bool:
    """Has the job all that it should have? It may have more on GPUs that idle."""
    return all(job.granted[role] >= count for role, count in job.wanted.items())
