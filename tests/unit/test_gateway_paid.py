"""What other processes do for a tenant is charged to it, and a submission over NATS waits in its lane."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp.test_utils import TestServer

from tests.support.builders import node, spec
from tests.support.doubles.bus import MemoryBus
from tests.support.doubles.store import MemoryStore
from tests.support.lives import Life
from weft.bus import RawRequest
from weft.domain.job import JobState
from weft.messages.asks import SubmitAnswered
from weft.messages.events import Event
from weft.messages.nodes import LogRead, ReadLog
from weft.store.accounts import Moment
from weftd.gateway import gateway as module
from weftd.gateway.api.logs import BROUGHT_SECONDS_PER_BYTE
from weftd.gateway.api.tokens import keep_file_token
from weftd.gateway.app import application
from weftd.gateway.gateway import AT_WORK_PER_TENANT_MAX, Gateway
from weftd.gateway.limits.cpu_budget import ASK_SECONDS, STORED_SECONDS_PER_BYTE, CpuBudgets
from weftd.gateway.service import answer_submit
from weftd.gateway.settings import GatewaySettings
from weftd.gateway.thinking.budgets import ProcessorBudget

ANSWER = aiohttp.ClientTimeout(total=20)
LOG_BYTES = 300_000


class Charged(CpuBudgets):
    """Lanes without a bound, so that no request waits. `of`: the seconds charged to each tenant."""

    def __init__(self, clock: "Times") -> None:
        super().__init__(ProcessorBudget(), clock=clock)
        self.of = defaultdict[str, float](float)

    def charge(self, tenant: str, seconds: float) -> None:
        self.of[tenant] += seconds
        super().charge(tenant, seconds)


class Times:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 2_000_000_000.0

    def __call__(self) -> float:
        return self.now


class SlowStore(MemoryStore):
    """Half a second is gone before it knows how things were, or what happened to a tenant's jobs."""

    def __init__(self, clock: Times) -> None:
        super().__init__()
        self._clock = clock

    async def told_until(self, moment: Moment) -> list[Event]:
        self._clock.now += 0.5
        return await super().told_until(moment)

    async def events(self, *, tenant: str | None = None, **asked: Any) -> list[Event]:
        self._clock.now += 0.0 if tenant is None else 0.5
        return await super().events(tenant=tenant, **asked)

    async def story(self, job_id: str, **asked: Any) -> list[Event]:
        self._clock.now += 0.5
        return await super().story(job_id, **asked)


def gateway_over(store: MemoryStore, clock: Times) -> Gateway:
    names = iter(range(1, 10_000))
    return Gateway(
        store=store,
        bus=MemoryBus(),
        now=clock,
        clock=clock,
        characters=lambda count: f"{next(names):0{count}}",
        settings=GatewaySettings(),
    )


async def with_tenants(store: MemoryStore, *tenants: str) -> None:
    for tenant in tenants:
        await keep_file_token(store, f"weft_{tenant}", tenant=tenant, at=0.0)


async def with_node(store: MemoryStore) -> None:
    lease = await store.take_lease("default", holder="me", seen=None)
    assert lease is not None
    await store.save_node(lease, node(), event="joined", cause="")


@asynccontextmanager
async def http(gateway: Gateway, tenant: str) -> AsyncIterator[aiohttp.ClientSession]:
    server = TestServer(application(gateway))
    await server.start_server()
    headers = {"Authorization": f"Bearer weft_{tenant}"}
    async with aiohttp.ClientSession(str(server.make_url("")), timeout=ANSWER, headers=headers) as session:
        yield session
    await server.close()


async def submitted(gateway: Gateway, tenant: str) -> SubmitAnswered:
    headers = {"Authorization": f"Bearer weft_{tenant}"}
    return await answer_submit(gateway, RawRequest(payload=msgspec.json.encode(spec()), headers=headers))


async def world(*tenants: str) -> tuple[Gateway, Times]:
    clock = Times()
    store = SlowStore(clock)
    await with_tenants(store, *tenants)
    await with_node(store)
    return gateway_over(store, clock), clock


async def steps() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_look_at_the_past_is_charged_by_its_time_in_the_store() -> None:
    gateway, clock = await world("busy")
    gateway.cpu_budgets = charged = Charged(clock)
    async with http(gateway, "busy") as session:
        async with session.get("/v1/cluster") as answer:
            assert answer.status == 200
        assert charged.of["busy"] < 0.1
        async with session.get(f"/v1/cluster?at={clock.now:.0f}") as answer:
            assert answer.status == 200
    assert 0.5 <= charged.of["busy"] < 0.6


