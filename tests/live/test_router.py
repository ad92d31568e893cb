"""A real router: Caddy, the gate, and replicas that are real HTTP servers."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import aiohttp
import aiohttp.web

from tests.support.gateway import until
from tests.support.routers import Replica, Town, error_of
from weft.messages.serving import ReplicaEnded


async def test_a_request_reaches_a_replica_below_its_path(there: Town, http: aiohttp.ClientSession) -> None:
    job = await there.service(path="/v1")
    replica = await there.replica(3)
    await there.tell(replica.endpoint(job))
    headers = {"X-Weft-Request-Id": "mine", "Connection": "X-Weft-Uri, keep-alive", "Cookie": "a=1; weft_token=x; b=2"}
    url = f"{there.url}/s/{job.id}/a%2Fb//c?x=%7Bhttp.vars.weft_request_id%7D&y={{env.HOME}}"
    async with http.post(url, data=b"hello", headers=headers) as answer:
        told = await answer.json()
    assert answer.status == 200
    assert (told["rank"], told["method"], told["bytes"]) == (3, "POST", 5)
    assert told["path"].startswith("/v1/a%2Fb//c?x=%7Bhttp.vars.weft_request_id%7D&y=")
    assert told["headers"]["Cookie"] == "a=1; b=2"
    ours = {name: value for name, value in told["headers"].items() if name.lower().startswith("x-weft")}
    assert ours == {"X-Weft-Auth": "public"}
    await until(lambda: there.last(job).answered == 1)
    served = there.last(job)
    assert (served.arrived, served.answered, served.refused, served.failed) == (1, 1, 0, 0)
    assert sum(served.totals.values()) == sum(served.services.values()) == 1


async def test_every_way_of_http_goes_through(there: Town, http: aiohttp.ClientSession) -> None:
    """A WebSocket; events one by one as they come; a body of 100 MB there and back."""

    async def served(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        if request.path == "/ws":
            socket = aiohttp.web.WebSocketResponse()
            await socket.prepare(request)
            async for message in socket:
                await socket.send_str(f"heard {message.data}")
            return socket
        if request.path == "/events":
            stream = aiohttp.web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await stream.prepare(request)
            for number in range(5):
                await stream.write(f"data: {number}\n\n".encode())
                await came.acquire()  # the event before has arrived
            return stream
        stream = aiohttp.web.StreamResponse()
        await stream.prepare(request)
        async for chunk in request.content.iter_chunked(1 << 20):
            await stream.write(chunk)
        return stream

    came, events = asyncio.Semaphore(0), 0
    job = await there.service(concurrency=4)
    replica = await there.replica(0, served)
    await there.tell(replica.endpoint(job))
    url = f"{there.url}/s/{job.id}"
    async with http.ws_connect(f"{url}/ws") as socket:
        await socket.send_str("a")
        assert (await socket.receive()).data == "heard a"
        await there.settled(job, in_flight=1)
    await there.settled(job)
    async with http.get(f"{url}/events") as answer:
        async for line in answer.content:
            if line.strip():
                events += 1
                came.release()
    assert events == 5
    size = 100 << 20
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < size:
            yield bytes(1 << 20)
            sent += 1 << 20

    read = 0
    async with http.post(f"{url}/echo", data=body()) as answer:
        async for chunk in answer.content.iter_chunked(1 << 20):
            read += len(chunk)
    assert read == size
    await there.settled(job)
    await until(lambda: there.last(job).answered == 3)


async def test_requests_for_a_service_at_zero_wait_in_order_until_it_wakes(
    there: Town, http: aiohttp.ClientSession
) -> None:
    order: list[str] = []

    async def slow(request: aiohttp.web.Request) -> aiohttp.web.Response:
        order.append(request.path)
        await asyncio.sleep(0.02)
        return aiohttp.web.Response(text=str(len(await request.read())))

    job = await there.service(queue=12, concurrency=1)
    replica = await there.replica(0, slow)
    asked = []
    for number in range(16):
        asked.append(asyncio.create_task(_posted(http, f"{there.url}/s/{job.id}/{number}")))
        await until_heard(there, lambda: there.last(job).arrived == len(asked))
    await until(lambda: sum(one.done() for one in asked) == 4)
    refused = [one.result() for one in asked if one.done()]
    assert [status for status, _, _ in refused] == [429] * 4
    assert all(again == "1" for _, again, _ in refused)
    await until_heard(there, lambda: there.last(job) is not None and there.last(job).queued == 12)
    await there.tell(replica.endpoint(job))
    answers = await asyncio.gather(*asked)
    assert sorted(status for status, _, _ in answers) == [200] * 12 + [429] * 4
    assert order == [f"/{number}" for number in range(12)]
    assert replica.most == 1
    await until(lambda: there.last(job).answered == 12)
    served = there.last(job)
    assert (served.arrived, served.answered, served.refused, served.queued) == (16, 12, 4, 0)


async def test_a_caller_of_the_tenant_reads_why_no_replica_is_ready_and_a_stranger_does_not(
    there: Town, http: aiohttp.ClientSession
) -> None:
    own = await there.service("own", public=False, timeout="500ms")
    public = await there.service("public", timeout="500ms")
    unready = Replica(0)
    why = {"ready": False, "why": "connection refused at port 1; it listens on port 8000", "last_words": "Uvicorn"}
    await there.tell(unready.endpoint(own, **why), unready.endpoint(public, **why))
    await there.known(own, 0)
    token = {"Authorization": f"Bearer {there.tokens['alice']}"}
    async with http.get(f"{there.url}/s/{own.id}/", headers=token) as answer:
        told = error_of(await answer.read())
    assert "none is ready: its replica 0 is not ready: connection refused at port 1; it listens on port 8000" in told
    assert told.endswith("Its last words:\nUvicorn")
    async with http.get(f"{there.url}/s/{public.id}/") as answer:
        assert error_of(await answer.read()).endswith("and none is ready")
    await there.tell(
        ended=(ReplicaEnded(job_id=own.id, epoch=0, rank=3, why="it ended with status 1", last_words="boom"),)
    )
    await there.known(own)
    async with http.get(f"{there.url}/s/{own.id}/", headers=token) as answer:
        told = error_of(await answer.read())
    assert told.endswith("its replica 3: it ended with status 1. Its last words:\nboom")


async def test_what_waits_too_long_is_told_so_and_a_client_that_leaves_waits_no_more(
    there: Town, http: aiohttp.ClientSession
) -> None:
    job = await there.service(timeout="500ms")
    began = time.monotonic()
    async with http.get(f"{there.url}/s/{job.id}/") as answer:
        assert answer.status == 503
        assert "none is ready" in error_of(await answer.read())
    assert 0.4 < time.monotonic() - began < 20.0, "not the minute of a service that sets none"
    other = await there.service("patient", timeout="60s")
    asking = asyncio.create_task(_posted(http, f"{there.url}/s/{other.id}/"))
    await until_heard(there, lambda: there.last(other) is not None and there.last(other).queued == 1)
    asking.cancel()
    await until_heard(there, lambda: there.last(other).queued == 0)
    assert there.last(other).arrived == 1


async def test_a_client_that_leaves_ends_its_request_at_the_replica(there: Town, http: aiohttp.ClientSession) -> None:
    async def hangs(request: aiohttp.web.Request) -> aiohttp.web.Response:
        await asyncio.sleep(60)
        return aiohttp.web.Response()

    job = await there.service(concurrency=1)
    replica = await there.replica(0, hangs)
    await there.tell(replica.endpoint(job))
    asking = asyncio.create_task(_posted(http, f"{there.url}/s/{job.id}/"))
    await until(lambda: replica.now == 1)
    asking.cancel()
    await until(lambda: replica.gone == 1)
    await there.settled(job)
    assert there.last(job).failed == 0


async def test_a_replica_that_is_dead_costs_no_request_and_a_post_that_may_have_run_is_not_sent_again(
    there: Town, http: aiohttp.ClientSession
) -> None:
    async def cuts(request: aiohttp.web.Request) -> aiohttp.web.Response:
        assert request.transport is not None
        await request.read()
        request.transport.abort()
        return aiohttp.web.Response()

    job = await there.service()
    alive, cutting, dead = await there.replica(0), await there.replica(1, cuts), Replica(2)
    await there.tell(dead.endpoint(job), alive.endpoint(job))
    answers = [await _posted(http, f"{there.url}/s/{job.id}/{number}") for number in range(20)]
    assert [status for status, _, _ in answers] == [200] * 20
    await there.tell(cutting.endpoint(job))
    await there.known(job, 1)
    status, _, body = await _posted(http, f"{there.url}/s/{job.id}/once")
    assert (status, len(cutting.asked)) == (502, 1)
    assert "may have run" in error_of(body)
    await there.tell(cutting.endpoint(job), alive.endpoint(job))
    await there.known(job, 0, 1)
    for number in range(6):
        async with http.get(f"{there.url}/s/{job.id}/{number}") as answer:
            assert answer.status == 200


async def test_a_replica_that_hangs_or_answers_garbage_has_its_sentence(
    there: Town, http: aiohttp.ClientSession
) -> None:
    async def hangs(request: aiohttp.web.Request) -> aiohttp.web.Response:
        await asyncio.sleep(60)
        return aiohttp.web.Response()

    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\x00\x01 nothing of HTTP\r\n\r\n")
        await writer.drain()
        writer.close()

    job = await there.service(timeout="500ms")
    replica = await there.replica(0, hangs)
    await there.tell(replica.endpoint(job))
    status, _, body = await _posted(http, f"{there.url}/s/{job.id}/")
    assert (status, "did not begin its answer" in error_of(body)) == (504, True)
    other = Replica(1)
    server = await asyncio.start_server(garbage, "127.0.0.1", other.port)
    await there.tell(other.endpoint(job))
    await there.known(job, 1)
    status, _, body = await _posted(http, f"{there.url}/s/{job.id}/")
    assert (status, "before it answered" in error_of(body)) == (502, True)
    server.close()
    await server.wait_closed()


async def _posted(http: aiohttp.ClientSession, url: str) -> tuple[int, str, bytes]:
    async with http.post(url, data=b"hello") as answer:
        return answer.status, answer.headers.get("Retry-After", ""), await answer.read()


async def until_heard(there: Town, true: Callable[[], bool]) -> None:
    await until(true)
