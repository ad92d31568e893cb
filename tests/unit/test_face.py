"""The dashboard's files are served by name alone, for ever, under the digest of all of them."""

import gzip
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hatchling.builders.wheel import WheelBuilder
from yarl import URL

from weftd.gateway.api.operations import OPERATIONS
from weftd.gateway.app import application
from weftd.gateway.face import PAGE, Face, packaged
from weftd.gateway.gateway import Gateway
from weftd.gateway.http.documents import FACE_KEY
from weftd.gateway.limits.streams import Streams
from weftd.gateway.metrics import RequestMeters

ROOT = Path(__file__).parents[2]
FILES = {
    "index.html": b'<script type="module" src="/face/{digest}/app.js"></script>',
    "app.js": b"// " + b"a" * 2000,
    "style.css": b"b{}",
}
ANSWER = aiohttp.ClientTimeout(total=20)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A gateway's application, without the servers behind it: these pages need none."""
    meters = RequestMeters(Streams(1, 1))
    app = application(cast(Gateway, SimpleNamespace(meters=meters, store_is_away=False)), operations=OPERATIONS)
    app[FACE_KEY] = Face(FILES)
    server = TestServer(app)
    await server.start_server()
    async with aiohttp.ClientSession(str(server.make_url("")), timeout=ANSWER, auto_decompress=False) as session:
        yield session
    await server.close()


async def test_the_page_loads_its_files_by_their_digest(http: aiohttp.ClientSession) -> None:
    async with http.get("/") as answer:
        assert answer.status == 200
        assert answer.headers["Cache-Control"] == "no-cache"
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        page, tag = await answer.text(), answer.headers["ETag"]
    path = page.partition('src="')[2].partition('"')[0]
    assert path == f"/face/{Face(FILES).digest}/app.js"
    async with http.get(path, headers={"Accept-Encoding": "br, gzip"}) as answer:
        assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable"
        assert answer.headers["Content-Type"] == "text/javascript; charset=utf-8"
        assert answer.headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(await answer.read()) == FILES["app.js"]
    async with http.get("/", headers={"If-None-Match": tag}) as answer:
        assert answer.status == 304


@pytest.mark.parametrize("accepted", ["", "identity", "br", "gzip;q=0"])
async def test_a_reader_that_takes_no_gzip_gets_the_bytes_as_they_are(
    http: aiohttp.ClientSession, accepted: str
) -> None:
    async with http.get(f"/face/{Face(FILES).digest}/app.js", headers={"Accept-Encoding": accepted}) as answer:
        assert "Content-Encoding" not in answer.headers
        assert await answer.read() == FILES["app.js"]


async def test_bytes_that_gain_nothing_are_not_compressed(http: aiohttp.ClientSession) -> None:
    async with http.get(f"/face/{Face(FILES).digest}/style.css", headers={"Accept-Encoding": "gzip"}) as answer:
        assert "Content-Encoding" not in answer.headers
        assert await answer.read() == b"b{}"


async def test_scripts_and_styles_come_from_the_gateway_alone(http: aiohttp.ClientSession) -> None:
    for path in ("/", f"/face/{Face(FILES).digest}/app.js"):
        async with http.get(path) as answer:
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert "http" not in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "name",
    [
        "..%2f..%2ferrors.py",
        "%2e%2e%2f__init__.py",
        "..%5c..%5cerrors.py",
        "%2Fetc%2Fpasswd",
        "app.js%00.css",
        "none.js",
        "index.html",  # the page is at `/`, where it is asked for again
        "%F0%9F%92%A9",
        "a" * 4000,
    ],
)
async def test_no_name_leads_out_of_the_folder(http: aiohttp.ClientSession, name: str) -> None:
    path = URL(f"/face/{Face(FILES).digest}/{name}", encoded=True)
    async with http.get(path) as answer:
        assert answer.status in (400, 404), await answer.text()
        assert answer.headers["Content-Type"].startswith("application/problem+json")
        assert "immutable" not in answer.headers.get("Cache-Control", "")


async def test_a_file_of_another_version_is_refused_and_not_kept(http: aiohttp.ClientSession) -> None:
    async with http.get("/face/0123456789abcdef/app.js") as answer:
        assert answer.status == 404
        assert "Cache-Control" not in answer.headers
        assert "load its page again" in await answer.text()


def test_another_content_or_another_name_has_another_digest() -> None:
    digests = {
        Face(files).digest
        for files in (
            FILES,
            {**FILES, "app.js": b"b"},
            {PAGE: FILES[PAGE]},
            {**FILES, "b.js": b""},
            {PAGE: b"", "a.js": b"b"},
        )
    }
    assert len(digests) == 5


def test_a_folder_without_a_page_or_with_an_unknown_file_is_refused() -> None:
    with pytest.raises(ValueError, match=PAGE):
        Face({"app.js": b""})
    with pytest.raises(ValueError, match=r"notes\.bin"):
        Face({PAGE: b"", "notes.bin": b""})


def test_an_installed_gateway_has_every_file_of_the_dashboard() -> None:
    builder = WheelBuilder(str(ROOT))
    built = {each.distribution_path for each in builder.recurse_included_files()}
    names = packaged().names
    assert PAGE in names
    assert {f"weftd/gateway/face/{name}" for name in names} <= built


def test_the_image_is_built_from_what_has_the_dashboard() -> None:
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    assert "!services" in kept
    assert not [
        line
        for line in kept
        if not line.startswith("!") and ("face" in line or line.endswith((".js", ".css", ".html")))
    ]


def test_only_responses_of_pages_are_kept_for_ever() -> None:
    """A page that says `immutable` of itself could never be replaced."""
    request = cast(web.Request, SimpleNamespace(headers={}))
    assert Face(FILES).page(request).headers["Cache-Control"] == "no-cache"
