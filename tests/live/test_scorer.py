"""The scorer on a real NATS and a real Postgres, as its own user there: what it hears, stores and says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.support.fleet import Fleet
from tests.support.nats_server import NatsServer
from tests.support.postgres import Stores, embedded, stores
from tests.support.steps import go, placement
from weft.bus.nats import NatsBus
from weft.domain.job import Job, JobEvent
from weft.messages.signals import GpuScore, GpusScored
from weft.service.clock import steady
from weftd.scorer import service
from weftd.scorer.settings import ScorerSettings

SLOW = ("node-1", 1)


@asynccontextmanager
async def scorers(server: NatsServer, of: Stores, *names: str, ahead: list[float]) -> AsyncIterator[None]:
    """Scorers whose clock can be put ahead, so that a minute need not be waited for."""
    clock = steady()
    async with AsyncExitStack() as stack:
        stop = asyncio.Event()
        running = []
        for name in names:
            bus = await stack.enter_async_context(NatsBus.connect(server.url, name=name))
            running.append(
                asyncio.create_task(
                    service.run(
                        ScorerSettings(),
                        bus=bus,
                        store=of.scorer,
                        stop=stop,
                        clock=lambda: clock() + ahead[0],
                        name=name,
                    )
                )
            )
        try:
            yield
        finally:
            stop.set()
            await asyncio.gather(*running)


async def run_on(of: Stores, fleet: Fleet) -> list[Job]:
    """A job on each GPU of the fleet, in the store and in the fleet."""
    lease = await of.scheduler.take_lease("default", holder="t", seen=None)
    assert lease is not None
    for node in fleet.nodes:
        await of.scheduler.save_node(lease, node, event="joined", cause="joined")
    jobs = []
    for node_id, gpu in fleet.places:
        shown = fleet.run(f"j-{gpu}", [(node_id, (gpu,))])
        await of.gateway.submit(shown.spec, job_id=shown.id, tenant="alice", key=None, at=fleet.now)
        (job,) = await of.scheduler.admit(lease, load=0, pool="default", limit=10)
        job = await go(of.scheduler, lease, job, JobEvent.PLACED, at=fleet.now, placement=placement((node_id, gpu)))
        job = await go(of.scheduler, lease, job, JobEvent.STARTING, at=fleet.now)
        jobs.append(await go(of.scheduler, lease, job, JobEvent.STARTED, at=fleet.now))
    for rank, job in zip(fleet.ranks, jobs, strict=True):
        rank.job = job
    return jobs


async def test_a_slow_gpu_is_found_stored_and_remembered_by_another_scorer(server: NatsServer, tmp_path: Path) -> None:
    fleet = Fleet(gpus=4, seed=5)
    fleet.slow = {SLOW: 1.4}
    said: list[GpuScore] = []

    async def hear(message: GpusScored) -> None:
        said.extend(message.scores)

    async def of_slow(of: Stores) -> GpuScore:
        found = await of.gateway.scores(pool="default")
        return next(one for one in found if (one.node_id, one.gpu_index, one.job_class) == (*SLOW, "compute"))

    async with embedded(tmp_path / "pg") as postgres, stores(postgres) as of:
        await run_on(of, fleet)
        async with NatsBus.connect(server.url, name="nodes") as nodes:
            await nodes.subscribe(GpusScored, hear)
            ahead = [0.0]

            async def live(seconds: float) -> None:
                """Time that passes ten times as fast: ten seconds of samples in each."""
                for _ in range(round(seconds)):
                    for message in fleet.tick():
                        await nodes.publish(message)
                    ahead[0] += 0.9
                    await asyncio.sleep(0.1)

            async with scorers(server, of, "one", ahead=ahead):
                await asyncio.sleep(6)
                await live(150)
                found = await of_slow(of)
                assert found.score > 1.3
                assert found.source == "jobs"
                assert found.samples > 1
                (curve,) = await of.gateway.curves(pool="default", subjects=["workload:resnet"])
                assert curve.points[0].replicas == 1
            count = len(said)
            assert count >= 12
            async with scorers(server, of, "another", ahead=ahead):
                await asyncio.sleep(8)
                assert await of_slow(of) == found, "what was measured is not forgotten"
                assert len(said) == count
