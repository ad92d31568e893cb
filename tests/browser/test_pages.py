"""Every page of the dashboard, with a little of everything on it: it is shown, it is light, and open to all."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone

import pytest
from playwright.async_api import Browser, expect

from tests.support.chromium import PHONE
from tests.support.dashboard import PAGES, TABS, Dashboard, dashboard
from tests.support.gateway import Place
from tests.support.shown import Shown, shown
from tests.support.steps import placement
from tests.support.tier import some
from weft.messages.http.quotas import QuotaWanted
from weftd.gateway.readmodel.estimates import DURATIONS_SECONDS

JOBS = ("mnist", "chat", "major", "broken", "wants-eight", "done")
WEIGHT_BYTES_MAX = 250 * 1024
SETTLE_MS = 400
COLOURS = ("color-contrast", "link-in-text-block")  # all that a theme changes
NARROW = {"width": 360, "height": 740}
LONGEST = "w" * 63  # no name may be longer
MAY_BE_WIDE = re.compile("Specification as YAML|.*: the figures")  # lines and columns of a reader's own
HIDDEN = ("secret-of-bob", "waits-of-bob", "bobs-label")


@pytest.fixture(scope="module")
async def cluster(servers: Place) -> AsyncIterator[Shown]:
    async with shown(servers) as made:
        yield made


def places(cluster: Shown) -> dict[str, str]:
    jobs = {f"job-{name}": f"job/{cluster.id(name)}" for name in JOBS}
    parts = {f"part-{tab.lower()}": f"job/{cluster.id('mnist')}?tab={tab.lower()}" for tab in TABS}
    return {**{page: page for page in PAGES}, "new": "new", **jobs, **parts}


async def each_page(window: Dashboard, cluster: Shown) -> AsyncIterator[str]:
    """Open each page, and yield its name."""
    for name, place in places(cluster).items():
        await window.go(place)
        await window.page.wait_for_timeout(SETTLE_MS)
        yield name


@pytest.mark.parametrize(("theme", "rules"), some(1, [("light", ()), ("dark", COLOURS)]), ids=["light", "dark"])
async def test_every_page_is_shown_and_axe_finds_nothing_grave(
    browser: Browser, cluster: Shown, theme: str, rules: tuple[str, ...]
) -> None:
    async with dashboard(browser, cluster.url, dark=theme == "dark") as window:
        await window.page.goto(cluster.url)
        found = {"sign-in": await window.barriers(*rules)}
        await window.picture(f"{theme}-sign-in")
        await window.sign_in(cluster.world.tokens["admin"])
        async for name in each_page(window, cluster):
            await window.picture(f"{theme}-{name}")
            found[name] = await window.barriers(*rules)
    assert {name: grave for name, grave in found.items() if grave} == {}


async def test_no_page_of_a_tenant_scrolls_sideways_on_a_phone_or_names_what_is_anothers(
    browser: Browser, cluster: Shown
) -> None:
    async with dashboard(browser, cluster.url, size=PHONE) as window:
        await window.page.goto(cluster.url)
        sideways = {"sign-in": await window.scrolls_sideways()}
        named = []
        await window.picture("phone-sign-in")
        await window.sign_in(cluster.world.tokens["alice"])
        async for name in each_page(window, cluster):
            await window.picture(f"phone-{name}")
            sideways[name] = await window.scrolls_sideways()
            text = await window.text()
            named += [(name, word) for word in HIDDEN if word in text]
    assert {name: pixels for name, pixels in sideways.items() if pixels > 0} == {}
    assert named == []
    async with dashboard(browser, cluster.url, cluster.world.tokens["admin"]) as window:
        await window.go("queue")
        await window.main.get_by_text("waits-of-bob").first.wait_for()  # an administrator sees it


@pytest.mark.parametrize("reader", some(1, ["admin", "alice"]))
async def test_every_page_fits_a_narrow_phone_and_cuts_no_table_off(
    browser: Browser, cluster: Shown, reader: str
) -> None:
    await cluster.world.running(name=LONGEST, placement=placement(("node-3", 6 + (reader == "admin"))))
    wide: dict[str, int] = {}
    cut: dict[str, list[str]] = {}
    async with dashboard(browser, cluster.url, size=NARROW) as window:

        async def look(name: str) -> None:
            await window.unfold()
            await window.page.wait_for_timeout(SETTLE_MS)
            wide[name] = await window.page.evaluate("document.documentElement.scrollWidth - innerWidth")
            cut[name] = [region for region in await window.cut_off() if not MAY_BE_WIDE.fullmatch(region)]
            await window.picture(f"narrow-{reader}-{name}")

        await window.page.goto(cluster.url)
        await look("sign-in")
        await window.sign_in(cluster.world.tokens[reader])
        async with quotas(cluster):
            async for name in each_page(window, cluster):
                if name in ("cluster", "tenants", "part-ranks", "part-story"):
                    await expect(window.main.get_by_role("table").last).to_be_attached()
                await look(name)
        await window.go("what-if")
        await window.page.get_by_label("More nodes").fill("2")
        await window.page.get_by_label("Drain").fill("node-2")
        await window.button("Try it out").click()
        await expect(window.main.get_by_role("table").first).to_be_visible()
        await look("what-if-answer")
    assert {name: pixels for name, pixels in wide.items() if pixels > 0} == {}
    assert {name: regions for name, regions in cut.items() if regions} == {}


@asynccontextmanager
async def quotas(cluster: Shown) -> AsyncIterator[None]:
    """Quotas of both tenants, and of a group with one of them."""
    admin = cluster.world.admin
    await admin.set_quota("lab", QuotaWanted(is_group=True, guaranteed=6))
    await admin.set_quota("alice", QuotaWanted(group="lab", guaranteed=1, limit=10, weight=3))
    await admin.set_quota("bob", QuotaWanted(guaranteed=4))
    try:
        yield
    finally:
        for name in ("bob", "alice", "lab"):
            await admin.delete_quota(name)


async def test_the_page_of_tenants_shows_the_quotas_that_its_reader_may_see(browser: Browser, cluster: Shown) -> None:
    seen = {}
    async with quotas(cluster):
        for who in ("alice", "admin"):
            async with dashboard(browser, cluster.url, cluster.world.tokens[who]) as window:
                await window.go("tenants")
                rows = window.main.get_by_role("region", name="Quotas in pool default").get_by_role("row")
                await rows.first.wait_for()
                seen[who] = [(await row.inner_text()).split("\t") for row in await rows.all()]
                assert await window.barriers() == []
                await window.picture(f"quotas-{who}")
    heads, alice, lab = seen["alice"]
    assert heads == ["quota", "group", "guaranteed", "limit", "weight", "GPUs held", "beyond its guarantee"]
    assert alice[:5] == ["alice", "lab", "1", "10", "3"]
    assert lab[:5] == ["lab (group)", "", "6", "none", "1"]
    assert alice[6].endswith(" borrowed")
    assert [row[0] for row in seen["admin"]] == ["quota", "alice", "bob", "lab (group)"]


async def test_the_first_view_weighs_little(browser: Browser, cluster: Shown) -> None:
    async with dashboard(browser, cluster.url, cluster.world.tokens["alice"]) as window:
        await window.is_shown()
        await window.page.wait_for_timeout(SETTLE_MS)
        weight = await window.watch.weight()
    assert sum(weight.values()) < WEIGHT_BYTES_MAX, weight


def _zone_of_half_hours() -> tuple[str, str]:
    """A time zone, and how a page names it. Where it is nearly midnight, what was a day ago is no longer yesterday in a
    table that leaves out its first rows."""
    hour = datetime.now(timezone(timedelta(hours=5, minutes=30))).hour
    return ("Asia/Tehran", r"UTC\+3:30") if hour in (23, 0) else ("Asia/Kolkata", r"UTC\+5:30")


async def test_what_the_pages_tell_of_one_thing_agrees_and_needs_no_guessing(browser: Browser, cluster: Shown) -> None:
    token = cluster.world.tokens["admin"]
    zone, zone_named = _zone_of_half_hours()
    async with dashboard(browser, cluster.url, token, timezone_id=zone) as window:
        await window.go("cluster")
        reasons = window.main.get_by_role("heading", name=re.compile(r"\d+ jobs wait")).locator("xpath=..")
        await expect(reasons.get_by_text("not looked at yet").first).to_be_visible()
        told = [int(one) for one in re.findall(r"^(\d+) ", await reasons.inner_text(), re.MULTILINE)]
        assert told[0] == sum(told[1:])  # all that wait, by their reasons
        await window.go("queue")
        replicas = window.queue.get_by_text("in 2 ranks").first
        await expect(replicas).to_be_visible()
        assert await replicas.evaluate("each => each.scrollWidth <= each.clientWidth")
        await window.go("tenants")
        await expect(window.main.get_by_text(re.compile(rf" to today, \d\d:\d\d:\d\d {zone_named}"))).to_be_visible()
        await window.unfold()
        figures = window.main.get_by_role("region", name="GPUs held: the figures").get_by_role("rowheader")
        await expect(figures.last).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
        await expect(figures.first).to_have_text(re.compile(r"^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d$"))  # of yesterday
        await window.go("what-if")
        like_it = window.main.get_by_text("as long as jobs like it lasted")
        async with asyncio.timeout(2 * DURATIONS_SECONDS):  # a gateway looks only so often which jobs have ended
            while not await like_it.is_visible():
                await window.button("Try it out").click()
                await window.page.wait_for_timeout(1000)
        await window.go(f"job/{cluster.id('done')}")
        await expect(window.main.get_by_text(re.compile(rf"\d\d:\d\d:\d\d {zone_named}, .* ago"))).to_be_visible()
        await window.tab("Ranks")
        ranks = window.main.get_by_role("region", name="Ranks and their GPUs").get_by_role("row").last
        await expect(ranks).to_contain_text("GPU 3")
        await expect(ranks).not_to_contain_text("used")  # what others do with the GPU since is not the job's
        await window.tab("Story")
        epoch = window.main.get_by_role("columnheader").get_by_text("epoch", exact=True).first
        await expect(epoch).to_have_attribute("title", re.compile("one try"))
        await window.page.wait_for_timeout(SETTLE_MS)
        await window.tab("Metrics")
        await window.page.wait_for_timeout(SETTLE_MS)
        await expect(window.main.get_by_text("Use of its GPUs")).to_be_hidden()
