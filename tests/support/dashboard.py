"""The dashboard as a person meets it: by the names and roles of what is on the page, never by its classes."""

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Locator, Page, expect

from tests.support.chromium import PATIENCE_MS, Watch, watched

PAGES = {
    "mine": "My work",
    "cluster": "Cluster",
    "queue": "Queue",
    "services": "Services",
    "tenants": "Tenants",
    "what-if": "What if",
    "health": "Health",
}
"""Each page of the navigation by its address, with its link's name. The first is the home page."""

TABS = ("Overview", "Metrics", "Logs", "Ranks", "Story", "Files", "Spec")
"""The parts of the page of a job."""

GRAVE = ("serious", "critical")

expect.set_options(timeout=PATIENCE_MS)


class Dashboard:
    """One window with the dashboard."""

    def __init__(self, page: Page, watch: Watch, url: str) -> None:
        self.page = page
        self.watch = watch
        self.url = url

    @property
    def main(self) -> Locator:
        return self.page.get_by_role("main")

    @property
    def status(self) -> Locator:
        """Whether what is shown is live."""
        return self.page.get_by_role("banner").get_by_role("status")

    @property
    def map(self) -> Locator:
        return self.page.get_by_role("application", name=re.compile("Map of the cluster"))

    @property
    def queue(self) -> Locator:
        return self.page.get_by_role("grid", name="The queue")

    @property
    def rows(self) -> Locator:
        """Rows of the queue that have a job: those in sight, and a few more."""
        return self.queue.get_by_role("row").filter(has=self.page.get_by_role("link"))

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=re.compile(f"^{name}$", re.IGNORECASE))

    async def sign_in(self, token: str) -> None:
        await self.page.goto(f"{self.url}/")
        await self.submit_token(token)
        await self.is_live()

    async def submit_token(self, token: str) -> None:
        await self.page.get_by_label("Token", exact=True).fill(token)
        await self.button("Sign in").click()

    async def is_live(self) -> None:
        await expect(self.status).to_have_text("live")

    async def go(self, place: str) -> None:
        """To a page: through its link where the navigation has one, else by its address."""
        if place in PAGES:
            link = self.page.get_by_role("navigation", name="Pages").get_by_role("link", name=PAGES[place])
            if not await link.is_visible():  # on a narrow page
                await self.button("Menu").click()
            await link.click()
        else:
            await self.page.evaluate("place => { location.hash = `#/${place}` }", place)
        await self.is_shown()

    async def tab(self, name: str) -> None:
        """To a part of the page of a job."""
        await self.main.get_by_role("tab", name=name, exact=True).click()

    async def account(self, name: str) -> None:
        """Press a button of the account menu."""
        if not await self.button(name).is_visible():
            await self.page.get_by_role("banner").locator("summary").click()
        await self.button(name).click()

    async def is_shown(self) -> None:
        await expect(self.main.get_by_role("heading").first).to_be_visible()
        await expect(self.main.get_by_text("This page failed")).to_have_count(0)

    async def text(self) -> str:
        """All text of the document, also what is hidden or for screen readers alone."""
        return str(await self.page.evaluate("document.documentElement.textContent"))

    async def scrolls_sideways(self) -> float:
        """How many pixels of the page lie beside the window."""
        script = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        return float(await self.page.evaluate(script))

    async def unfold(self) -> None:
        """Open every part of the page that is closed until a reader wants it."""
        await self.page.evaluate("document.querySelectorAll('main details').forEach(each => { each.open = true })")

    async def cut_off(self) -> list[str]:
        """The names of the regions whose content is wider than they are, so that a part of it is out of sight."""
        script = """[...document.querySelectorAll("[role=region]")]
            .filter(each => each.scrollWidth > each.clientWidth).map(each => each.getAttribute("aria-label"))"""
        return [str(name) for name in await self.page.evaluate(script)]

    async def barriers(self, *rules: str) -> list[str]:
        """What axe finds that keeps people with disabilities out: the grave ones, each with its elements.

        `rules`: those alone, not all that there are.
        """
        options: dict[str, Any] = {"runOnly": {"type": "rule", "values": list(rules)}} if rules else {}
        options["resultTypes"] = ["violations"]
        found: list[dict[str, Any]] = (await Axe().run(self.page, options=options)).response["violations"]
        return [
            f"{one['impact']}: {one['id']}: {one['help']}: {[node['html'][:200] for node in one['nodes'][:4]]}"
            f" {[node['any'][0]['message'] for node in one['nodes'][:2] if node['any']]}"
            for one in found
            if one["impact"] in GRAVE
        ]

    async def picture(self, name: str) -> None:
        """A picture into the folder that WEFT_SCREENSHOTS names, if it names one."""
        folder = os.environ.get("WEFT_SCREENSHOTS")
        if folder:
            await self.page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@asynccontextmanager
async def dashboard(browser: Browser, url: str, token: str = "", **options: Any) -> AsyncIterator[Dashboard]:
    """A window of its own, signed in with the token if one is given."""
    async with watched(browser, url, **options) as (page, watch):
        window = Dashboard(page, watch, url)
        if token:
            await window.sign_in(token)
        yield window
