"""The gateway while what it needs is away, slow or full, and while those who read it do not."""

import asyncio
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from statistics import median
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pytest
from msgspec import Struct, structs

from tests.support.builders import spec
from tests.support.gateway import ADMIN_TOKEN, Place, RunningGateway, add_nodes, place, until
from tests.support.proxy import Proxy
from weft.messages.http import ErrorView
from weft.store.asking import ACQUIRE_SECONDS_MAX, COMMAND_SECONDS_MAX
from weft.store.postgres import PostgresStore
from weftd.gateway.readmodel.snapshots import SECONDS as SNAPSHOT_SECONDS
from weftd.gateway.settings import GatewaySettings

HELLO = {"name": "hello", "command": ["true"]}
CONNECTIONS = 4
QUICK_SECONDS_MAX = ACQUIRE_SECONDS_MAX - 0.1  # for what is refused at once: nothing waited for a connection
REFUSED_SECONDS_MAX = ACQUIRE_SECONDS_MAX + COMMAND_SECONDS_MAX + 5.0
RECOVERY_SECONDS_MAX = 15.0
READS = ("/v1/jobs", "/v1/nodes", "/v1/cluster", "/v1/events")
STREAMS_MAX = 3
SILENT = GatewaySettings(streams_max=STREAMS_MAX)
ROOM_SECONDS_MAX = 10.0
READERS = 100
READERS_BYTES_MAX = 300 << 20


class Said(Struct, frozen=True):
    status: int
    body: bytes
    retry_after: str | None
    seconds: float


class World(Struct, frozen=True):
    place: Place
    link: Proxy
    gateway: RunningGateway
    http: aiohttp.ClientSession

    async def ask(self, method: str, path: str, **options: object) -> Said:
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with self.http.request(method, f"{self.gateway.url}{path}", **options) as response:  # type: ignore[arg-type]
            body = await response.read()
            return Said(response.status, body, response.headers.get("Retry-After"), loop.time() - began)

    async def ask_all(self, times: int) -> list[Said]:
        """Of every kind of request, so many at once."""
        asking = [self.ask("GET", path) for path in READS] + [self.ask("POST", "/v1/jobs", json=HELLO)]
        more = [self.ask("GET", path) for _ in range(times - 1) for path in READS]
        return await asyncio.gather(*asking, *more)


