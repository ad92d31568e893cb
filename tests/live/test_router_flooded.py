"""A node that tells a router of its replicas without end, beside one that does as it should."""

import asyncio
import time

import aiohttp

from tests.support.gateway import until
from tests.support.routers import Town
from weft.messages.serving import Endpoint, EndpointsSeen
from weftd.router.service import ENDPOINTS_APART_SECONDS


async def test_a_node_that_floods_the_gate_delays_no_other_and_has_no_say_in_what_is_not_its_own(
    there: Town, http: aiohttp.ClientSession
) -> None:
    job = await there.service(concurrency=8)
    first, second = await there.replica(0), await there.replica(1)
    await there.tell(first.endpoint(job))
    await there.known(job, 0)
    sent, over = 0, asyncio.Event()
    async with there.place.bus("executor-node-2") as bus:

        async def flood() -> None:
            """It claims a hundred replicas of the other node's service, each time other ones."""
            nonlocal sent
            while not over.is_set():
                ranks = range(100 + sent % 2, 200 + sent % 2)
                claimed = tuple(
                    Endpoint(job_id=job.id, epoch=job.epoch, rank=rank, port=9, ready=True) for rank in ranks
                )
                sent += 1
                await bus.publish(
                    EndpointsSeen(node_id="node-2", incarnation=1, seq=sent, at=time.time(), endpoints=claimed)
                )
                await asyncio.sleep(0)

        before, began = await handled(there, http), time.monotonic()
        flooding = asyncio.create_task(flood())
        await until(lambda: sent > 1000)
        for number in range(50):
            async with http.post(f"{there.url}/s/{job.id}/{number}", data=b"hello") as answer:
                assert (answer.status, (await answer.json())["rank"]) == (200, 0)
        await there.tell(second.endpoint(job))
        await there.known(job, 1)
        async with http.post(f"{there.url}/s/{job.id}/after", data=b"hello") as answer:
            assert (answer.status, (await answer.json())["rank"]) == (200, 1)
        over.set()
        await flooding
        heard, took = await handled(there, http) - before, time.monotonic() - began
    told = 1  # of the other node
    assert heard <= told + 2 + took / ENDPOINTS_APART_SECONDS
    assert sent - bus.counts["dropped"] > 3 * heard, "there was something to leave out"


async def handled(there: Town, http: aiohttp.ClientSession) -> int:
    """The messages of nodes that the gate took up so far."""
    async with http.get(f"http://127.0.0.1:{there.admin_port}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    counts = [
        line for line in lines if line.startswith("weft_router_handled_seconds_count") and "EndpointsSeen" in line
    ]
    return sum(int(float(line.rpartition(" ")[2])) for line in counts)
