"""Many emulated nodes, each with its own connection, that lose NATS all at once. The scheduler is the real one."""

import asyncio
import logging
import os
import random
import resource
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from msgspec import Struct

from tests.support.builders import capacity, spec
from tests.support.nats_server import NatsServer
from tests.support.nodes import ScriptedNode
from tests.support.postgres import Stores
from weft.bus import NoAnswerError
from weft.bus.nats import NatsBus
from weft.messages.nodes import NodeDesired

POOL = "default"
SYNC_SECONDS, ANSWER_SECONDS_MAX, BACK_OFF_SECONDS = 2.0, 3.0, 0.1  # as the executor's
AWAY_SECONDS = 2.0
CALM_SECONDS_MAX = 120.0
CONNECTED_AT_ONCE = 50
STOP_SECONDS_MAX = 60.0
BUCKETS_PER_SECOND = 10


class Storm(Struct, frozen=True):
    """What it did. Times in seconds since the server was back."""

    nodes: int
    last_connected: float
    last_answered: float
    answers_per_second_max: int
    answered_late: int  # reports that were made again because nobody answered in time
    scheduler_cpu: float
    server_cpu: float
    leaders: int
    lost: int
    requeued: int
    running: int


class EmulatedNode:
    """Reports and hears as an executor does; what it is told to run, it says it runs."""

    def __init__(self, bus: NatsBus, node_id: str, dice: random.Random) -> None:
        self.bus = bus
        self.answered: list[float] = []
        self.unanswered = 0
        self._node = ScriptedNode(node_id, capacity(gpus=1))
        self._dice = dice

    async def sync(self) -> None:
        loop, failures = asyncio.get_running_loop(), 0
        await asyncio.sleep(self._dice.uniform(0, SYNC_SECONDS))
        while True:
            try:
                answer = await self.bus.request(self._node.report(), NodeDesired, seconds_max=ANSWER_SECONDS_MAX)
            except NoAnswerError:
                failures += 1
                self.unanswered += 1
                longest = min(SYNC_SECONDS, BACK_OFF_SECONDS * 2.0 ** min(failures, 10))
                await asyncio.sleep(longest * self._dice.uniform(0.5, 1.0))
                continue
            assert not answer.refused, answer.refused
            failures = 0
            self.answered.append(loop.time())
            self._node.take(answer)
            await asyncio.sleep(SYNC_SECONDS)


async def storm(
    folder: Path, stores: Stores, *, nodes: int, away_seconds: float = AWAY_SECONDS, stands_still: bool = False
) -> Storm:
    """Every node runs a job when NATS is killed, or stands still, for so long."""
    _allow_files(4 * nodes + 200)
    logging.getLogger("weft.bus.nats").setLevel(logging.ERROR)  # each of them would tell of it
    loop, dice, server = asyncio.get_running_loop(), random.Random(1), NatsServer(folder)
    try:
        async with AsyncExitStack() as stack:
            scheduler = await stack.enter_async_context(_scheduler(folder, server, stores))
            there = await _connected(stack, server, nodes, dice)
            syncing = [asyncio.create_task(node.sync()) for node in there]
            stack.callback(lambda: [task.cancel() for task in syncing])
            for number in range(nodes):
                await stores.gateway.submit(spec(), job_id=f"j-{number}", tenant="alice", key=None, at=0.0)
            await _until_running(stores, nodes)
            leases = await _leases(stores)
            (server.stand_still if stands_still else server.kill)()
            await asyncio.sleep(away_seconds)
            unanswered = sum(node.unanswered for node in there)
            cpu = _cpu_seconds(scheduler.pid)
            (server.go_on if stands_still else server.start)()
            back = loop.time()
            connected = await _until(lambda: all(node.bus.connected for node in there))
            await _until(lambda: all(node.answered and node.answered[-1] > back for node in there))
            await asyncio.sleep(2 * SYNC_SECONDS)  # what the storm broke would show now
            assert scheduler.returncode is None, "the scheduler ended"
            assert not any(task.done() for task in syncing)
            first = [min(at for at in node.answered if at > back) - back for node in there]
            buckets = Counter(
                int((at - back) * BUCKETS_PER_SECOND) for node in there for at in node.answered if at > back
            )
            return Storm(
                nodes=nodes,
                last_connected=connected - back,
                last_answered=max(first),
                answers_per_second_max=max(buckets.values()) * BUCKETS_PER_SECOND,
                answered_late=sum(node.unanswered for node in there) - unanswered,
                scheduler_cpu=_cpu_seconds(scheduler.pid) - cpu,
                server_cpu=_cpu_seconds(server.pid),
                leaders=await _leases(stores) - leases + 1,
                lost=await _told(stores, "lost"),
                requeued=await _told(stores, "requeued"),
                running=len(await stores.gateway.holding_jobs(pool=POOL)),
            )
    finally:
        server.stop()


@asynccontextmanager
async def _scheduler(folder: Path, server: NatsServer, stores: Stores) -> AsyncIterator[asyncio.subprocess.Process]:
    password = folder / "password"
    password.write_text(stores.server.passwords["scheduler"])
    dsn = stores.server.dsn.replace("weft_owner@", "weft_scheduler@")
    environ = {
        **os.environ,
        "WEFT_NATS_URL": server.url,
        "WEFT_PG_DSN": dsn,
        "WEFT_PG_PASSWORD_FILE": str(password),
        "WEFT_EXIT_WITH_PARENT": "1",
        "SCHEDULER_POOL": POOL,
    }
    with (folder / "scheduler.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "weftd.scheduler", env=environ, stdout=log, stderr=log
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await process.wait()


async def _connected(stack: AsyncExitStack, server: NatsServer, nodes: int, dice: random.Random) -> list[EmulatedNode]:
    async def one(number: int) -> EmulatedNode:
        name = f"node-{number}"
        bus = await stack.enter_async_context(NatsBus.connect(server.url, name=name))
        return EmulatedNode(bus, name, random.Random(dice.random()))

    made: list[EmulatedNode] = []
    for begin in range(0, nodes, CONNECTED_AT_ONCE):
        made += await asyncio.gather(*(one(number) for number in range(begin, min(nodes, begin + CONNECTED_AT_ONCE))))
    return made


async def _until_running(stores: Stores, nodes: int) -> None:
    async with asyncio.timeout(CALM_SECONDS_MAX):
        running = "SELECT count(*) FROM jobs WHERE state = 'running'"
        while await stores.owner.fetchval(running) < nodes:  # noqa: ASYNC110 - it is another process that runs them
            await asyncio.sleep(0.2)


async def _until(true: Callable[[], bool]) -> float:
    """When it was."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CALM_SECONDS_MAX):
        while not true():  # noqa: ASYNC110 - what is waited for is of many
            await asyncio.sleep(0.01)
    return loop.time()


async def _leases(stores: Stores) -> int:
    return int(await stores.owner.fetchval("SELECT epoch FROM leases WHERE name = $1", POOL))


async def _told(stores: Stores, event: str) -> int:
    return int(await stores.owner.fetchval("SELECT count(*) FROM events WHERE event = $1", event))


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _allow_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))