@pytest.mark.parametrize("path", ["events", "jobs/{job}/events"])
async def test_a_list_and_a_stream_of_events_are_charged_by_their_time_in_the_store(path: str) -> None:
    gateway, clock = await world("busy")
    gateway.cpu_budgets = charged = Charged(clock)
    path = f"/v1/{path}".format(job=(await submitted(gateway, "busy")).job_id)
    charged.of.clear()
    async with http(gateway, "busy") as session:
        async with session.get(path) as answer:
            assert len(await answer.json()) == 1
        assert 0.5 <= charged.of["busy"] < 0.6
        async with session.get(f"{path}?follow=1&after=0-0") as answer:
            await answer.content.readuntil(b"data:")
    assert 1.0 <= charged.of["busy"] < 1.2
    await gateway.feed.close()


async def test_an_ask_about_a_job_is_charged_and_one_that_is_refused_is_not() -> None:
    gateway, clock = await world("busy")
    gateway.cpu_budgets = charged = Charged(clock)
    job = (await submitted(gateway, "busy")).job_id
    async with http(gateway, "busy") as session:
        before = charged.of["busy"]
        async with session.post(f"/v1/jobs/{job}/cancel") as answer:
            assert answer.status == 202
        assert charged.of["busy"] - before == pytest.approx(ASK_SECONDS)
        before = charged.of["busy"]
        async with session.post("/v1/jobs/j-none/cancel") as answer:
            assert answer.status == 404
        assert charged.of["busy"] - before == pytest.approx(0.0)


async def test_a_log_is_charged_by_its_bytes_whole_or_in_part() -> None:
    life = Life(3)
    await life.live(150)
    job = next(one for one in await life.store.jobs(tenant=None, limit=1000) if one.state is JobState.RUNNING)
    assert job.placement is not None
    clock = Times()
    gateway = gateway_over(life.store, clock)
    gateway.cpu_budgets = charged = Charged(clock)
    await with_tenants(life.store, job.tenant)

    async def read(asked: ReadLog) -> LogRead:
        end = min(LOG_BYTES, asked.offset + asked.limit)
        return LogRead(offset=asked.offset, data=b"x" * (end - asked.offset), size=LOG_BYTES)

    for node_id in {each.node_id for each in job.placement.allocations}:
        await gateway.bus.answer(ReadLog, read, node_id=node_id)
    async with http(gateway, job.tenant) as session:
        async with session.get(f"/v1/jobs/{job.id}/logs") as answer:
            assert len(await answer.read()) == LOG_BYTES
        whole = charged.of[job.tenant]
        assert whole == pytest.approx(BROUGHT_SECONDS_PER_BYTE * LOG_BYTES)
        async with session.get(f"/v1/jobs/{job.id}/logs", headers={"Range": "bytes=0-99999"}) as answer:
            assert len(await answer.read()) == 100_000
    assert charged.of[job.tenant] - whole == pytest.approx(BROUGHT_SECONDS_PER_BYTE * 100_000)


async def test_a_submission_over_nats_is_charged_by_its_bytes_as_one_over_http_is() -> None:
    gateway, clock = await world("busy")
    gateway.cpu_budgets = charged = Charged(clock)
    body = msgspec.json.encode(spec())
    assert (await submitted(gateway, "busy")).created
    over_nats = charged.of["busy"]
    assert over_nats > ASK_SECONDS + STORED_SECONDS_PER_BYTE * len(body)
    async with http(gateway, "busy") as session, session.post("/v1/jobs", data=body) as answer:
        assert answer.status == 201
    assert charged.of["busy"] == pytest.approx(2 * over_nats)


async def test_a_tenant_that_had_its_part_waits_with_what_it_submits_over_nats_and_others_pass() -> None:
    gateway, clock = await world("busy", "quiet")
    assert (await submitted(gateway, "busy")).created
    gateway.cpu_budgets.charge("busy", 0.3)
    assert (await submitted(gateway, "quiet")).created
    waiting = asyncio.create_task(submitted(gateway, "busy"))
    await steps()
    assert not waiting.done()
    assert (await submitted(gateway, "quiet")).created
    clock.now += 60.0
    assert (await waiting).created


async def test_too_many_submissions_over_nats_that_wait_are_refused_and_those_of_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "OVER_NATS_WAITING_MAX", 4)
    gateway, _ = await world("busy", "quiet")
    assert (await submitted(gateway, "quiet")).created
    assert (await submitted(gateway, "busy")).created
    gateway.cpu_budgets.charge("busy", 1.0)
    waiting = [asyncio.create_task(submitted(gateway, "busy")) for _ in range(AT_WORK_PER_TENANT_MAX + 4)]
    await steps()
    assert not any(one.done() for one in waiting)
    refused = await submitted(gateway, "busy")
    assert "submissions over NATS at once" in refused.error
    assert refused.retry_after > 0
    assert (await submitted(gateway, "quiet")).created
    for one in waiting:
        one.cancel()
        with suppress(asyncio.CancelledError):
            await one
