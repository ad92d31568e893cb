"""The gateway serves the documentation by name, under a strict policy, and says how to get it where it is missing."""

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

from weftd.gateway.documentation import ABSENT, DOCUMENTATION_KEY, Documentation, page_of_documentation
from weftd.gateway.face import sha256_source

PAGE = b"<html><script>let a = 1</script><script id=x type=application/json>{}</script></html>"
FILES = {"index.html": PAGE, "decisions/README.html": b"<html></html>", "assets/a.js": b"1", "search/index.json": b"{}"}


@asynccontextmanager
async def serving(files: dict[str, bytes]) -> AsyncIterator[aiohttp.ClientSession]:
    app = web.Application()
    app[DOCUMENTATION_KEY] = Documentation({name: gzip.compress(content) for name, content in files.items()})
    app.router.add_get("/docs", page_of_documentation)
    app.router.add_get("/docs/{name:.*}", page_of_documentation)
    server = TestServer(app)
    await server.start_server()
    async with aiohttp.ClientSession(str(server.make_url("")), auto_decompress=False) as session:
        yield session
    await server.close()


@pytest.mark.parametrize("accepted", ["gzip", "identity"])
async def test_a_page_is_served_with_its_type_and_as_the_reader_takes_it(accepted: str) -> None:
    async with serving(FILES) as http:
        for path, kind in (("", "text/html"), ("assets/a.js", "text/javascript"), ("search/index.json", "application")):
            async with http.get(f"/docs/{path}", headers={"Accept-Encoding": accepted}) as answer:
                assert answer.headers["Content-Type"].startswith(kind)
                body = await answer.read()
                assert (gzip.decompress(body) if accepted == "gzip" else body) == FILES[path or "index.html"]
        async with http.get("/docs", headers={"Accept-Encoding": accepted}) as answer:
            assert (answer.status, answer.url.path) == (200, "/docs/")


async def test_a_page_that_did_not_change_is_not_sent_again() -> None:
    async with serving(FILES) as http:
        async with http.get("/docs/index.html") as first:
            tag = first.headers["ETag"]
        async with http.get("/docs/index.html", headers={"If-None-Match": tag}) as again:
            assert (again.status, await again.read()) == (304, b"")


async def test_only_the_scripts_within_a_page_are_executed_on_it() -> None:
    async with serving(FILES) as http:
        async with http.get("/docs/index.html") as answer:
            policy = answer.headers["Content-Security-Policy"]
        assert f"script-src 'self' {sha256_source(b'let a = 1')};" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        async with http.get("/docs/decisions/README.html") as answer:
            assert "script-src 'self';" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize("name", ["../app.py", "%2e%2e%2fapp.py", "none.html", "decisions", "a" * 4000])
async def test_no_name_leads_out_of_the_archive(name: str) -> None:
    async with serving(FILES) as http, http.get(URL(f"/docs/{name}", encoded=True)) as answer:
        assert answer.status == 404


@pytest.mark.parametrize("path", ["/docs", "/docs/", "/docs/index.html"])
async def test_an_installation_without_it_says_in_one_sentence_how_to_get_it(path: str) -> None:
    async with serving({}) as http, http.get(path) as answer:
        assert (answer.status, await answer.text()) == (404, ABSENT)
    assert ABSENT.count(". ") == 0
    assert "make docs" in ABSENT
