"""How soon a person sees something: the dashboard opened in a real Chromium, with nothing kept of earlier visits."""

import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import Struct
from playwright.async_api import Browser

from tests.support.chromium import chromium, chromium_path
from tests.support.dashboard import dashboard

VISITS = 5


class Opening(Struct, frozen=True, kw_only=True):
    """Of some visits the median: seconds from asking for the page to the first view, and to the first row of the queue;
    and the bytes of the first view on the wire."""

    first_view: float
    first_row: float
    weight: int


@asynccontextmanager
async def a_browser() -> AsyncIterator[Browser | None]:
    """None where there is no Chromium."""
    path = chromium_path()
    if path is None:
        yield None
        return
    async with chromium(path) as browser:
        yield browser


async def opening(browser: Browser, url: str, token: str, *, visits: int = VISITS) -> Opening:
    """Open the cluster's page and the queue's. The token is kept in the tab, so that a load needs no typing."""
    views, rows, weights = [], [], []
    for _ in range(visits):
        async with dashboard(browser, url) as window:
            await window.page.add_init_script(f"sessionStorage.setItem('weft.token', {token!r})")
            began = time.monotonic()
            await window.page.goto(f"{url}/#/cluster")
            await window.is_live()
            await window.is_shown()
            views.append(time.monotonic() - began)
            weights.append(sum((await window.watch.weight()).values()))
        async with dashboard(browser, url) as window:
            await window.page.add_init_script(f"sessionStorage.setItem('weft.token', {token!r})")
            began = time.monotonic()
            await window.page.goto(f"{url}/#/queue")
            await window.rows.first.wait_for()
            rows.append(time.monotonic() - began)
    return Opening(first_view=statistics.median(views), first_row=statistics.median(rows), weight=max(weights))
