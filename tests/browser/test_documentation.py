"""The documentation site: built strictly, served by the gateway's own code, and read in a browser without a network."""

import re
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from playwright.async_api import Browser, ConsoleMessage, Request, expect

from tests.support.site import build
from weft.version import version
from weftd.gateway.documentation import DOCUMENTATION_KEY, Documentation, page_of_documentation

ARCHIVE_BYTES_MAX = 4_000_000
SHOWN_MS = 60_000
pytestmark = pytest.mark.timeout(600)  # the builder takes seconds, and minutes on a busy machine


@pytest.fixture(scope="module")
def archive(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After the browser: where there is none, nothing is built in vain."""
    made = tmp_path_factory.mktemp("site") / "documentation.zip"
    build(made)
    return made


@pytest.fixture(scope="module")
async def site(archive: Path) -> AsyncIterator[str]:
    app = web.Application()
    with zipfile.ZipFile(archive) as read:
        app[DOCUMENTATION_KEY] = Documentation({name: read.read(name) for name in read.namelist()})
    app.router.add_get("/docs", page_of_documentation)
    app.router.add_get("/docs/{name:.*}", page_of_documentation)
    server = TestServer(app)
    await server.start_server()
    yield str(server.make_url("/docs"))
    await server.close()


def test_the_archive_is_small(archive: Path) -> None:
    assert archive.stat().st_size < ARCHIVE_BYTES_MAX


async def test_pages_and_search_work_under_the_policy_and_ask_nobody_else(browser: Browser, site: str) -> None:
    page = await browser.new_page()
    page.set_default_timeout(SHOWN_MS)
    told: list[str] = []
    asked: list[str] = []

    def console(message: ConsoleMessage) -> None:
        told.extend([message.text] if message.type in ("error", "warning") else [])

    def request(each: Request) -> None:
        asked.append(each.url)

    page.on("console", console)
    page.on("request", request)
    try:
        await page.goto(site)
        await expect(page.get_by_role("heading", level=1)).to_contain_text("Weft", timeout=SHOWN_MS)
        await expect(page.locator(".md-footer")).to_contain_text(version())
        await page.locator(".md-nav--primary").get_by_role("link", name="Concepts").last.click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text("Concepts", timeout=SHOWN_MS)
        await page.locator(".md-search__input").first.fill("idempotency")
        found = page.locator(".md-search-result__item").first
        await expect(found).to_contain_text(re.compile("idempotency", re.IGNORECASE), timeout=SHOWN_MS)
    finally:
        await page.close()
    assert not told
    origin = site.removesuffix("/docs")
    assert not [url for url in asked if not url.startswith((f"{origin}/docs", "data:", "blob:"))]
