"""How soon the dashboard answers: `python -m tests.bench face [--quick] [--seed N]`; at its end one line of JSON.

A real gateway over a real NATS and a real Postgres, and a real Chromium that keeps nothing of earlier visits: the bytes
and the time of the first view, with 10 jobs in the queue and with 20,000; with 20,000 rows, the time from a key or a
click to the frame after the one that answers it: filtering, opening a job, another tab of it; and what axe finds that
is serious. The time begins with the event in the page, so that the driver of the browser does not count.
"""

import argparse
import asyncio
import os
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from playwright.async_api import Browser

from tests.bench.figures import Aim, line_of, quantile
from tests.support.chromium import chromium, need_chromium
from tests.support.dashboard import PAGES, Dashboard, dashboard
from tests.support.gateway import Place, place
from tests.support.large import TENANT, Large, large

NODES = 64  # each has eight GPUs
FEW, MANY = 10, 20_000
WEIGHT_KIB_MAX = 250
FIRST_MS_MAX = 1000
INTERACTION_MS_MAX = 100
BUSY = "status of 5"  # a machine that others use makes the store late; the page asks again


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench face", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer visits")
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args(arguments)
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    aims = asyncio.run(_measure(asked.seed, visits=2 if asked.quick else 7))
    for name, aim in aims.items():
        print(f"{name}: {aim.value:g} (aim: at most {aim.aim:g}){'' if aim.met else ' NOT MET'}")
    print(line_of(aims, seed=asked.seed))
    return 0


async def _measure(seed: int, *, visits: int) -> dict[str, Aim]:
    aims: dict[str, Aim] = {}
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as home:
        async with chromium(need_chromium()) as browser, place(Path(home)) as servers:
            aims |= await _first_views(browser, servers, FEW, visits)
            async with large(servers, nodes=NODES, queued=MANY) as cluster:
                aims |= await _visits(browser, cluster, MANY, visits)
                aims |= await _interactions(browser, cluster, chance, visits * 3)
                aims |= await _barriers(browser, cluster)
    return aims


async def _first_views(browser: Browser, servers: Place, jobs: int, visits: int) -> dict[str, Aim]:
    async with large(servers, nodes=NODES, queued=jobs) as cluster:
        return await _visits(browser, cluster, jobs, visits)


async def _visits(browser: Browser, cluster: Large, jobs: int, visits: int) -> dict[str, Aim]:
    """Load the page with an empty cache, signed in, until its first view is live."""
    took, weights = [], []
    for _ in range(visits + 1):
        async with dashboard(browser, cluster.gateway.url, cluster.tokens[TENANT]) as window:
            window.watch.expect(BUSY)
            kept = await window.page.evaluate("localStorage.getItem('weft.session')")
            cookies = await window.page.context.cookies()
        async with dashboard(browser, cluster.gateway.url) as window:
            window.watch.expect(BUSY)
            await window.page.context.add_cookies(cookies)  # type: ignore[arg-type]
            await window.page.add_init_script(f"localStorage.setItem('weft.session', {kept!r})")
            began = time.monotonic()
            await window.page.goto(cluster.gateway.url)
            await window.is_live()
            await window.is_shown()
            took.append((time.monotonic() - began) * 1000)
            await window.page.wait_for_timeout(500)
            weights.append(sum((await window.watch.weight()).values()) / 1024)
            print(f"{jobs} jobs: first view {took[-1]:.0f} ms, {weights[-1]:.1f} KiB", flush=True)
    return {
        f"first view with {jobs} jobs (KiB)": Aim(value=round(max(weights), 1), aim=WEIGHT_KIB_MAX),
        f"first view with {jobs} jobs (ms)": Aim(value=round(quantile(took[1:], 0.5)), aim=FIRST_MS_MAX),
    }


async def _interactions(browser: Browser, cluster: Large, chance: random.Random, times: int) -> dict[str, Aim]:
    found: dict[str, list[float]] = {"filter": [], "open a job": [], "another tab": []}
    async with dashboard(browser, cluster.gateway.url, cluster.tokens[TENANT]) as window:
        window.watch.expect(BUSY, "status of 4")  # logs of jobs that no node has
        await window.go("queue")
        await window.rows.first.wait_for()
        for _ in range(times):
            wanted = f"-{chance.randrange(100, 999)}"
            typing = partial(window.page.get_by_label("Text").fill, wanted)
            shown = "wanted => document.querySelector('[role=grid] a')?.title.includes(wanted)"
            found["filter"].append(await _until(window, typing, shown, wanted))
            link = window.rows.first.get_by_role("link").first
            opened = "() => document.querySelector('[role=tablist]')?.checkVisibility()"
            found["open a job"].append(await _until(window, link.click, opened, ""))
            story = window.main.get_by_role("tab", name="Story")
            table = "() => document.querySelector('#panel-story')?.checkVisibility()"
            found["another tab"].append(await _until(window, story.click, table, ""))
            await window.go("queue")
            await window.rows.first.wait_for()
    return {
        f"{name} at {MANY} rows, median (ms)": Aim(value=round(quantile(values, 0.5)), aim=INTERACTION_MS_MAX)
        for name, values in found.items()
    }


async def _until(window: Dashboard, act: Callable[[], Awaitable[None]], condition: str, given: str) -> float:
    """Milliseconds from the first click or key of an act until a frame in which the condition holds is painted."""
    watching = f"""given => new Promise(done => {{
        let began = null;
        const holds = {condition}, note = event => {{ began ??= event.timeStamp; }};
        for (const kind of ["click", "input"]) addEventListener(kind, note, {{ capture: true, once: true }});
        (function look() {{
            if (began === null || !holds(given)) requestAnimationFrame(look);
            else requestAnimationFrame(() => done(performance.now() - began));
        }})();
    }})"""
    waits = asyncio.ensure_future(window.page.evaluate(watching, given))
    await asyncio.sleep(0)
    await act()
    return float(await waits)


async def _barriers(browser: Browser, cluster: Large) -> dict[str, Aim]:
    serious = 0
    async with dashboard(browser, cluster.gateway.url, cluster.tokens[TENANT]) as window:
        window.watch.expect(BUSY)
        for page in (*PAGES, "new"):
            await window.go(page)
            await window.page.wait_for_timeout(500)
            for barrier in await window.barriers():
                print(f"{page}: {barrier}")
                serious += 1
    return {"serious findings of axe": Aim(value=serious, aim=0)}
