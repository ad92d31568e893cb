"""A picture of the dashboard at the demo's fullest moment: README shows one. Needs a Chromium, and Playwright, which
comes with the development requirements; where either is missing the demo goes on without, and says so."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.async_api import Page

VARIABLE = "WEFT_DEMO_PICTURE"
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
WIDTH, HEIGHT = 1280, 620
READY_MS_MAX = 30_000.0
TAKE_SECONDS_MAX = 10.0
SETTLE_SECONDS = 0.7  # bars and cells move to where they belong


def chromium_path() -> str | None:
    """The first Chromium of this machine's PATH."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Photographer:
    """Looks at the dashboard from the demo's beginning on, so that the moment itself takes no time."""

    def __init__(self, file: str, tell: Callable[[str], None], opening: "asyncio.Task[Page] | None") -> None:
        self._file = file
        self._tell = tell
        self._opening = opening

    async def take(self, job: str) -> None:
        """Save the picture, if one is wanted, once this job waits on it. What fails is told, and the demo goes on."""
        if self._opening is None:
            return
        from playwright.async_api import Error

        try:
            async with asyncio.timeout(TAKE_SECONDS_MAX):
                page = await asyncio.shield(self._opening)
                waits = page.get_by_role("listitem").filter(has=page.get_by_role("link", name=job))
                await waits.filter(has_text="waits").first.wait_for()  # the queue is asked for every few seconds
                await asyncio.sleep(SETTLE_SECONDS)
                await page.screenshot(path=self._file)
        except TimeoutError:
            self._tell(f"no picture of the dashboard: not ready within {TAKE_SECONDS_MAX:g} s")
        except (Error, OSError) as error:
            self._tell(f"no picture of the dashboard: {str(error).splitlines()[0]}")
        else:
            self._tell(f"a picture of the dashboard is in {self._file}")


@asynccontextmanager
async def photographer(url: str, token: str, tell: Callable[[str], None]) -> AsyncIterator[Photographer]:
    """For the file that WEFT_DEMO_PICTURE names; without it, nothing is opened."""
    file, chromium = os.environ.get(VARIABLE, ""), chromium_path()
    if not file:
        yield Photographer(file, tell, None)
        return
    try:
        from playwright.async_api import Error, async_playwright
    except ImportError:
        tell("no picture of the dashboard: Playwright is not installed (it comes with the development requirements)")
        yield Photographer(file, tell, None)
        return
    if chromium is None:
        tell("no picture of the dashboard: no Chromium here (Debian: apt-get install chromium)")
        yield Photographer(file, tell, None)
        return

    async def opened() -> "Page":
        browser = await playwright.chromium.launch(executable_path=chromium, args=list(FLAGS), timeout=READY_MS_MAX)
        page = await browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.set_default_timeout(READY_MS_MAX)
        await page.goto(f"{url}/")
        await page.get_by_label("Token", exact=True).fill(token)
        await page.get_by_role("button", name="Sign in").click()
        await page.get_by_role("status").get_by_text("live", exact=True).wait_for()
        return page

    async with async_playwright() as playwright:
        opening = asyncio.create_task(opened())
        try:
            yield Photographer(file, tell, opening)
        finally:
            opening.cancel()
            with suppress(asyncio.CancelledError, Error):
                await (await opening).context.close()