@pytest.fixture(scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    async with place(tmp_path_factory.mktemp("network")) as made:
        yield made


@asynccontextmanager
async def gateway_over(link: Proxy, servers: Place, settings: GatewaySettings = SILENT) -> AsyncIterator[World]:
    """A gateway whose store is at the other end of the link."""
    server = servers.stores.server
    parts = urlsplit(server.dsn)
    dsn = parts._replace(netloc=f"{parts.username}@127.0.0.1:{link.port}").geturl()
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(
            PostgresStore.connect(
                dsn, user="weft_gateway", password=server.passwords["gateway"], connections=CONNECTIONS
            )
        )
        linked = structs.replace(servers, stores=structs.replace(servers.stores, gateway=store))
        gateway = RunningGateway(linked, settings=settings, heartbeat_seconds=600.0)  # no heartbeat ends a stream here
        await gateway.start()
        stack.push_async_callback(gateway.stop)
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        connector = aiohttp.TCPConnector(limit=0)
        http = await stack.enter_async_context(aiohttp.ClientSession(headers=headers, connector=connector))
        yield World(servers, link, gateway, http)
        link.mend()


@pytest.fixture
async def world(servers: Place) -> AsyncIterator[World]:
    await servers.stores.clear()
    await add_nodes(servers)
    async with (
        Proxy(urlsplit(servers.stores.server.dsn).port or 0) as link,
        gateway_over(link, servers) as made,
    ):
        yield made


def refused_well(said: Said) -> bool:
    error = msgspec.json.decode(said.body, type=ErrorView).error
    return said.status == 503 and said.retry_after is not None and "database" in error.reason


async def until_served(world: World) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(RECOVERY_SECONDS_MAX):
        while any(said.status >= 400 for said in await world.ask_all(1)):  # noqa: ASYNC110 - it comes from afar
            await asyncio.sleep(0.05)
    return loop.time() - began


async def test_while_postgres_is_down_everything_that_needs_it_is_refused_at_once(world: World) -> None:
    world.link.refuse()
    world.link.reset()
    await until(lambda: not world.link.connections)
    await asyncio.sleep(SNAPSHOT_SECONDS)  # what was read before is shown for so long
    said = await world.ask_all(25)
    assert all(refused_well(each) for each in said), {each.status for each in said}
    assert median(each.seconds for each in said) < QUICK_SECONDS_MAX
    assert max(each.seconds for each in said) < REFUSED_SECONDS_MAX
    assert (await world.ask("GET", "/healthz")).status == 200
    assert (await world.ask("GET", "/readyz")).status == 503
    world.link.mend()
    assert await until_served(world) < RECOVERY_SECONDS_MAX


async def test_while_postgres_does_not_answer_requests_are_refused_and_do_not_pile_up(world: World) -> None:
    await world.ask_all(5)
    world.link.swallow()
    await asyncio.sleep(SNAPSHOT_SECONDS)
    said = await world.ask_all(25)
    assert all(refused_well(each) for each in said), {each.status for each in said}
    assert max(each.seconds for each in said) < REFUSED_SECONDS_MAX
    trying = [asyncio.create_task(world.ask("GET", "/v1/jobs/none")) for _ in range(CONNECTIONS)]
    await asyncio.sleep(0.2)  # they are on their way
    said = await world.ask_all(25)
    assert all(refused_well(each) for each in said)
    assert sum(each.seconds > QUICK_SECONDS_MAX for each in said) <= CONNECTIONS, "few try, the others do not wait"
    health = await world.ask("GET", "/healthz")
    assert (health.status, health.seconds < QUICK_SECONDS_MAX) == (200, True)
    world.link.mend()
    assert await until_served(world) < RECOVERY_SECONDS_MAX
    await asyncio.wait(trying)


async def test_with_no_place_left_in_postgres_the_gateway_goes_on_with_what_it_has(world: World) -> None:
    owner = world.place.stores.owner
    try:
        await owner.execute("ALTER ROLE weft_gateway CONNECTION LIMIT 0")
        assert {said.status for said in await world.ask_all(10)} <= {200, 201}
        world.link.reset()  # now it has none either
        await until(lambda: not world.link.connections)
        await asyncio.sleep(SNAPSHOT_SECONDS)
        said = await world.ask_all(10)
        assert all(refused_well(each) for each in said), {each.status for each in said}
        assert max(each.seconds for each in said) < QUICK_SECONDS_MAX
    finally:
        await owner.execute("ALTER ROLE weft_gateway CONNECTION LIMIT -1")
    assert await until_served(world) < RECOVERY_SECONDS_MAX


FOLLOWED = ("/v1/events?follow=1", "/v1/jobs/{job}/events?follow=1", "/v1/jobs/{job}/logs?follow=1")


@pytest.mark.parametrize("path", FOLLOWED)
async def test_a_stream_whose_reader_has_gone_makes_room_at_once(world: World, path: str) -> None:
    async with world.gateway.client() as client:
        job = (await client.submit(spec())).id
    request = f"GET {path.format(job=job)} HTTP/1.1\r\nHost: weft\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\n\r\n"
    with ExitStack() as readers:
        await fill(world, request, readers)
    await until_room(world)


def reading(world: World, request: str) -> socket.socket:
    """Somebody who asks, and never reads the answer."""
    end = socket.socket()
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    end.connect(("127.0.0.1", world.gateway.port))
    end.sendall(request.encode())
    return end


async def fill(world: World, request: str, readers: ExitStack | AsyncExitStack) -> None:
    """Until there is no room for one more stream."""
    async with asyncio.timeout(ROOM_SECONDS_MAX):
        while await has_room(world):
            readers.enter_context(reading(world, request))
            await asyncio.sleep(0.02)


async def until_room(world: World) -> None:
    async with asyncio.timeout(ROOM_SECONDS_MAX):
        while not await has_room(world):  # noqa: ASYNC110 - it is made by the other end
            await asyncio.sleep(0.02)


async def has_room(world: World) -> bool:
    """For one more stream."""
    async with world.http.get(f"{world.gateway.url}/v1/events?follow=1") as response:
        return response.status == 200


async def test_readers_who_do_not_read_are_not_kept_in_memory(servers: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one of them is behind is read from the store again, by those who come back."""
    monkeypatch.setattr("weftd.gateway.limits.streams.WRITE_SECONDS_MAX", 2.0)
    await servers.stores.clear()
    await add_nodes(servers)
    async with (
        Proxy(urlsplit(servers.stores.server.dsn).port or 0) as link,
        gateway_over(
            link, servers, structs.replace(SILENT, streams_max=READERS, streams_per_tenant_max=READERS)
        ) as world,
        AsyncExitStack() as stack,
    ):
        request = f"GET /v1/events?follow=1 HTTP/1.1\r\nHost: weft\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\n\r\n"
        for _ in range(READERS):
            stack.enter_context(reading(world, request))
        await fill(world, request, stack)
        before = memory()
        await servers.stores.owner.execute(
            "INSERT INTO events (topic, event, subject_id, version, tenant, at, data)"
            " SELECT 'jobs', 'waiting', 'j-' || n, 2, 'alice', now(), jsonb_build_object('padding', repeat('x', 2000))"
            " FROM generate_series(1, 20000) AS n"
        )
        await until_room(world)  # they are cut off
        assert memory() - before < READERS_BYTES_MAX


def memory() -> int:
    """The most that this process, with the gateway in it, has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
