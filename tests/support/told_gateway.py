"""A gateway that answers what a test tells it to, over real HTTP, and remembers what it was asked."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer

from weft.messages.http import ErrorDetail, ErrorView
from weftd.cli.__main__ import main


class ToldGateway:
    """`answers` by `METHOD /path`: a view, bytes, or a refusal; of a deque one after the other, the last for ever. What
    is not told is a 404.

    An answer by `METHOD /path?name=value` is for requests whose first parameter is that one.
    """

    def __init__(self) -> None:
        self.answers: dict[str, object] = {}
        self.asked: list[str] = []
        self.bodies: list[bytes] = []
        self.log_headers: dict[str, str] = {}  # further ones, of answers that are bytes
        self.url = ""

    def refuse(self, what: str, status: int, field: str, reason: str, *, retry_after: int = 0) -> None:
        body = msgspec.json.encode(ErrorView(error=ErrorDetail(field=field, reason=reason, status=status)))
        headers = {"Retry-After": str(retry_after)} if retry_after else {}
        self.answers[what] = web.Response(status=status, body=body, headers=headers)

    async def answer(self, request: web.Request) -> web.Response:
        what = f"{request.method} {request.path}"
        self.asked.append(f"{request.method} {request.path_qs}")
        self.bodies.append(await request.read())
        first = f"{what}?{request.query_string.partition('&')[0]}"
        answer = self.answers.get(first, self.answers.get(what))
        if isinstance(answer, deque):
            answer = answer.popleft() if len(answer) > 1 else answer[0]
        match answer:
            case None:
                told = msgspec.json.encode(ErrorView(error=ErrorDetail(field="", reason=f"nothing at {what}")))
                return web.Response(status=404, body=told)
            case web.Response() as response:
                return web.Response(status=response.status, body=response.body, headers=response.headers)
            case bytes() as told:
                return web.Response(body=told, headers={"X-Weft-Epoch": "0", **self.log_headers})
            case view:
                return web.Response(body=msgspec.json.encode(view))


@asynccontextmanager
async def told_gateway() -> AsyncIterator[ToldGateway]:
    gateway = ToldGateway()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", gateway.answer)
    async with TestServer(app) as server:
        gateway.url = str(server.make_url("")).rstrip("/")
        yield gateway


async def weft(gateway: ToldGateway, *typed: str) -> int:
    """The exit status of `weft`, run in this process: in a thread of its own, since it makes its own event loop."""
    name, *rest = typed
    words = rest.index("--") if "--" in rest else len(rest)
    place = ["--url", gateway.url, "--token", "t"]
    words = 0 if name == "run" else words  # its command takes all that follows
    arguments = [name, *rest[:words], *place, *rest[words:]]
    return await asyncio.to_thread(main, arguments)
