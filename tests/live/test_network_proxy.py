"""The link whose faults the other tests rely on: each fault is what its name says."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec import Struct

from tests.support.proxy import Proxy, Way
from tests.support.runs import until

SOON = 5.0
A_WHILE = 0.2  # in which nothing may arrive


class Ends(Struct, frozen=True):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def says(self, word: bytes) -> None:
        self.writer.write(word)
        await self.writer.drain()

    async def hears(self, count: int) -> bytes:
        async with asyncio.timeout(SOON):
            return await self.reader.readexactly(count)

    async def hears_nothing(self) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(A_WHILE):
                await self.reader.read(1)

    async def is_reset(self) -> None:
        with pytest.raises(ConnectionResetError):
            async with asyncio.timeout(SOON):
                await self.reader.read(1)


@asynccontextmanager
async def echo() -> AsyncIterator[Proxy]:
    """The link to a server that says again what it hears."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except ConnectionResetError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, Proxy(server.sockets[0].getsockname()[1]) as link:
        yield link


async def meet(link: Proxy) -> Ends:
    async with asyncio.timeout(SOON):
        return Ends(*await asyncio.open_connection("127.0.0.1", link.port))


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[Proxy, Ends]]:
    async with echo() as link:
        ends = await meet(link)
        await ends.says(b"one")
        assert await ends.hears(3) == b"one"
        yield link, ends
        ends.writer.close()


async def test_a_whole_link_carries_both_ways_and_ends_when_its_ends_do() -> None:
    async with linked() as (link, ends):
        assert (link.accepted, link.connections) == (1, 1)
        assert link.carried == {Way.TO_SERVER: 3, Way.TO_CLIENT: 3}
        ends.writer.write_eof()
        assert await ends.reader.read() == b""
        await until(lambda: link.connections == 0)


async def test_over_a_cut_link_nothing_arrives_and_nothing_is_acknowledged() -> None:
    async with linked() as (link, ends):
        link.cut()
        connection = ends.writer.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 500)
        await ends.says(b"two")
        with pytest.raises(TimeoutError, match="timed out"):  # the kernel's ETIMEDOUT, not ours
            async with asyncio.timeout(SOON):
                await ends.reader.read(1)


async def test_nobody_connects_over_a_cut_link() -> None:
    async with echo() as link:
        link.cut()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(A_WHILE):
                await asyncio.open_connection("127.0.0.1", link.port)


async def test_a_connection_that_outlived_a_cut_loses_nothing() -> None:
    async with linked() as (link, ends):
        link.cut()
        await ends.says(b"two")
        await ends.hears_nothing()
        link.mend()
        assert await ends.hears(3) == b"two"


async def test_what_is_swallowed_is_acknowledged_and_gone_and_the_connection_with_it() -> None:
    async with linked() as (link, ends):
        link.swallow()
        await ends.says(b"two")
        await ends.hears_nothing()
        late = await meet(link)
        await late.says(b"late")
        await late.hears_nothing()
        link.mend()
        await ends.is_reset()
        await late.is_reset()


@pytest.mark.parametrize("ways", [(), (Way.TO_SERVER,), (Way.TO_CLIENT,)])
async def test_what_is_frozen_arrives_later(ways: tuple[Way, ...]) -> None:
    async with linked() as (link, ends):
        link.freeze(*ways)
        await ends.says(b"two")
        await ends.hears_nothing()
        assert link.carried[Way.TO_SERVER] == (6 if ways == (Way.TO_CLIENT,) else 3)
        link.mend()
        assert await ends.hears(3) == b"two"


async def test_a_frozen_link_takes_only_so_much() -> None:
    async with linked() as (link, ends):
        link.freeze()
        talking = asyncio.create_task(ends.says(bytes(64 << 20)))
        done, _ = await asyncio.wait([talking], timeout=0.5)
        assert not done, "64 MiB are more than a frozen link and its ends hold"
        talking.cancel()
        ends.writer.transport.abort()


async def test_who_is_reset_hears_it_and_may_come_back() -> None:
    async with linked() as (link, ends):
        link.reset()
        await ends.is_reset()
        again = await meet(link)
        await again.says(b"two")
        assert await again.hears(3) == b"two"
        again.writer.close()


@pytest.mark.parametrize("steps", range(6))
async def test_a_connection_on_its_way_is_reset_with_those_that_are_open(steps: int) -> None:
    """However many steps of the event loop it has had."""
    async with echo() as link:
        with socket.create_connection(("127.0.0.1", link.port), SOON) as on_its_way:
            for _ in range(steps):
                await asyncio.sleep(0)
            link.refuse()
            link.reset()
            on_its_way.setblocking(False)
            with pytest.raises(ConnectionResetError):
                async with asyncio.timeout(SOON):
                    await asyncio.get_running_loop().sock_recv(on_its_way, 1)
            await until(lambda: not link.connections, seconds_max=SOON)


async def test_who_is_refused_comes_in_when_it_is_mended() -> None:
    async with linked() as (link, ends):
        link.refuse()
        with pytest.raises(ConnectionRefusedError):
            await meet(link)
        await ends.says(b"two")
        assert await ends.hears(3) == b"two", "who is in stays in"
        link.mend()
        again = await meet(link)
        await again.says(b"three")
        assert await again.hears(5) == b"three"
        again.writer.close()


async def test_a_slow_link_is_late_and_thin() -> None:
    async with linked() as (link, ends):
        loop = asyncio.get_running_loop()
        link.slow(delay_seconds=0.1, bytes_per_second=10_000)
        start = loop.time()
        await ends.says(bytes(5_000))
        await ends.hears(5_000)
        assert loop.time() - start > 0.6, "0.1 s late each way, and half a second long"
