"""Jobs on GPUs of two models over a real NATS and a real Postgres, by the reallocator and the scheduler as they are."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.builders import capacity, spec
from tests.support.nats_server import NatsServer
from tests.support.nodes import ScriptedNode
from tests.support.postgres import Stores, embedded, stores
from weft.bus.nats import NatsBus
from weft.domain.job import CauseCode, Job, JobEvent, JobState
from weft.messages.asks import AskStored
from weft.messages.signals import Curve, CurvePoint
from weftd.reallocator import service
from weftd.reallocator.settings import ReallocatorSettings
from weftd.scheduler.counters import Counters
from weftd.scheduler.leadership import Leadership
from weftd.scheduler.scheduler_loop import SchedulerLoop
from weftd.scheduler.thinking.core import Scheduler
from weftd.scheduler.thinking.core_settings import Settings

AT = 1_700_000_000.0
LATER = AT + 100_000.0  # after every cool-down
ROUNDS_MAX = 100
OLD, NEW = "node-1", "node-2"


class Pool:
    """The nodes that a test plays, and their scheduler; time is the test's."""

    def __init__(self, of: Stores, bus: NatsBus, *nodes: ScriptedNode, now: float = AT) -> None:
        self.stores, self.now = of, now
        self.nodes = nodes
        self.leadership = Leadership(
            name="default", holder="scheduler-1", store=of.scheduler, clock=lambda: self.now, leader_seconds=60.0
        )
        self.scheduler_loop = SchedulerLoop(
            core=Scheduler(pool="default", settings=Settings(settle_seconds=0.0)),
            store=of.scheduler,
            bus=bus,
            leadership=self.leadership,
            clock=lambda: self.now,
            counters=Counters(),
        )

    async def hear(self, told: AskStored) -> None:
        assert told.pool == "default"
        self.scheduler_loop.asked()

    async def round(self) -> None:
        """Both nodes report, and are answered."""
        waiting = [asyncio.ensure_future(self.scheduler_loop.report(node.report())) for node in self.nodes]
        await asyncio.sleep(0.02)  # for what the servers deliver meanwhile
        self.now += 1.0
        await self.leadership.beat()
        await self.scheduler_loop.cycle()
        for node, answer in zip(self.nodes, await asyncio.gather(*waiting), strict=True):
            if answer is not None:
                node.take(answer)

    async def until(self, job_id: str, so: Callable[[Job], bool]) -> Job:
        job = None
        for _ in range(ROUNDS_MAX):
            await self.round()
            job = await self.stores.gateway.job(job_id)
            if job is not None and so(job):
                return job
        raise AssertionError(f"{job_id} after {ROUNDS_MAX} rounds: {job}")

    async def submit(self, job_id: str, **fields: Any) -> None:
        await self.stores.gateway.submit(spec(**fields), job_id=job_id, tenant="alice", key=None, at=self.now)
        self.scheduler_loop.asked()


@asynccontextmanager
async def pool(tmp_path: Path, server: NatsServer) -> AsyncIterator[Pool]:
    """Four T4 on one node, four A100 on the other."""
    old, new = ScriptedNode(OLD, capacity(gpus=4, model="T4")), ScriptedNode(NEW, capacity(gpus=4, model="A100"))
    async with (
        embedded(tmp_path) as database,
        stores(database) as of,
        NatsBus.connect(server.url, name="scheduler") as bus,
    ):
        made = Pool(of, bus, old, new)
        await bus.subscribe(AskStored, made.hear)
        yield made


@asynccontextmanager
async def reallocator(server: NatsServer, of: Stores) -> AsyncIterator[None]:
    """Its clock is far ahead of all jobs, so that none of them cools down."""
    stop = asyncio.Event()
    settings = ReallocatorSettings(review_seconds=0.2, partition_seconds=1.0, partition_theta2=1.0)
    begin = asyncio.get_running_loop().time()

    def clock() -> float:
        return LATER + asyncio.get_running_loop().time() - begin

    async with NatsBus.connect(server.url, name="reallocator") as bus:
        running = asyncio.create_task(service.run(settings, bus=bus, store=of.reallocator, stop=stop, clock=clock))
        try:
            yield
        finally:
            stop.set()
            await running


def on(*nodes: str) -> Callable[[Job], bool]:
    """Does the job run on these nodes and no others?"""
    return lambda job: job.state is JobState.RUNNING and {one.node_id for one in job.held} == {*nodes}


def measured(job_id: str, **speeds: float) -> Curve:
    points = tuple(
        CurvePoint(model=model, replicas=count, cpus=float(count), speed=speed * count, windows=50, at=AT)
        for model, speed in speeds.items()
        for count in (1, 2, 4)
    )
    return Curve(subject=f"job:{job_id}", pool="default", points=points, at=AT)


async def test_an_elastic_job_is_moved_whole_to_the_model_on_which_it_is_faster(
    server: NatsServer, tmp_path: Path
) -> None:
    sizes = {"replicas": {"min": 2, "want": 4, "max": 4}}
    async with pool(tmp_path, server) as there:
        await there.submit("j-rigid", replicas=4, gpu_model=["H100", "A100"])
        await there.until("j-rigid", on(NEW))
        await there.submit("j-1", role=sizes, checkpoints={"on_stop": True})
        await there.until("j-1", on(OLD))
        there.nodes[1].end(("j-rigid", 0, 0), 0)
        for rank in range(1, 4):
            there.nodes[1].end(("j-rigid", 0, rank), 0)
        await there.until("j-rigid", lambda job: job.state is JobState.SUCCEEDED)
        await there.stores.scorer.save_curves([measured("j-1", T4=1.0, A100=3.0)])
        async with reallocator(server, there.stores):
            moved = await there.until("j-1", on(NEW))
        assert (moved.epoch, moved.granted, moved.gpu_model) == (1, {"worker": 4}, "A100")
        (scaled,) = await there.stores.gateway.story("j-1", events=[JobEvent.SCALED])
        assert b"worker 4 on GPUs of A100, by the partition planner" in bytes(scaled.data)
        assert CauseCode.PARTITIONED.encode() in bytes(scaled.data)


async def test_a_rigid_job_waits_for_a_model_and_a_memory_that_it_named_though_others_are_free(
    server: NatsServer, tmp_path: Path
) -> None:
    async with pool(tmp_path, server) as there:
        await there.submit("j-0", gpus=3, gpu_model="A100")
        await there.until("j-0", on(NEW))
        await there.submit("j-1", gpus=2, gpu_model=["A100", "H100"], gpu_memory="16GiB")
        waits = await there.until("j-1", lambda job: job.waiting_for is not None)
        assert waits.waiting_for is not None
        assert waits.waiting_for.sentence.startswith("wants 2 GPUs of A100 or H100 of 16GiB or more on one node")
        there.nodes[1].end(("j-0", 0, 0), 0)
        await there.until("j-1", on(NEW))
