"""Connections without a token: however many one address opens and keeps, others are served."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.gateway import ADMIN_TOKEN, Place, RunningGateway, add_nodes, place
from tests.support.gateway_process import gateway_process
from weftd.gateway.limits import connections
from weftd.gateway.settings import GatewaySettings

SECONDS_MAX = 60.0
REFUSED_SECONDS_MAX = 20.0  # for two hundred at once
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
JOBS = f"GET /v1/jobs HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\n\r\n".encode()

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    async with place(tmp_path_factory.mktemp("connections")) as made:
        yield made


@asynccontextmanager
async def gateway(servers: Place, *, most: int = 40, per_address: int = 10) -> AsyncIterator[int]:
    await servers.stores.clear()
    await add_nodes(servers)
    settings = GatewaySettings(connections_max=most, connections_per_address_max=per_address)
    running = RunningGateway(servers, settings=settings)
    await running.start()
    try:
        yield running.port
    finally:
        await running.stop()


async def connected(port: int, address: str = "127.0.0.1") -> Streams:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))


async def asked(streams: Streams, request: bytes) -> bytes:
    """The status line and all that comes with it."""
    reader, writer = streams
    writer.write(request)
    async with asyncio.timeout(SECONDS_MAX):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        return head + await reader.readexactly(int(length.split(b":")[1]))


async def rest(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(SECONDS_MAX):
        return await reader.read()


def close(*opened: Streams) -> None:
    for _, writer in opened:
        writer.close()


async def test_one_address_that_keeps_all_it_may_is_refused_and_another_is_served(servers: Place) -> None:
    async with gateway(servers) as port:
        kept = [await connected(port) for _ in range(10)]
        for request in (b"", JOBS, JOBS * 50):  # a refusal is read whole, whatever was sent
            reader, writer = refused = await connected(port)
            writer.write(request)
            told = await rest(reader)
            assert told == connections.BUSY_ANSWER
            close(refused)
        other = await connected(port, "127.0.0.2")
        assert (await asked(other, JOBS)).startswith(b"HTTP/1.1 200 ")
        close(kept[0])
        await asyncio.wait_for(until_served(port), SECONDS_MAX)
        close(other, *kept)


async def until_served(port: int) -> None:
    """An address has room again soon after one of its connections was closed."""
    while True:
        reader, writer = await connected(port)
        writer.write(HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        told = await rest(reader)
        writer.close()
        if told.startswith(b"HTTP/1.1 200 "):
            return


async def test_where_strangers_have_taken_every_place_the_oldest_makes_room(servers: Place) -> None:
    async with gateway(servers, most=20, per_address=20) as port:
        known = await connected(port)
        assert (await asked(known, JOBS)).startswith(b"HTTP/1.1 200 ")
        strangers = [await connected(port, "127.0.0.2") for _ in range(19)]
        for stranger in strangers[:3]:
            assert (await asked(stranger, HEALTH)).startswith(b"HTTP/1.1 200 ")
        newcomer = await connected(port, "127.0.0.3")
        assert (await asked(newcomer, JOBS)).startswith(b"HTTP/1.1 200 ")
        assert await rest(strangers[0][0]) == b""
        assert (await asked(known, JOBS)).startswith(b"HTTP/1.1 200 ")
        close(known, newcomer, *strangers)


@pytest.mark.parametrize("first", [b"", HEALTH, b"GET /v1/jobs HTTP/1.1\r\nHost: a\r\n\r\n"], ids=["", "health", "401"])
async def test_a_stranger_that_asks_nothing_is_let_go_soon_and_who_is_known_stays(
    servers: Place, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(connections, "FIRST_REQUEST_SECONDS_MAX", 0.3)
    monkeypatch.setattr(connections, "STRANGER_SECONDS_MAX", 0.3)
    async with gateway(servers) as port:
        known, stranger = await connected(port), await connected(port)
        assert (await asked(known, JOBS)).startswith(b"HTTP/1.1 200 ")
        if first:
            await asked(stranger, first)
        assert await rest(stranger[0]) == b""
        assert (await asked(known, JOBS)).startswith(b"HTTP/1.1 200 ")
        close(known, stranger)


async def test_a_gateway_as_it_runs_refuses_many_at_once_without_a_word_in_its_log(
    servers: Place, tmp_path: Path
) -> None:
    await servers.stores.clear()
    running = gateway_process(
        tmp_path / "log",
        servers.credentials,
        nats_url=servers.nats_url,
        pg_dsn=servers.stores.server.dsn,
        GATEWAY_CONNECTIONS_MAX="100",
        GATEWAY_CONNECTIONS_PER_ADDRESS_MAX="50",
    )
    async with running as process:
        port = urlsplit(process.url).port or 0
        before = process.log.read_text()
        kept = [await connected(port, "127.0.0.2") for _ in range(50)]
        begun = time.monotonic()
        refused = await asyncio.gather(*(connected(port, "127.0.0.2") for _ in range(200)))
        told = await asyncio.gather(*(rest(reader) for reader, _ in refused))
        assert set(told) == {connections.BUSY_ANSWER}
        assert time.monotonic() - begun < REFUSED_SECONDS_MAX
        other = await connected(port)
        assert (await asked(other, HEALTH)).startswith(b"HTTP/1.1 200 ")
        close(other, *kept, *refused)
        assert process.log.read_text() == before
