"""Requests through the router end with the session or the token by which they were let in."""

import asyncio
import io
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import aiohttp.web
import pytest

from tests.support.gateway import until
from tests.support.routers import Town, keep_token, one_time_code
from weft.domain.job import Job
from weft.store.audit import Actor

REVOKED_SECONDS_MAX = 5.0  # the promise of docs/people.md
BUSY_SECONDS = 10.0  # a busy machine may add these
SIZE = 8 << 20


async def served(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
    """A stream without end; a socket that repeats what it hears; the body of a POST."""
    if request.path == "/socket":
        socket = aiohttp.web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(message.data)
        return socket
    if request.method == "POST":
        return aiohttp.web.Response(body=await request.read())
    answer = aiohttp.web.StreamResponse()
    await answer.prepare(request)
    while True:
        await answer.write(b"on\n")
        await asyncio.sleep(0.05)


@asynccontextmanager
async def serving(there: Town) -> AsyncIterator[tuple[Job, str]]:
    job = await there.service(public=False)
    replica = await there.replica(0, served)
    await there.tell(replica.endpoint(job))
    await there.known(job, 0)
    yield job, f"{there.url}/s/{job.id}/"  # without the slash a large POST is redirected, and reset, while it is sent


async def signed_in(there: Town, http: aiohttp.ClientSession, job: Job) -> tuple[str, dict[str, str]]:
    """The id of a browser's new session for the service, and its cookie."""
    code = await one_time_code(there, "alice", job.id)
    async with http.get(f"{there.url}/s/{job.id}/?weft_code={code}", allow_redirects=False) as answer:
        assert answer.status == 302, await answer.text()
        cookie = answer.headers["Set-Cookie"].partition(";")[0]
    newest, *_ = await there.place.stores.gateway.sessions(tenant="alice", at=time.time(), limit=1)
    return newest.id, {"Cookie": cookie}


async def end_session(there: Town, session: str) -> None:
    ended = await there.place.stores.gateway.end_session(session, tenant=None, at=time.time(), actor=Actor())
    assert ended == "alice"


async def until_cut(answer: aiohttp.ClientResponse) -> None:
    """Wait until the stream breaks off: it must not look whole."""
    with pytest.raises(aiohttp.ClientError):
        async for _ in answer.content.iter_any():
            pass


async def status_of(http: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> int:
    async with http.get(url, headers=headers) as answer:
        return answer.status


async def test_all_that_a_session_has_open_ends_with_it_and_nothing_of_another(
    there: Town, http: aiohttp.ClientSession
) -> None:
    async with serving(there) as (job, url):
        (session, gone), (_, kept) = await signed_in(there, http, job), await signed_in(there, http, job)
        async with (
            http.get(url, headers=gone) as ending,
            http.get(url, headers=kept) as staying,
            http.ws_connect(f"{url}socket", headers=gone) as socket,
        ):
            await socket.send_str("hello")
            assert (await socket.receive()).data == "hello"
            assert await ending.content.readline() == b"on\n"
            began = time.monotonic()
            await end_session(there, session)
            await until_cut(ending)
            assert (await socket.receive()).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
            assert time.monotonic() - began < REVOKED_SECONDS_MAX + BUSY_SECONDS
            for _ in range(10):
                assert await staying.content.readline() == b"on\n"
        async with asyncio.timeout(REVOKED_SECONDS_MAX + BUSY_SECONDS):
            while await status_of(http, url, gone) != 401:  # noqa: ASYNC110 - a look-up is used again for 2 s
                await asyncio.sleep(0.1)
        await there.settled(job)


async def test_what_may_last_ends_with_the_token_of_a_program(there: Town, http: aiohttp.ClientSession) -> None:
    await keep_token(there.place, "weft_of-a-program", "alice")
    headers = {"Authorization": "Bearer weft_of-a-program"}
    async with (
        serving(there) as (_, url),
        http.ws_connect(f"{url}socket", headers=headers) as socket,
        http.get(url, headers={**headers, "Accept": "text/event-stream"}) as stream,
    ):
        assert await stream.content.readline() == b"on\n"
        assert await there.place.stores.gateway.revoke_tokens(tenant="alice", label="test", at=time.time())
        await until_cut(stream)
        assert (await socket.receive()).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)


async def test_a_gate_that_is_killed_keeps_no_session_open(there: Town, http: aiohttp.ClientSession) -> None:
    async with serving(there) as (job, url):
        session, headers = await signed_in(there, http, job)
        async with http.get(url, headers=headers) as answer:
            os.kill(there.children()["gate"], signal.SIGKILL)
            for _ in range(10):
                assert await answer.content.readline() == b"on\n"
            await end_session(there, session)
            await until_cut(answer)


async def test_a_relay_that_is_killed_ends_what_it_carries_and_is_back(
    there: Town, http: aiohttp.ClientSession
) -> None:
    async with serving(there) as (job, url):
        _, headers = await signed_in(there, http, job)
        async with http.get(url, headers=headers) as answer:
            assert await answer.content.readline() == b"on\n"
            os.kill(there.children()["relay"], signal.SIGKILL)
            await until_cut(answer)
        body = os.urandom(SIZE)
        async with http.post(url, data=io.BytesIO(body), headers=headers) as answer:
            assert (answer.status, await answer.read()) == (200, body)
        await until(lambda: not [*there.home.glob("via-*")])
