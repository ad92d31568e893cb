"""The reallocator on a real NATS and a real Postgres: a request for a service at zero becomes an ask."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.builders import spec
from tests.support.nats_server import NatsServer
from tests.support.postgres import Stores, embedded, stores
from tests.support.service_loads import served, told
from tests.support.steps import go
from weft.bus.nats import NatsBus
from weft.domain.job import Job, JobEvent, Placement
from weft.domain.lease import Lease
from weft.messages.asks import Ask, AskKind, AskStored, Scale
from weft.messages.signals import PoolReviewed
from weft.service.clock import steady
from weftd.reallocator import service
from weftd.reallocator.settings import ReallocatorSettings

AT = 1_700_000_000.0


@asynccontextmanager
async def reallocator(server: NatsServer, of: Stores, **settings: Any) -> AsyncIterator[None]:
    stop = asyncio.Event()
    async with NatsBus.connect(server.url, name="reallocator") as bus:
        running = asyncio.create_task(
            service.run(ReallocatorSettings(**settings), bus=bus, store=of.reallocator, stop=stop, clock=steady())
        )
        try:
            yield
        finally:
            stop.set()
            await running


async def at_zero(of: Stores, lease: Lease, job_id: str) -> Job:
    """A service that runs with no replica."""
    wanted = spec(
        "chat",
        kind="inference",
        service={"concurrency": 1},
        objective={"latency": "1s", "percentile": 99, "rate": 10},
        roles={"worker": {"replicas": {"min": 0, "want": 0, "max": 8}}},
    )
    await of.gateway.submit(wanted, job_id=job_id, tenant="alice", key=None, at=AT)
    (job,) = await of.scheduler.admit(lease, load=0, pool="default", limit=10)
    job = await go(of.scheduler, lease, job, JobEvent.PLACED, at=AT, placement=Placement(allocations=()))
    job = await go(of.scheduler, lease, job, JobEvent.STARTING, at=AT)
    return await go(of.scheduler, lease, job, JobEvent.STARTED, at=AT)


async def asks(of: Stores) -> list[Ask]:
    return [ask for ask in await of.scheduler.asks(pool="default", limit=1000) if ask.kind is AskKind.SCALE]


async def until(found: Callable[[], Any], seconds: float = 60.0) -> Any:
    for _ in range(round(seconds / 0.05)):
        if value := await found():
            return value
        await asyncio.sleep(0.05)
    raise AssertionError(f"nothing was found within {seconds:g} s")


async def test_requests_for_a_hundred_services_at_zero_become_a_hundred_asks_that_the_scheduler_hears_of(
    server: NatsServer, tmp_path: Path
) -> None:
    async with embedded(tmp_path) as database, stores(database) as of, NatsBus.connect(server.url, name="t") as bus:
        lease = await of.scheduler.take_lease("default", holder="t", seen=None)
        assert lease is not None
        jobs = [await at_zero(of, lease, f"j-{number}") for number in range(100)]
        heard: list[AskStored] = []

        async def hear(stored: AskStored) -> None:
            heard.append(stored)

        await bus.subscribe(AskStored, hear)
        async with reallocator(server, of, serving_seconds=30.0):
            seq, asked = 0, await asks(of)
            async with asyncio.timeout(25):  # without news it looks again half a minute after its first look
                while not asked:
                    seq += 1
                    await bus.publish(told(*(served(job.id, arrived=1, queued=1) for job in jobs), seq=seq))
                    await asyncio.sleep(0.2)
                    asked = await asks(of)
            assert {ask.subject_id for ask in asked} == {job.id for job in jobs}, "all in one statement"
            assert {ask.at for ask in asked} == {asked[0].at}
            assert asked[0].scale is not None
            assert asked[0].scale.size == {"worker": 1}
            assert asked[0].scale.instead_of == {"worker": 0}
            await bus.publish(told(*(served(job.id, arrived=2, queued=2) for job in jobs), seq=seq + 1))
            await asyncio.sleep(0.5)
            assert len(await asks(of)) == 100, "one ask at a time"
        assert heard


async def test_a_reallocator_that_is_off_asks_for_nothing_and_one_that_advises_tells_what_cannot_be_kept(
    server: NatsServer, tmp_path: Path
) -> None:
    async with embedded(tmp_path) as database, stores(database) as of, NatsBus.connect(server.url, name="t") as bus:
        lease = await of.scheduler.take_lease("default", holder="t", seen=None)
        assert lease is not None
        job = await at_zero(of, lease, "j-1")
        job = await go(of.scheduler, lease, job, JobEvent.SCALED, at=AT, size={"worker": 3})
        reviews: list[PoolReviewed] = []

        async def hear(reviewed: PoolReviewed) -> None:
            reviews.append(reviewed)

        await bus.subscribe(PoolReviewed, hear)

        async def sentences() -> list[str]:
            return [one.sentence for reviewed in reviews for one in reviewed.findings if one.code == "unattainable"]

        for mode, seconds in (("off", 1.5), ("advise", 60.0)):
            async with reallocator(server, of, serving=mode, serving_seconds=0.2, review_seconds=0.5):
                for seq in range(round(seconds / 0.25)):
                    await bus.publish(told(served(job.id, arrived=seq, queued=5), seq=seq, boot=mode))
                    await asyncio.sleep(0.25)
                    if await sentences():
                        break
            assert await asks(of) == []
            assert bool(await sentences()) is (mode == "advise")
        assert (await sentences())[0] == "chat cannot keep its objective: it needs 3 replicas and has 0"


async def test_the_store_keeps_one_ask_of_a_service_and_a_user_s_beside_it(tmp_path: Path) -> None:
    async with embedded(tmp_path) as database, stores(database) as of:
        lease = await of.scheduler.take_lease("default", holder="t", seen=None)
        assert lease is not None
        job = await at_zero(of, lease, "j-1")
        found = await of.reallocator.services(pool="default")
        assert [(one.id, one.granted) for one in found] == [("j-1", {"worker": 0})]
        assert await of.reallocator.services(pool="default", known={"j-1": found[0]}) == found
        assert await of.reallocator.services(pool="other") == []
        scale = Scale(size={"worker": 2}, instead_of={"worker": 0})
        assert await of.reallocator.ask_sizes({"j-1": scale}, pool="default", at=AT) == ["j-1"]
        assert await of.reallocator.ask_sizes({"j-1": scale}, pool="default", at=AT) == []
        await of.gateway.ask(AskKind.SCALE, subject_id=job.id, pool="default", tenant="alice", at=AT, scale=scale)
        [ours] = await asks(of)  # a user's ask of the same service comes once ours is done
        await of.scheduler.drop_asks(lease, [ours.id])
        assert [ask.tenant for ask in await asks(of)] == ["alice"]
