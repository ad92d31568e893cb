"""Pictures of every page of the dashboard, to be looked at one by one: `python -m tests.support.pictures FOLDER`.

The first cluster has a little of everything, the second 512 GPUs and 20,000 jobs in the queue. Each page is taken 1440,
768 and 390 px wide, light and dark; `--quick`: the first cluster alone, light, at 1440 and 390. The folder is made if
it does not exist.
Real servers behind a real Chromium; all GPUs are emulated.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from playwright.async_api import Browser

from tests.support.chromium import chromium, chromium_path
from tests.support.dashboard import PAGES, TABS, Dashboard, dashboard
from tests.support.gateway import place
from tests.support.large import TENANT, large
from tests.support.shown import Shown, shown

SIZES = {1440: 900, 768: 1024, 390: 844}
JOBS = ("mnist", "chat", "broken", "wants-eight", "done")
SETTLE_MS = 1500  # requests, charts and the map
NODES, QUEUED = 64, 20_000


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.pictures", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args(arguments)
    program = chromium_path()
    if program is None:
        raise SystemExit("there is no Chromium on this machine")
    asked.folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(_all(program, asked.folder, quick=asked.quick))
    sys.stdout.write(f"{len(list(asked.folder.glob('*.png')))} pictures in {asked.folder}\n")
    return 0


async def _all(program: str, folder: Path, *, quick: bool) -> None:
    widths, themes = ([1440, 390], ["light"]) if quick else (list(SIZES), ["light", "dark"])
    with tempfile.TemporaryDirectory() as home:
        async with chromium(program) as browser, place(Path(home)) as servers:
            async with shown(servers) as cluster:
                for width in widths:
                    for theme in themes:
                        await _small(browser, cluster, folder, width, theme)
            if quick:
                return
            async with large(servers, nodes=NODES, queued=QUEUED) as many:
                for width in widths:
                    for theme in themes:
                        size = {"width": width, "height": SIZES[width]}
                        token, url = many.tokens[TENANT], many.gateway.url
                        async with dashboard(browser, url, token, size=size, dark=theme == "dark") as window:
                            await _take(window, {page: page for page in PAGES}, folder, f"large-{width}-{theme}")


async def _small(browser: Browser, cluster: Shown, folder: Path, width: int, theme: str) -> None:
    size, dark = {"width": width, "height": SIZES[width]}, theme == "dark"
    name = f"small-{width}-{theme}"
    jobs = {f"job-{job}": f"job/{cluster.id(job)}" for job in JOBS}
    parts = {f"part-{tab.lower()}": f"job/{cluster.id('mnist')}?tab={tab.lower()}" for tab in TABS}
    async with dashboard(browser, cluster.url, size=size, dark=dark) as window:
        await window.page.goto(cluster.url)
        await window.page.screenshot(path=folder / f"{name}-sign-in.png")
        await window.sign_in(cluster.world.tokens["alice"])
        await _take(window, {**{page: page for page in PAGES}, "new": "new", **jobs, **parts}, folder, name)
    async with dashboard(browser, cluster.url, cluster.world.tokens["admin"], size=size, dark=dark) as window:
        await _take(window, {"admin": "admin", "health-of-admin": "health"}, folder, name)
    async with dashboard(browser, cluster.url, cluster.world.tokens["bob"], size=size, dark=dark) as window:
        await _take(window, {"mine-of-bob": "mine"}, folder, name)


async def _take(window: Dashboard, places: Mapping[str, str], folder: Path, name: str) -> None:
    for page, where in places.items():
        await window.go(where)
        await window.page.wait_for_timeout(SETTLE_MS)
        await window.page.screenshot(path=folder / f"{name}-{page}.png", full_page=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
