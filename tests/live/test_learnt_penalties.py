"""A locality penalty on its way over real servers: from steps of gangs to places and `explain`."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tests.live.test_gpu_models import Pool, on
from tests.support.builders import capacity
from tests.support.fleet import STEP_SECONDS, Fleet, Rank
from tests.support.gateway import Place, RunningGateway
from tests.support.nodes import ScriptedNode
from weft.domain.classes import JOB_CLASSES, WORKLOAD_LABEL
from weft.domain.job import Job, JobState
from weft.messages.nodes import ProgressSeen
from weft.messages.signals import GpuScore
from weft.variability.penalties import USUAL
from weftd.scheduler.refreshing import SCORES_SECONDS
from weftd.scorer import service
from weftd.scorer.settings import ScorerSettings

NODES = ("node-1", "node-2")
GPUS = 4
SLOW = 1.5  # between the penalty that is learnt and the usual one
ACROSS = 1.1  # how many times as long a step of the gang takes across nodes
SECOND = 0.05  # real time for a second of the test
SECONDS_MAX = 900


class Trained:
    """A pool of two nodes; the gangs that its scheduler starts report steps, which emulated GPUs make."""

    def __init__(self, servers: Place, pool: Pool) -> None:
        self.pool, self._servers = pool, servers
        self.fleet = Fleet(nodes=0)
        self.fleet.step_of = _step_seconds

    async def submit(self, job_id: str, *, workload: str, **fields: Any) -> Job:
        await self.pool.submit(job_id, labels={WORKLOAD_LABEL: workload}, **fields)
        return await self.pool.until(job_id, lambda job: job.state is JobState.RUNNING)

    async def end(self, job: Job) -> None:
        for allocation in job.held:
            node = next(node for node in self.pool.nodes if node.node_id == allocation.node_id)
            node.end((job.id, job.epoch, allocation.rank), 0)
        await self.pool.until(job.id, lambda job: job.state is JobState.SUCCEEDED)

    async def steps_until(self, *gangs: Job, so: Callable[[], Any]) -> None:
        """The gangs make steps, a second after the other, until `so` returns something true."""
        self.fleet.nodes = await self.pool.stores.gateway.nodes(pool="default")
        self.fleet.ranks = [Rank(gang, allocation) for gang in gangs for allocation in gang.held]
        async with AsyncExitStack() as stack:
            users = [f"{user}-{name}" for user in ("executor", "telemetry") for name in NODES]
            buses = {user: await stack.enter_async_context(self._servers.bus(user)) for user in users}
            for _ in range(SECONDS_MAX):
                await self.pool.round()
                self.fleet.now = self.pool.now - 1.0
                for message in self.fleet.tick():
                    user = "executor" if isinstance(message, ProgressSeen) else "telemetry"
                    await buses[f"{user}-{message.node_id}"].publish(message)
                await asyncio.sleep(SECOND)
                if await so():
                    return
        raise AssertionError(f"not after {SECONDS_MAX} seconds of steps")


def _step_seconds(rank: Rank) -> float:
    nodes = {one.node_id for one in rank.job.held}
    return STEP_SECONDS * (ACROSS if len(nodes) > 1 else 1.0)


@asynccontextmanager
async def scorer(servers: Place, pool: Pool) -> AsyncIterator[None]:
    """The service, whose clock is the test's."""
    stop = asyncio.Event()
    async with servers.bus("scorer") as bus:
        running = asyncio.create_task(
            service.run(ScorerSettings(), bus=bus, store=pool.stores.scorer, stop=stop, clock=lambda: pool.now)
        )
        try:
            yield
        finally:
            stop.set()
            await running


async def test_steps_of_gangs_decide_where_later_gangs_of_their_workload_run(servers: Place) -> None:
    """On each node, three of four GPUs take half as long again as the fourth. A pair on the two fast ones lies across
    nodes: that is slower than one node with the usual penalty, and faster with the one that its workload has shown."""
    await servers.stores.clear()
    async with servers.bus("scheduler") as bus:
        nodes = [ScriptedNode(name, capacity(gpus=GPUS)) for name in NODES]
        pool = Pool(servers.stores, bus, *nodes, now=time.time())
        trained = Trained(servers, pool)
        holders = [await trained.submit(f"j-hold-{name}", workload="hold", gpus=GPUS - 1) for name in NODES]
        across = await trained.submit("j-across", workload="resnet", replicas=2)
        assert on(*NODES)(across)
        for one in holders:
            await trained.end(one)
        within = await trained.submit("j-within", workload="resnet", replicas=2)
        assert len({one.node_id for one in within.held}) == 1

        async def stored() -> bool:
            return bool([one for one in await pool.stores.gateway.penalties(pool="default") if one.confidence > 0.5])

        async with scorer(servers, pool):
            await trained.steps_until(across, within, so=stored)
        (learnt,) = await pool.stores.gateway.penalties(pool="default")
        assert learnt.workload == "resnet"
        assert abs(learnt.penalty - ACROSS) < 0.05
        for one in (across, within):
            await trained.end(one)

        slow = [
            GpuScore(node_id=name, gpu_index=gpu, job_class=job_class, score=SLOW)
            for name in NODES
            for gpu in range(1, GPUS)
            for job_class in JOB_CLASSES
        ]
        await pool.stores.scorer.save_scores(slow, at=pool.now)
        for _ in range(round(SCORES_SECONDS) + 2):
            await pool.round()
        other = await trained.submit("j-other", workload="other", replicas=2)
        assert len({one.node_id for one in other.held}) == 1, "of this workload nothing is known"
        await trained.end(other)
        again = await trained.submit("j-again", workload="resnet", replicas=2)
        assert on(*NODES)(again)
        gateway = RunningGateway(servers)
        await gateway.start()
        async with gateway.client() as client:
            told = await client.explain(again.id)
        await gateway.stop()
        believed = told.numbers["penalty_learnt"]
        assert ACROSS - 0.05 <= believed < USUAL - 0.2
        assert f"(its workload was measured: {believed:.2f} across nodes)" in told.sentence
