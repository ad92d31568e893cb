"""Stands between a browser and a gateway, and puts another text wherever the gateway writes a job's name: no such name
can be submitted, or stored, and a page must bear it all the same."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp
from aiohttp import web

KEPT = (
    "Content-Type",
    "Content-Security-Policy",
    "Cache-Control",
    "ETag",
    "Retry-After",
    "X-Content-Type-Options",
    "Set-Cookie",
)
SENT = ("Authorization", "Accept", "Content-Type", "Last-Event-ID", "Cookie", "X-Weft-Session")


@asynccontextmanager
async def renaming(url: str, name: str, text: str) -> AsyncIterator[str]:
    """The address of a gateway like the one at `url`, whose jobs named `name` are named `text`."""
    before, after = (json.dumps(each)[1:-1].encode() for each in (name, text))

    async def pass_on(request: web.Request) -> web.StreamResponse:
        headers = {key: request.headers[key] for key in SENT if key in request.headers}
        async with session.request(
            request.method, f"{url}{request.raw_path}", headers=headers, data=await request.read()
        ) as answer:
            told = {key: answer.headers[key] for key in KEPT if key in answer.headers}
            response = web.StreamResponse(status=answer.status, headers=told)
            await response.prepare(request)
            is_page = "json" not in answer.content_type and "event-stream" not in answer.content_type
            with suppress(ConnectionResetError):  # the browser has gone to another page
                async for line in answer.content:  # whole lines: a name is never in two
                    await response.write(line if is_page else line.replace(before, after))
            return response

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", pass_on)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    timeout, no_cookies = aiohttp.ClientTimeout(total=None), aiohttp.DummyCookieJar()  # those of the browser pass
    async with aiohttp.ClientSession(timeout=timeout, cookie_jar=no_cookies, read_bufsize=1 << 22) as session:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()
