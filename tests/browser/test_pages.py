"""Every page of the dashboard, with a little of everything on it: it is shown, it is light, and open to all."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser

from libs.messages.http_quotas import QuotaWanted
from tests.support.chromium import PHONE
from tests.support.dashboard import PAGES, Dashboard, dashboard
from tests.support.gateway import Place
from tests.support.shown import Shown, shown

JOBS = ("mnist", "chat", "major", "broken", "wants-eight", "done")
WEIGHT_BYTES_MAX = 300 * 1024
SETTLE_MS = 400
COLOURS = ("color-contrast", "link-in-text-block")  # all that a theme changes
HIDDEN = ("secret-of-bob", "waits-of-bob", "bobs-label")


@pytest.fixture(scope="module")
async def cluster(servers: Place) -> AsyncIterator[Shown]:
    async with shown(servers) as made:
        yield made


def places(cluster: Shown) -> dict[str, str]:
    return {**{page: page for page in PAGES}, **{f"job-{name}": f"job/{cluster.id(name)}" for name in JOBS}}


async def each_page(window: Dashboard, cluster: Shown) -> AsyncIterator[str]:
    for name, place in places(cluster).items():
        await window.go(place)
        await window.page.wait_for_timeout(SETTLE_MS)
        yield name


@pytest.mark.parametrize(("theme", "rules"), [("light", ()), ("dark", COLOURS)], ids=["light", "dark"])
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


async def test_the_page_of_tenants_shows_the_quotas_that_its_reader_may_see(browser: Browser, cluster: Shown) -> None:
    admin = cluster.world.admin
    await admin.set_quota("lab", QuotaWanted(is_group=True, guaranteed=6))
    await admin.set_quota("alice", QuotaWanted(group="lab", guaranteed=1, limit=10, weight=3))
    await admin.set_quota("bob", QuotaWanted(guaranteed=4))
    try:
        seen = {}
        for who in ("alice", "admin"):
            async with dashboard(browser, cluster.url, cluster.world.tokens[who]) as window:
                await window.go("tenants")
                rows = window.main.get_by_role("region", name="Quotas in pool default").get_by_role("row")
                await rows.first.wait_for()
                seen[who] = [(await row.inner_text()).split("\t") for row in await rows.all()]
                assert await window.barriers() == []
                await window.picture(f"quotas-{who}")
    finally:
        for name in ("bob", "alice", "lab"):
            await admin.delete_quota(name)
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
