"""Replicas that are killed under load: what they had not read is answered elsewhere."""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp

from tests.support.gateway import until
from tests.support.routers import Replica, Town

BODY = b"hello"
CLIENTS = 24


class NotingProcess(Replica):
    """`read`: the paths of all requests that it read."""

    def __init__(self, rank: int, notes: Path) -> None:
        super().__init__(rank)
        self._notes = notes
        self.process: asyncio.subprocess.Process | None = None

    async def begin(self) -> None:
        arguments = [str(self.port), str(self._notes)]
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.support.noting_replica", *arguments
        )
        async with asyncio.timeout(60):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                except OSError:
                    await asyncio.sleep(0.05)
                else:
                    writer.close()
                    return

    async def kill(self) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    def read(self) -> dict[str, int]:
        lines = self._notes.read_text().splitlines() if self._notes.exists() else []
        return {line.split()[0]: int(line.split()[1]) for line in lines}


@asynccontextmanager
async def processes(count: int, folder: Path) -> AsyncIterator[list[NotingProcess]]:
    made = [NotingProcess(rank, folder / f"notes-{rank}") for rank in range(count)]
    try:
        for one in made:
            await one.begin()
        yield made
    finally:
        for one in made:
            if one.process is not None:
                await one.kill()


async def test_of_posts_under_load_fail_only_those_that_a_killed_replica_had_in_hand(
    there: Town, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """Five of six are killed at once, more than a request is tried at when it may have run."""
    job = await there.service(concurrency=4, timeout="20s")
    statuses: dict[str, tuple[int, str]] = {}
    over, dead = asyncio.Event(), asyncio.Event()
    later: set[str] = set()  # that began when the replicas had ended

    async def client(number: int) -> None:
        turn = 0
        while not over.is_set():
            path = f"/{number}-{turn}"
            turn += 1
            if dead.is_set():
                later.add(path)
            statuses[path] = await posted(http, f"{there.url}/s/{job.id}{path}")

    async with processes(6, tmp_path) as fleet:
        await there.tell(*(one.endpoint(job) for one in fleet))
        await there.known(job, *range(6))
        clients = [asyncio.create_task(client(number)) for number in range(CLIENTS)]
        await until(lambda: len(statuses) > 300)
        for one in fleet[1:]:
            assert one.process is not None
            one.process.kill()
        for one in fleet[1:]:
            await one.kill()
        dead.set()
        at_once = len(statuses)
        await until(lambda: len(statuses) > at_once + 300, seconds_max=40)
        over.set()
        await asyncio.gather(*clients)
        read = {path: size for one in fleet for path, size in one.read().items()}
    failed = {path: told for path, told in statuses.items() if told[0] != 200}
    assert not failed.keys() & later, "none that began when the replicas were dead"
    assert len(failed.keys() & read.keys()) <= 5 * 4, "no more than they had in hand"
    assert len(failed) <= 5 * (4 + 1), "and one that reached each of them as it ended"
    assert {status for status, _ in failed.values()} <= {502, 0}, "0: the answer came before the body was sent"
    assert set(read.values()) == {len(BODY)}, "each came with its body, at whichever replica"


async def posted(http: aiohttp.ClientSession, url: str) -> tuple[int, str]:
    try:
        async with http.post(url, data=BODY) as answer:
            return answer.status, await answer.text()
    except aiohttp.ClientError as error:
        return 0, str(error)


async def test_a_post_does_not_fail_on_a_connection_that_its_dead_replica_left(
    there: Town, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """Caddy is stopped for a moment, so that it learns of the end and of the requests at once."""
    job = await there.service(concurrency=8, timeout="20s")
    url = f"{there.url}/s/{job.id}"
    async with processes(2, tmp_path) as fleet:
        await there.tell(*(one.endpoint(job) for one in fleet))
        await there.known(job, 0, 1)
        for _ in range(3):
            first = await asyncio.gather(*(posted(http, f"{url}/{number}") for number in range(16)))
            assert {status for status, _ in first} == {200}
            caddy = there.children()["caddy"]
            os.kill(caddy, signal.SIGSTOP)
            try:
                await fleet[1].kill()
                asked = [asyncio.create_task(posted(http, f"{url}/then-{number}")) for number in range(16)]
                await asyncio.sleep(0.2)
            finally:
                os.kill(caddy, signal.SIGCONT)
            assert Counter(status for status, _ in await asyncio.gather(*asked)) == {200: 16}
            await fleet[1].begin()


async def test_an_answer_that_leaves_a_body_unread_tells_that_its_connection_ends(there: Town) -> None:
    """Caddy reads no body of what is refused, or of what broke off before, and closes the connection afterwards: a
    client that was not told would lose the next request that it sends there."""

    async def cuts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    job, replica = await there.service(), Replica(0)
    server = await asyncio.start_server(cuts, "127.0.0.1", replica.port)
    await there.tell(replica.endpoint(job))
    await there.known(job, 0)
    bodies = {
        b"Content-Length: 5": b"hello",
        b"Transfer-Encoding: chunked": b"5\r\nhello\r\n0\r\n\r\n",
        b"Content-Length: 1000000": b"x" * 1_000_000,
    }
    for path, status in ("/nothing", b"404"), (f"/s/{job.id}/x", b"502"):
        for framing, body in bodies.items():
            for together in (True, False):
                head = await _answer_to(there, path, framing, body, together=together)
                assert head.split()[1] == status
                assert b"\r\nConnection: close\r\n" in head, (path, framing, together)
    reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
    for method in (b"GET", b"POST", b"GET"):
        length = b"Content-Length: 0\r\n" if method == b"POST" else b""
        writer.write(method + b" /nothing HTTP/1.1\r\nHost: a\r\n" + length + b"\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.split()[1] == b"404"
        assert b"Connection:" not in head, "without a body the connection is kept"
        await reader.readexactly(int(head.partition(b"Content-Length: ")[2].split()[0]))
    writer.close()
    server.close()
    await server.wait_closed()


async def _answer_to(there: Town, path: str, framing: bytes, body: bytes, *, together: bool) -> bytes:
    """The head of the answer to a POST, whose body is sent with its head or 20 ms after."""
    reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
    try:
        async with asyncio.timeout(60):
            writer.write(f"POST {path} HTTP/1.1\r\nHost: a\r\n".encode() + framing + b"\r\n\r\n" + body * together)
            if not together:
                await asyncio.sleep(0.02)
                writer.write(body)
            return await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.close()


async def test_the_request_after_a_refused_post_is_answered(there: Town, http: aiohttp.ClientSession) -> None:
    """A client that keeps its connections, as most do."""
    for _ in range(30):
        assert (await posted(http, f"{there.url}/nothing"))[0] == 404
