"""The Chromium of this machine, driven by Playwright, and a watch over what a page of ours must never do."""

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, ConsoleMessage, Dialog, Page, Request, Response, async_playwright

from tests.support import steady_network

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",  # root may not have one
    "--disable-gpu",
    "--disable-dev-shm-usage",  # a container's /dev/shm may be small
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
PHONE = {"width": 375, "height": 812}
DESK = {"width": 1280, "height": 900}
PATIENCE_MS = 60_000  # for whatever a page should show: the machine may be busy
POLICY = "Content Security Policy"


def chromium_path() -> str | None:
    """The first Chromium of this machine's PATH."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def need_chromium() -> str:
    """Skip the test where there is no Chromium; where one has been promised (WEFT_CI_CHROMIUM=1), fail it."""
    found = chromium_path()
    if found is None:
        reason = "no Chromium here (Debian: apt-get install chromium)"
        if os.environ.get("WEFT_CI_CHROMIUM") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@asynccontextmanager
async def chromium(path: str) -> AsyncIterator[Browser]:
    with tempfile.TemporaryDirectory() as folder:
        program = _steady(path, Path(folder))
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=program, args=list(FLAGS))
            yield browser
            await browser.close()


def _steady(chromium: str, folder: Path) -> Path:
    """A program that executes this Chromium, as steady_network.py says."""
    words = [sys.executable, "-I", steady_network.__file__, chromium]
    program = folder / "chromium"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    program.chmod(0o700)
    return program


class Watch:
    """Everything that a page of ours must never do. `faults` is in the order in which they came.

    `expected`: parts of console lines that the test itself brings about (a refused request writes one).
    """

    def __init__(self, page: Page, url: str) -> None:
        self.faults: list[str] = []
        self.expected: set[str] = set()
        self.asked: list[str] = []  # paths of the gateway, as they were asked for
        self._host = urlsplit(url).netloc
        self._responses: list[Response] = []
        page.on("request", self._request)
        page.on("response", lambda response: self._responses.append(response))
        page.on("console", self._console)
        page.on("dialog", self._dialog)
        page.on("pageerror", lambda error: self._fault(f"an error that nothing caught: {error}"))
        page.on("popup", lambda popup: self._fault(f"another window: {popup.url}"))
        page.on("download", lambda download: self.asked.append(f"download {download.suggested_filename}"))

    def expect(self, *parts: str) -> None:
        self.expected.update(parts)

    async def weight(self) -> dict[str, int]:
        """Bytes of what was fetched so far, by path, as it came over the wire. Streams that go on are left out."""
        found = {}
        for response in self._responses:
            if "event-stream" not in response.headers.get("content-type", ""):
                sizes = await response.request.sizes()
                found[urlsplit(response.url).path] = sizes["responseBodySize"] + sizes["responseHeadersSize"]
        return found

    def _request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("data", "blob"):
            return
        self.asked.append(f"{request.method} {parts.path}")
        if parts.netloc != self._host:
            self._fault(f"a request to another host: {request.url}")
        if "weft_" in parts.query:
            self._fault(f"a token in an address: {request.url}")

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") or POLICY in message.text:
            told = f"{message.text} ({message.location.get('url', '')})"
            if not any(part in told for part in self.expected):
                self._fault(f"console: {told}")

    async def _dialog(self, dialog: Dialog) -> None:
        self._fault(f"a dialog: {dialog.message}")
        await dialog.dismiss()

    def _fault(self, fault: str) -> None:
        self.faults.append(fault)


@asynccontextmanager
async def watched(
    browser: Browser, url: str, *, dark: bool = False, size: Mapping[str, int] = DESK, **options: Any
) -> AsyncIterator[tuple[Page, Watch]]:
    """A new window with nothing of earlier ones; what it did wrong fails the test when the block ends without error."""
    context = await browser.new_context(
        color_scheme="dark" if dark else "light",
        viewport={"width": size["width"], "height": size["height"]},
        reduced_motion="reduce",
        **options,
    )
    context.set_default_timeout(PATIENCE_MS)
    try:
        page = await context.new_page()
        watch = Watch(page, url)
        try:
            yield page, watch
        except Exception as error:
            error.add_note("\n".join(["the page until then:", *watch.faults, *watch.asked]))
            raise
        if watch.faults:
            raise AssertionError("the page did what it must not:\n" + "\n".join(watch.faults))
    finally:
        await context.close()
