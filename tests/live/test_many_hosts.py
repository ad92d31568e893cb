"""Several schedulers that share pools, and several gateways behind one address, as processes over real servers."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from msgspec import structs

from tests.support.builders import capacity, spec
from tests.support.gateway import Place
from tests.support.gateway_process import gateway_process
from tests.support.nodes import ScriptedNode
from tests.support.scheduler_process import SchedulerProcess, scheduler_process
from weft.bus import NoAnswerError
from weft.client import Client
from weft.messages.http import EventView
from weft.messages.nodes import NodeDesired

POOLS = [f"site-{number}" for number in range(1, 7)]
SHARED = {"SCHEDULER_POOLS": ",".join(POOLS), "SCHEDULER_LEADER_SECONDS": "3", "SCHEDULER_EVEN_SECONDS": "1"}
SECONDS_MAX = 60.0

Leases = Mapping[str, tuple[str, int]]


async def leases(servers: Place) -> Leases:
    """Holder and epoch of each pool's lease."""
    rows = await servers.stores.owner.fetch("SELECT name, holder, epoch FROM leases WHERE name = ANY ($1)", POOLS)
    return {row["name"]: (row["holder"], row["epoch"]) for row in rows}


def parts(held: Leases, among: list[SchedulerProcess]) -> list[int]:
    """How many pools each of them leads."""
    return sorted(sum(one.holder in holder for holder, _ in held.values()) for one in among)


async def leases_when(servers: Place, true: Callable[[Leases], bool]) -> Leases:
    held: Leases = {}
    try:
        async with asyncio.timeout(SECONDS_MAX):
            while not true(held := await leases(servers)):  # noqa: ASYNC110 -- other processes write them
                await asyncio.sleep(0.05)
    except TimeoutError as error:
        raise TimeoutError(f"after {SECONDS_MAX:g} s: {held}") from error
    return held


def led(schedulers: list[SchedulerProcess]) -> Counter[tuple[str, int]]:
    """How often a scheduler began to lead each pool in each epoch, by their logs."""
    lines = [json.loads(line) for one in schedulers for line in one.log.read_text().splitlines()]
    return Counter((line["pool"], line["epoch"]) for line in lines if line.get("message") == "leads")


async def answered_by(servers: Place, pool: str) -> tuple[str, int]:
    """Holder and epoch of the leader that answers a node of the pool. For a moment none does: then the store does."""
    node = ScriptedNode("node-1", capacity())
    async with asyncio.timeout(SECONDS_MAX), servers.bus("executor-node-1") as bus:
        while True:
            report = structs.replace(node.report(), pool=pool)
            with suppress(NoAnswerError):  # the new leader does not listen yet
                answer = await bus.request(report, NodeDesired, seconds_max=10.0)
                if answer.leader is not None:
                    return answer.leader.holder, answer.leader.epoch
            await asyncio.sleep(0.1)


async def test_three_schedulers_share_six_pools_and_lead_those_of_one_that_is_killed(
    servers: Place, tmp_path: Path
) -> None:
    await servers.stores.clear()
    where = {"nats_url": servers.nats_url, "pg_dsn": servers.stores.server.dsn}
    async with AsyncExitStack() as stack:
        three = [
            await stack.enter_async_context(
                scheduler_process(tmp_path / f"{number}.log", servers.credentials, **where, **SHARED)
            )
            for number in range(3)
        ]
        before = await leases_when(servers, lambda held: parts(held, three) == [2, 2, 2])
        killed, *others = three
        of_killed = {pool for pool, (holder, _) in before.items() if killed.holder in holder}
        killed.kill()
        after = await leases_when(servers, lambda held: parts(held, others) == [3, 3])
        assert all(after[pool][1] > before[pool][1] for pool in of_killed)
        pool = min(of_killed)
        assert await answered_by(servers, pool) == after[pool]
        began = led(three)
        assert max(began.values()) == 1, f"a pool was led twice in one epoch: {began}"
        assert {(pool, epoch) for pool, (_, epoch) in after.items()} <= began.keys()


async def test_two_gateways_serve_alike(servers: Place, tmp_path: Path) -> None:
    await servers.stores.clear()
    where = {"nats_url": servers.nats_url, "pg_dsn": servers.stores.server.dsn}
    admin_token = servers.credentials.admin_token_file.read_text().strip()
    async with AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(
                gateway_process(tmp_path / f"gateway-{number}.log", servers.credentials, **where)
            )
            for number in (1, 2)
        ]
        admin = await stack.enter_async_context(Client(one.url, admin_token))
        token = (await admin.make_token("alice", "laptop")).token
        here = await stack.enter_async_context(Client(one.url, token))
        there = await stack.enter_async_context(Client(other.url, token))

        first = await here.submit(spec("first"), key="only-once")
        assert (await there.job(first.id)).id == first.id
        again = await there.submit(spec("first"), key="only-once")
        assert again.id == first.id
        second = await there.submit(spec("second"))
        assert {job.id for job in (await here.jobs()).jobs} == {first.id, second.id}

        cursor = (await here.story(first.id))[-1].cursor
        told: list[EventView] = []
        async with asyncio.timeout(SECONDS_MAX):
            async for event in there.follow_events(after=cursor):
                told.append(event)
                if len(told) == 1:
                    await here.cancel(second.id)
                    third = await here.submit(spec("third"))
                if len(told) == 2:
                    break
        assert [event.data.job_id for event in told] == [second.id, third.id], "each event once, behind the cursor"
