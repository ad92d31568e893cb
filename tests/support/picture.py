"""Takes the picture of the dashboard that README shows: `python -m tests.support.picture docs/dashboard.png`.

It runs `weft demo`, and takes the picture while jobs run and one waits.
"""

import asyncio
import re
import sys

from playwright.async_api import Page

from tests.support.chromium import chromium, need_chromium

VIEW = {"width": 1280, "height": 468}
FULL = r"patient +explained:"
SETTLE_SECONDS = 3.0  # the queue is asked for every few seconds; then bars and cells move to where they belong


async def line_with(output: asyncio.StreamReader, pattern: str) -> re.Match[str]:
    """The first match of the pattern in the demo's output, which goes on to standard output."""
    while line := (await output.readline()).decode():
        sys.stdout.write(line)
        if found := re.search(pattern, line):
            return found
    raise SystemExit(f"the demo ended without {pattern!r}")


async def signed_in(page: Page, url: str, token: str) -> None:
    await page.goto(f"{url}/#/cluster")
    await page.get_by_label("Token", exact=True).fill(token)
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_role("status").get_by_text("live", exact=True).wait_for()


async def main(file: str) -> int:
    async with chromium(need_chromium()) as browser:
        page = await browser.new_page(viewport=VIEW, color_scheme="light")
        demo = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "weftd.cli", "demo"), stdout=asyncio.subprocess.PIPE
        )
        assert demo.stdout
        where = await line_with(demo.stdout, r"the dashboard: (\S+)/#code=(\S+)")
        await signed_in(page, where[1], where[2])
        await line_with(demo.stdout, FULL)
        await asyncio.sleep(SETTLE_SECONDS)
        await page.screenshot(path=file)
        demo.terminate()
        sys.stdout.write((await demo.stdout.read()).decode())
        await demo.wait()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1])))
