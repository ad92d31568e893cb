"""One stream for each page, over a real Postgres and a real NATS: a snapshot, what changes, and nothing of others."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from itertools import pairwise
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.support.gateway import Place, RunningGateway, until
from tests.support.gateway_world import SECONDS_MAX, World
from tests.support.steps import placement
from weft.client import Refused
from weft.domain.cluster import Drain
from weft.domain.job import Job, JobEvent
from weft.messages.live import LiveDelta, LiveJob, LiveNode, LiveSnapshot
from weft.messages.signals import GpuSample, HostSample, NodeSampled
from weftd.gateway.settings import GatewaySettings


class Page:
    """What an open page shows: the snapshot, kept up to date by the deltas as the contract says."""

    def __init__(self) -> None:
        self.snapshots = 0
        self.deltas: list[LiveDelta] = []
        self.first: LiveSnapshot | None = None
        self.nodes: dict[str, LiveNode] = {}
        self.jobs: dict[str, LiveJob] = {}
        self.told: dict[str, Any] = {}
        self.raw = b""

    def take(self, told: LiveSnapshot | LiveDelta) -> None:
        if isinstance(told, LiveSnapshot):
            self.snapshots += 1
            self.first = told
            self.nodes = {node.id: node for node in told.nodes}
            self.jobs = dict(told.jobs)
            self.told = {name: getattr(told, name) for name in ("totals", "states", "waiting", "findings")}
        else:
            self.deltas.append(told)
            self.nodes |= {node.id: node for node in told.nodes}
            self.jobs |= told.jobs
            for gone in told.nodes_gone:
                del self.nodes[gone]
            for gone in told.jobs_gone:
                del self.jobs[gone]
            others = {name: getattr(told, name) for name in self.told}
            self.told |= {name: value for name, value in others.items() if value is not None}
        self.raw += msgspec.json.encode(told)


@asynccontextmanager
async def opened(world: World, tenant: str) -> AsyncIterator[Page]:
    page = Page()

    async def read() -> None:
        client = {"alice": world.alice, "bob": world.bob, "admin": world.admin}[tenant]
        async with aclosing(client.live()) as stream:
            async for told in stream:
                page.take(told)

    reading = asyncio.create_task(read())
    try:
        await until(lambda: page.snapshots or reading.done())
        yield page
    finally:
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading


def holders(page: Page, node: str = "node-1", gpu: int = 0) -> list[str]:
    return [holder.job for holder in page.nodes[node].gpus[gpu].holders]


async def test_a_page_is_told_of_a_job_from_its_start_to_its_end(world: World) -> None:
    async with opened(world, "alice") as page:
        assert page.first is not None
        assert (page.first.tenant, page.first.admin) == ("alice", False)
        assert sorted(page.nodes) == ["node-1", "node-2"]
        job = await world.running(name="train")
        await until(lambda: job.id in page.jobs and page.jobs[job.id].state == "running")
        shown = page.jobs[job.id]
        assert (shown.name, shown.tenant, shown.mine, shown.gpus) == ("train", "alice", True, 1)
        assert holders(page) == [job.id]
        assert page.told["totals"].gpus_held == 1
        assert page.told["states"] == {"running": 1}
        await world.go(job, JobEvent.SUCCEEDED)
        await until(lambda: job.id not in page.jobs)
        assert holders(page) == []
        assert page.told["totals"].gpus_held == 0
        assert page.told["states"] == {}
        assert page.snapshots == 1


async def test_a_tenant_learns_no_name_of_another_by_snapshot_or_delta(world: World) -> None:
    secret, later = "secret-name", "later-secret"
    job = await world.running(name=secret)
    async with opened(world, "bob") as page:
        await until(lambda: holders(page) == [job.id])  # its id is told, with the GPU that it holds
        other = await world.running(name=later, placement=placement(("node-2", 0)), labels={"team": "secret-team"})
        await world.submitted(name="waits-in-secret")
        await until(lambda: holders(page, "node-2") == [other.id])
        await world.go(job, JobEvent.FAILED)
        await until(lambda: holders(page) == [])
        assert page.jobs == {}
        assert page.told["states"] == page.told["waiting"] == {}
        assert page.told["findings"] == ()
        for word in (b"secret", b"alice"):
            assert word not in page.raw, word
    async with opened(world, "admin") as page:
        assert page.jobs[other.id].name == later
        assert not page.jobs[other.id].mine


def shows(page: Page, used: float) -> bool:
    return page.nodes["node-1"].gpus[0].used == used


async def test_samples_are_told_as_they_come_and_no_number_goes_beyond_the_gpu(world: World) -> None:
    async with opened(world, "bob") as page, world.place.bus("telemetry-node-1") as bus:
        memory = page.nodes["node-1"].gpus[0].memory
        host = HostSample(cpus=8, memory_total=1 << 34, memory_used=0)
        for used, held, shown in ((0.5, memory // 2, 0.5), (7e9, memory * 9, 1.0), (-3.0, 0, 0.0)):
            gpu = GpuSample(index=0, uuid="GPU-0", model="H100", utilisation=used, memory_used=held)
            sample = NodeSampled(node_id="node-1", pool="default", at=time.time(), host=host, gpus=(gpu,), runs=())
            await bus.publish(sample)
            await until(partial(shows, page, shown))
            assert 0 <= (page.nodes["node-1"].gpus[0].memory_used or 0) <= memory


async def test_deltas_come_no_faster_than_each_quarter_of_a_second_and_say_only_what_changed(world: World) -> None:
    async with opened(world, "alice") as page:
        jobs = [await world.submitted() for _ in range(4)]
        for index, job in enumerate(jobs[:2]):
            await world.go(job, JobEvent.PLACED, placement=placement(("node-1", index)))
        await until(lambda: len(page.jobs) == 2)
        await asyncio.sleep(1.0)
    assert all(later.at - earlier.at > 0.2 for earlier, later in pairwise(page.deltas))
    assert not [node.id for delta in page.deltas for node in delta.nodes if node.id == "node-2"]


async def test_the_states_of_nodes_are_told_apart(world: World) -> None:
    async with opened(world, "bob") as page:
        scheduler = world.place.stores.scheduler
        known = {node.id: node for node in await scheduler.nodes()}
        drained = msgspec.structs.replace(known["node-1"], drain=Drain())
        await scheduler.save_node(world.lease, drained, event="drained", cause="drained by a test")
        lost = msgspec.structs.replace(known["node-2"], ready=False)
        await scheduler.save_node(world.lease, lost, event="lost", cause="it was silent")
        await until(lambda: page.nodes["node-1"].state == "drained" and page.nodes["node-2"].state == "lost")
        assert page.told["totals"].nodes_ready == 0
        await scheduler.save_node(world.lease, known["node-1"], event="resumed", cause="a test")
        silent = msgspec.structs.replace(known["node-2"], ready=True, seen_at=time.time() - 60)
        await scheduler.save_node(world.lease, silent, event="returned", cause="a test")
        await until(lambda: page.nodes["node-1"].state == "ready" and page.nodes["node-2"].state == "silent")
        assert (page.nodes["node-2"].silent_seconds or 0) >= 60


@pytest.mark.parametrize("odd", ["", "0-0", "99999999999999999-1", "x", "-1", "1" * 3000, "%00", "snapshot"])
async def test_whatever_a_reader_says_it_had_it_begins_with_a_snapshot(world: World, odd: str) -> None:
    headers = {"Authorization": f"Bearer {world.tokens['alice']}", "Last-Event-ID": odd, "Accept": "text/event-stream"}
    async with asyncio.timeout(SECONDS_MAX), world.http.get(f"{world.gateway.url}/v1/live", headers=headers) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/event-stream"
        while not (line := await answer.content.readline()).startswith(b"event:"):
            pass
        assert line == b"event: snapshot\n"


async def test_the_snapshot_alone_is_json(world: World) -> None:
    job = await world.running()
    status, body, headers = await world.ask("GET", "/v1/live?follow=0")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert list(msgspec.json.decode(body, type=LiveSnapshot).jobs) == [job.id]


async def test_one_tenants_streams_are_bounded_and_leave_room_for_others(servers: Place, world: World) -> None:
    gateway = RunningGateway(servers, settings=GatewaySettings(streams_max=20, streams_per_tenant_max=8))
    await gateway.start()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def one(tenant: str) -> tuple[int, aiohttp.ClientResponse]:
            headers = {"Authorization": f"Bearer {world.tokens[tenant]}"}
            answer = await http.get(f"{gateway.url}/v1/live", headers=headers)
            return answer.status, answer

        async with asyncio.timeout(SECONDS_MAX):
            opened = await asyncio.gather(*(one("alice") for _ in range(20)))
            assert sorted(status for status, _ in opened) == [200] * 8 + [503] * 12
            opened.append(await one("bob"))
            assert opened[-1][0] == 200
            for _, answer in opened:
                answer.close()
    await gateway.stop()


async def test_a_revoked_token_ends_its_stream_and_no_other(world: World) -> None:
    made = await world.admin.make_token("alice", "page")
    async with opened(world, "bob") as page:
        headers = {"Authorization": f"Bearer {made.token}"}
        async with (
            asyncio.timeout(SECONDS_MAX),
            world.http.get(f"{world.gateway.url}/v1/live", headers=headers) as answer,
        ):
            assert answer.status == 200
            await world.admin.revoke("alice", "page")
            with pytest.raises((aiohttp.ClientError, ConnectionError)):
                await answer.content.read()
            status, _, _ = await world.ask("GET", "/v1/live", headers=headers)
            assert status == 401
        job = await world.running()
        await until(lambda: holders(page) == [job.id])


async def test_a_client_goes_on_with_a_snapshot_when_the_gateway_was_restarted(world: World) -> None:
    async with opened(world, "alice") as page:
        job = await world.submitted()
        await world.gateway.stop()
        await world.go(job, JobEvent.PLACED, placement=placement(("node-1", 0)))
        await world.gateway.start()
        await until(lambda: page.snapshots == 2)
        assert list(page.jobs) == [job.id]


async def test_while_the_store_is_away_streams_are_cut_and_then_begin_anew(world: World) -> None:
    """A page must not show for long as present what nobody knows any more."""
    async with opened(world, "alice") as page:
        world.gateway.store.away = True
        await asyncio.sleep(7.0)
        with pytest.raises(Refused) as refused:
            async with world.gateway.client(world.tokens["alice"], retry_seconds=0.0) as impatient:
                await anext(impatient.live())
        assert refused.value.status == 503
        world.gateway.store.away = False
        job = await world.running()
        await until(lambda: page.snapshots == 2 and list(page.jobs) == [job.id])


async def test_a_stopping_gateway_ends_its_streams(servers: Place, world: World) -> None:
    gateway = RunningGateway(servers)
    await gateway.start()
    headers = {"Authorization": f"Bearer {world.tokens['alice']}"}
    async with world.http.get(f"{gateway.url}/v1/live", headers=headers) as answer:
        assert answer.status == 200
        async with asyncio.timeout(SECONDS_MAX):
            await gateway.stop()
            with pytest.raises((aiohttp.ClientError, ConnectionError)):
                await answer.content.read()


async def test_a_job_on_several_nodes_and_one_with_a_share_hold_what_they_hold(world: World) -> None:
    job: Job = await world.running(
        roles={"worker": {"gpus": 1, "replicas": {"want": 2}}}, placement=placement(("node-1", 0), ("node-2", 1))
    )
    async with opened(world, "alice") as page:
        assert holders(page, "node-1", 0) == holders(page, "node-2", 1) == [job.id]
        assert page.nodes["node-1"].gpus[0].holders[0].share == 1.0
        assert page.jobs[job.id].replicas == 2
        assert page.nodes["node-1"].cpus_allocated > 0
