"""The burst of the demo counts every request that it sends, whatever becomes of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer

from weftd.cli.demo.burst import Burst, send


@asynccontextmanager
async def serving(*statuses: int) -> AsyncIterator[tuple[str, list[str]]]:
    """Answers with these in turn, over and over; 0 breaks the connection."""
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization", ""))
        status = statuses[(len(seen) - 1) % len(statuses)]
        if not status:
            assert request.transport is not None
            request.transport.abort()
        await asyncio.sleep(0.05)
        return web.Response(status=status or 200)

    app = web.Application()
    app.router.add_post("/", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("/")), seen


async def test_requests_are_sent_when_they_are_due_with_the_token_and_all_are_counted() -> None:
    burst = Burst()
    async with serving(200, 200, 429, 503) as (url, seen):
        await send(url, "t", rate=200.0, over=lambda _: burst.sent >= 40, burst=burst)
    assert (burst.sent, burst.answered, burst.refused, burst.failed) == (40, 20, 10, 10)
    assert seen == ["Bearer t"] * 40
    assert len(burst.seconds) == 20
    assert burst.within(0.0) >= 0.04


async def test_a_connection_that_breaks_is_a_failed_request() -> None:
    burst = Burst()
    async with serving(0) as (url, _):
        await send(url, "t", rate=100.0, over=lambda _: burst.sent >= 3, burst=burst)
    assert (burst.sent, burst.failed) == (3, 3)
