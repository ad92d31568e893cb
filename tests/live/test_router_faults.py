"""A router that is killed, in whole or in part, replicas that come and go, tokens, and clients that mean harm."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import aiohttp.web
import pytest

from tests.support.gateway import Place, until
from tests.support.routers import Replica, Town, error_of, one_time_code, town

BACK_SECONDS_MAX = 2.0  # the aim; a machine that is busy with other work is given more
SLACK = 10.0


async def slow(request: aiohttp.web.Request) -> aiohttp.web.Response:
    await asyncio.sleep(0.02)
    return aiohttp.web.Response(text=str(len(await request.read())))


async def posted(http: aiohttp.ClientSession, url: str, **options: object) -> int:
    """The status; 0 if the connection broke."""
    try:
        async with http.post(url, data=b"hello", **options) as answer:  # type: ignore[arg-type]
            await answer.read()
            return answer.status
    except aiohttp.ClientError:
        return 0


async def test_fifty_changes_a_second_lose_no_request(there: Town, http: aiohttp.ClientSession) -> None:
    """Replicas come, are drained, and are ended once nothing of theirs goes on."""
    job = await there.service(concurrency=4)
    fleet = [await there.replica(rank, slow) for rank in range(6)]
    await there.tell(*(one.endpoint(job) for one in fleet))
    await there.known(job, *range(6))
    over = asyncio.Event()
    statuses: Counter[int] = Counter()

    async def client(number: int) -> None:
        while not over.is_set():
            statuses[await posted(http, f"{there.url}/s/{job.id}/{number}")] += 1

    clients = [asyncio.create_task(client(number)) for number in range(8)]
    changes = 0
    while changes <= 200 or statuses.total() <= 200:
        out = changes % 6
        await there.tell(*(one.endpoint(job, draining=one.rank == out, ready=one.rank != out) for one in fleet))
        changes += 1
        await asyncio.sleep(0.02)
    over.set()
    await asyncio.gather(*clients)
    assert set(statuses) == {200}
    assert max(one.most for one in fleet) <= 4


async def test_what_kills_caddy_breaks_its_connections_and_it_is_back_soon(
    there: Town, http: aiohttp.ClientSession
) -> None:
    job = await there.service()
    replica = await there.replica(0, slow)
    await there.tell(replica.endpoint(job))
    assert await posted(http, f"{there.url}/s/{job.id}/") == 200
    os.kill(there.children()["caddy"], signal.SIGKILL)
    began = time.monotonic()
    while await posted(http, f"{there.url}/s/{job.id}/") != 200:  # noqa: ASYNC110 - comes from afar
        await asyncio.sleep(0.01)
    assert time.monotonic() - began < BACK_SECONDS_MAX * SLACK


async def test_a_gate_that_is_killed_loses_no_request(there: Town, http: aiohttp.ClientSession) -> None:
    """Those that wait, those at a replica, and those that come meanwhile, POSTs among them."""
    job = await there.service(concurrency=2)
    replica = await there.replica(0, slow)
    asked = [asyncio.create_task(posted(http, f"{there.url}/s/{job.id}/{number}")) for number in range(10)]
    await until(lambda: there.last(job).queued == 10)
    os.kill(there.children()["gate"], signal.SIGKILL)
    asked += [asyncio.create_task(posted(http, f"{there.url}/s/{job.id}/more")) for _ in range(10)]
    telling = asyncio.create_task(_tells(there, replica.endpoint(job)))
    assert Counter(await asyncio.gather(*asked)) == {200: 20}
    os.kill(there.children()["gate"], signal.SIGKILL)
    assert Counter(await asyncio.gather(*(posted(http, f"{there.url}/s/{job.id}/") for _ in range(10)))) == {200: 10}
    telling.cancel()


async def _tells(there: Town, *endpoints: object) -> None:
    """As a node does: once a second and again."""
    there.endpoints = endpoints  # type: ignore[assignment]
    while True:
        await there.tell_again()
        await asyncio.sleep(0.2)


async def test_a_router_that_is_killed_leaves_no_caddy_and_another_takes_its_port(
    there: Town, http: aiohttp.ClientSession
) -> None:
    job = await there.service()
    replica = await there.replica(0, slow)
    telling = asyncio.create_task(_tells(there, replica.endpoint(job)))
    await until(lambda: replica.port)
    before = there.children()
    assert there.process is not None
    there.process.kill()
    await there.process.wait()
    began = time.monotonic()
    await there.start()
    while await posted(http, f"{there.url}/s/{job.id}/") != 200:  # noqa: ASYNC110 - comes from afar
        await asyncio.sleep(0.01)
    took = time.monotonic() - began
    telling.cancel()
    assert took < BACK_SECONDS_MAX * SLACK
    assert not [pid for pid in before.values() if _lives(pid)]


def _lives(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


async def test_a_lost_end_of_a_request_costs_no_place_for_long(there: Town, http: aiohttp.ClientSession) -> None:
    """A Caddy that was killed tells no ends: its requests hold no replica."""

    async def hangs(request: aiohttp.web.Request) -> aiohttp.web.Response:
        if request.path == "/hang":
            await asyncio.sleep(60)
        return aiohttp.web.Response()

    job = await there.service(concurrency=1)
    replica = await there.replica(0, hangs)
    await there.tell(replica.endpoint(job))
    asking = asyncio.create_task(posted(http, f"{there.url}/s/{job.id}/hang"))
    await until(lambda: replica.now == 1)
    os.kill(there.children()["caddy"], signal.SIGKILL)
    await asking
    async with asyncio.timeout(60):
        while await posted(http, f"{there.url}/s/{job.id}/") != 200:  # noqa: ASYNC110 - comes from afar
            await asyncio.sleep(0.05)


async def breaks_off(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
    """As the path says: no status of HTTP, another protocol that was not asked for, an answer that is shorter than it
    says, or one that never ends."""
    assert request.transport is not None
    if request.path == "/unasked":
        request.transport.write(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
    elif request.path == "/none":
        request.transport.write(b"HTTP/1.1 000 None\r\nContent-Length: 0\r\n\r\n")
    elif request.path == "/short":
        request.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello")
    else:
        stream = aiohttp.web.StreamResponse()
        await stream.prepare(request)
        while True:
            await stream.write(b"x" * 1000)
            await asyncio.sleep(0.01)
    request.transport.close()
    return aiohttp.web.Response()


@pytest.mark.parametrize("how", ["none", "unasked", "short", "endless"])
async def test_the_end_of_an_answer_that_breaks_off_is_told(there: Town, http: aiohttp.ClientSession, how: str) -> None:
    """If it were not, a count would have to find it out, and could end another tenant's request in its place."""
    job = await there.service(concurrency=20)
    replica = await there.replica(0, breaks_off)
    await there.tell(replica.endpoint(job))
    await there.known(job, 0)
    for _ in range(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
        upgrade = b"Upgrade: x\r\n" if how == "none" else b""
        writer.write(f"GET /s/{job.id}/{how} HTTP/1.1\r\nHost: a\r\n".encode() + upgrade + b"\r\n")
        async with asyncio.timeout(60):
            said = await _head(reader)
        assert said.split()[1:2] == [b"502" if how in ("none", "unasked") else b"200"]
        writer.close()
    await until(lambda: there.last(job).arrived == 10)
    await there.settled(job)
    async with http.get(f"http://127.0.0.1:{there.admin_port}/metrics") as answer:
        assert "weft_router_ends_lost_total 0.0" in await answer.text()


async def test_a_service_that_is_not_public_wants_a_token_of_its_tenant(
    there: Town, http: aiohttp.ClientSession
) -> None:
    job = await there.service(public=False)
    replica = await there.replica(0)
    await there.tell(replica.endpoint(job))
    url = f"{there.url}/s/{job.id}/x"
    body = {}
    for headers, status in (
        ({}, 401),
        ({"Authorization": "Bearer nothing"}, 401),
        ({"Authorization": f"Bearer {there.tokens['bob']}"}, 404),
        ({"Authorization": f"Bearer {there.tokens['alice']}"}, 200),
    ):
        async with http.get(url, headers=headers) as answer:
            assert (answer.status, headers) == (status, headers)
            body = await answer.json()
    assert "Authorization" not in body["headers"]
    code = await one_time_code(there, "alice", job.id)
    async with http.get(f"{url}?a=1&weft_code={code}&b=2", allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (302, f"/s/{job.id}/x?a=1&b=2")
        cookie = answer.headers["Set-Cookie"]
    assert f"Path=/s/{job.id}/; HttpOnly; SameSite=Lax" in cookie
    assert there.tokens["alice"] not in cookie
    session = {"Cookie": cookie.partition(";")[0]}
    for headers, status in (({}, 401), (session, 302)):  # once; the reload of a browser that has the session goes on
        async with http.get(f"{url}?weft_code={code}", headers=headers, allow_redirects=False) as answer:
            assert (answer.status, answer.headers.get("Set-Cookie")) == (status, None)
    other = await there.service("other", public=False)
    await there.tell(replica.endpoint(job), replica.endpoint(other))
    async with http.get(f"{there.url}/s/{other.id}/x", headers=session) as answer:
        assert answer.status == 404, "the session of a link opens its own service alone"
    async with http.get(f"{url}?weft_token={there.tokens['alice']}") as answer:
        assert answer.status == 400
    headers = {"Cookie": f"mine=1; {cookie.partition(';')[0]}", "Authorization": "Basic abc"}
    async with http.get(url, headers=headers) as answer:
        told = (await answer.json())["headers"]
    assert (told["Cookie"], told["Authorization"]) == ("mine=1", "Basic abc")
    async with http.get(url, headers={"Cookie": f"mine=1;\t{cookie.partition(';')[0]};b=2"}) as answer:
        assert (await answer.json())["headers"]["Cookie"] == "mine=1;b=2"
    host = {"Host": f"chat.alice.localhost:{there.port}", "Authorization": f"Bearer {there.tokens['alice']}"}
    async with http.get(f"{there.url}/s/other/", headers=host) as answer:
        assert (answer.status, (await answer.json())["path"]) == (200, "/s/other/")
    await there.place.stores.gateway.revoke_tokens(tenant="alice", label="test", at=time.time())
    async with asyncio.timeout(30):
        while await _status(http, url, there.tokens["alice"]) != 401:  # noqa: ASYNC110 - comes from afar
            await asyncio.sleep(0.1)


async def _status(http: aiohttp.ClientSession, url: str, token: str) -> int:
    async with http.get(url, headers={"Authorization": f"Bearer {token}"}) as answer:
        return answer.status


ODD = (
    b"GET /s/j-chat/../j-other/ HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /s/j-chat/%2e%2e/x HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /s/j-chat/..\\x HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET //s/j-chat/ HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /s/%00/ HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /s/j-chat/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    b"GET /s/j-chat/ HTTP/1.1\r\nHost: {env.HOME}\r\nX-Weft-To: 127.0.0.1:1\r\nContent-Length: 3, 4\r\n\r\nabc",
    b"POST /s/j-chat/ HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG",
    b"GET /s/j-chat/ HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
    b"GET /s/j-chat/\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
)


async def _head(reader: asyncio.StreamReader) -> bytes:
    """What is answered first; nothing if the connection ends."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except ConnectionError:
        return b""


async def test_what_is_odd_is_refused_and_what_stalls_delays_nobody_else(
    there: Town, http: aiohttp.ClientSession
) -> None:
    job = await there.service()
    other = await there.service("other", public=False)
    replica, secret = await there.replica(0), await there.replica(1)
    await there.tell(replica.endpoint(job), secret.endpoint(other))
    assert await posted(http, f"{there.url}/s/{job.id}/") == 200
    for odd in ODD:
        reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
        writer.write(odd)
        async with asyncio.timeout(60):
            said = await _head(reader)
        writer.close()
        assert not said or said.split()[1] in (b"400", b"404", b"405", b"431", b"401", b"501", b"200", b"502"), odd
    assert secret.asked == []
    assert len(replica.asked) < len(ODD)
    stalled = []
    for number in range(1000):
        _, writer = await asyncio.open_connection("127.0.0.1", there.port)
        writer.write(b"GET /s/j-chat/ HTTP/1.1\r\nHost: a\r\n" if number % 2 else b"POST /s/j-chat/ HT")
        stalled.append(writer)
    took = []
    for number in range(50):
        began = time.monotonic()
        assert await posted(http, f"{there.url}/s/{job.id}/{number}") == 200
        took.append(time.monotonic() - began)
    assert sorted(took)[25] < 0.5
    for writer in stalled:
        writer.close()
    async with http.get(f"{there.url}/nothing") as answer:
        assert (answer.status, "/s/JOB/" in error_of(await answer.read())) == (404, True)


async def test_what_waits_in_all_is_bounded(servers: Place, tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with town(servers, tmp_path, ROUTER_WAITING_MAX="5") as there:
        job, other = await there.service(timeout="1s"), await there.service("other", timeout="1s")
        asked = [posted(http, f"{there.url}/s/{one.id}/") for one in (job, other) for _ in range(5)]
        assert Counter(await asyncio.gather(*asked)) == {503: 5, 429: 5}


async def test_the_store_and_the_bus_may_be_away(there: Town, http: aiohttp.ClientSession) -> None:
    """What the router knows it serves on."""
    job = await there.service()
    replica = Replica(0, slow)
    await replica.start()
    await there.tell(replica.endpoint(job))
    assert await posted(http, f"{there.url}/s/{job.id}/") == 200
    assert await there.place.stores.owner.fetchval("SELECT count(*) FROM pg_stat_activity WHERE usename='weft_router'")
    await there.place.stores.owner.execute("ALTER ROLE weft_router NOLOGIN")
    try:
        await there.place.stores.owner.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'weft_router'"
        )
        await asyncio.sleep(6)
        assert await posted(http, f"{there.url}/s/{job.id}/") == 200
    finally:
        await there.place.stores.owner.execute("ALTER ROLE weft_router LOGIN")
        await replica.stop()


async def test_a_body_that_never_ends_is_ended_and_a_long_answer_is_not(
    servers: Place, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    async def served(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        if request.path == "/body":
            await request.read()
            return aiohttp.web.Response()
        stream = aiohttp.web.StreamResponse()
        await stream.prepare(request)
        for _ in range(8):
            await stream.write(b"x")
            await asyncio.sleep(0.5)
        return stream

    async with town(servers, tmp_path, ROUTER_BODY_SECONDS_MAX="1.5") as there:
        job = await there.service(concurrency=2)
        replica = await there.replica(0, served)
        await there.tell(replica.endpoint(job))

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield b"x"
                await asyncio.sleep(0.2)

        reading = asyncio.create_task(_read(http, f"{there.url}/s/{job.id}/answer"))
        began = time.monotonic()
        status = 0
        try:
            async with asyncio.timeout(60):
                async with http.post(f"{there.url}/s/{job.id}/body", data=endless()) as answer:
                    status = answer.status
        except aiohttp.ClientError:
            pass
        assert status in (0, 400, 408, 499, 502, 504)
        assert time.monotonic() - began < 10
        assert await reading == b"x" * 8
        await there.settled(job)


async def _read(http: aiohttp.ClientSession, url: str) -> bytes:
    async with http.get(url) as answer:
        return await answer.read()
