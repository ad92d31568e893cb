"""A file of a job is fetched whole, whatever part of it an earlier call left and whatever stands in between."""

import hashlib
import os
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from weft.client import Client

TEXT = b"weights" * 1000
MARK = '"1-2-3"'


@pytest.mark.parametrize("honours_range", [True, False])
async def test_a_part_that_came_before_is_completed_or_dropped(tmp_path: Path, honours_range: bool) -> None:
    asked: list[str] = []

    async def file(request: web.Request) -> web.Response:
        wanted = request.headers.get("Range", "")
        asked.append(wanted)
        if not wanted or not honours_range:
            return web.Response(body=TEXT, headers={"ETag": MARK})
        begin = int(wanted.removeprefix("bytes=").rstrip("-"))
        told = {"ETag": MARK, "Content-Range": f"bytes {begin}-{len(TEXT) - 1}/{len(TEXT)}"}
        return web.Response(status=206, body=TEXT[begin:], headers=told)

    app = web.Application()
    app.router.add_get("/v1/jobs/j-1/file", file)
    name = hashlib.sha256(f"j-1 results/a {MARK} a".encode()).hexdigest()[:16]
    (tmp_path / f".weft-{name}").write_bytes(TEXT[:100])
    async with TestServer(app) as server, Client(str(server.make_url("/")), "t") as client:
        assert await client.fetch_file("j-1", "results/a", tmp_path / "a") == len(TEXT)
    assert (tmp_path / "a").read_bytes() == TEXT
    assert asked == ["", "bytes=100-", *([] if honours_range else [""])]
    assert os.listdir(tmp_path) == ["a"]
