"""Looking around: the map by mouse and by keyboard, and the queue with its filters."""

import re
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, expect

from tests.support.dashboard import Dashboard, dashboard
from tests.support.gateway import Place
from tests.support.shown import QUEUED, Shown, shown


@pytest.fixture(scope="module")
async def cluster(servers: Place) -> AsyncIterator[Shown]:
    async with shown(servers) as made:
        yield made


async def press_until_focused(window: Dashboard, role: str, *, keys_max: int = 60) -> None:
    for _ in range(keys_max):
        await window.page.keyboard.press("Tab")
        if await window.page.evaluate("document.activeElement?.getAttribute('role')") == role:
            return
    raise AssertionError(f"Tab never reached the {role}")


async def test_the_keyboard_alone_signs_in_and_reaches_a_job_from_the_map(browser: Browser, cluster: Shown) -> None:
    async with dashboard(browser, cluster.url) as window:
        await window.page.goto(window.url)
        await expect(window.page.get_by_label("Token", exact=True)).to_be_focused()
        await window.page.keyboard.type(cluster.world.tokens["alice"])
        await window.page.keyboard.press("Enter")
        await window.is_live()
        await window.go("cluster")
        await expect(window.map).to_be_visible()
        await press_until_focused(window, "application")
        await window.page.keyboard.press("End")
        await window.page.keyboard.press("Home")
        await window.page.keyboard.press("ArrowRight")
        await window.page.keyboard.press("Enter")
        await expect(window.main.get_by_role("heading", level=1)).to_contain_text("mnist")


async def test_the_map_tells_a_screen_reader_what_the_cluster_has_and_where_the_cursor_is(
    browser: Browser, cluster: Shown
) -> None:
    async with dashboard(browser, cluster.url, cluster.world.tokens["admin"]) as window:
        await window.go("cluster")
        await expect(window.map).to_have_attribute("aria-label", re.compile(r"6 nodes, 10 of 24 emulated GPUs held"))
        assert await window.page.get_by_role("table", name="The cluster by pool").count() == 1
        await window.map.focus()
        await window.page.keyboard.press("Home")
        await window.page.keyboard.press("ArrowRight")
        said = await window.text()
        for words in ("node-1", "mnist", "emulated"):
            assert words in said
        for words in ("drained", "lost"):
            assert words in await window.main.inner_text()


async def test_a_gpu_is_found_by_its_job_and_opened_from_its_card(browser: Browser, cluster: Shown) -> None:
    async with dashboard(browser, cluster.url, cluster.world.tokens["alice"]) as window:
        await window.go("cluster")
        await window.page.get_by_role("searchbox", name="Find a GPU, node or job").fill("lender")
        await expect(window.main.get_by_text("2 GPUs found")).to_be_visible()
        await window.page.keyboard.press("Enter")
        await window.map.get_by_role("link", name="lender").first.click()
        await expect(window.main.get_by_role("heading", level=1)).to_contain_text("lender")


async def test_the_queue_is_in_its_order_with_reasons_and_only_rows_in_sight_are_drawn(
    browser: Browser, cluster: Shown
) -> None:
    async with dashboard(browser, cluster.url, cluster.world.tokens["alice"]) as window:
        await window.go("queue")
        await expect(window.main.get_by_text(f"{QUEUED + 1} jobs wait")).to_be_visible()
        first = window.rows.first
        await expect(first).to_contain_text("wants-eight")  # of the highest priority
        await expect(first).to_contain_text("GPU")
        assert await window.rows.count() < QUEUED
        await window.queue.focus()
        await window.page.keyboard.press("End")
        await expect(window.rows.last).to_be_in_viewport()
        await window.page.keyboard.press("Enter")
        await expect(window.main.get_by_role("heading", level=1)).to_contain_text("queued-")


async def test_the_queue_and_the_page_of_a_job_foretell_its_start_alike(browser: Browser, cluster: Shown) -> None:
    async with dashboard(browser, cluster.url, cluster.world.tokens["alice"]) as window:
        await window.go("queue")
        row = window.main.get_by_role("row").filter(has_text="wants-eight")
        await expect(row).to_contain_text(re.compile(r"in \d+[sm]"))  # soon: it is no date that is taken for a duration
        await row.get_by_role("link", name="wants-eight").click()
        await expect(window.main.get_by_text(re.compile(r"Starts in \d+[sm]"))).to_be_visible()


async def test_the_queue_is_filtered_and_its_address_keeps_the_filters(browser: Browser, cluster: Shown) -> None:
    async with dashboard(browser, cluster.url) as window:
        await window.sign_in(cluster.world.tokens["alice"])
        await window.go("queue")
        await window.page.get_by_label("Label").fill("team=vision")
        await expect(window.main.get_by_text("1 job waits")).to_be_visible()
        await window.page.reload()
        await expect(window.main.get_by_text("1 job waits")).to_be_visible()
        await expect(window.page.get_by_label("Label")).to_have_value("team=vision")
        await window.page.get_by_label("Label").fill("")
        await window.page.get_by_label("Text").fill("queued-1")
        await expect(window.main.get_by_text("11 jobs wait")).to_be_visible()
        await window.page.get_by_label("Text").fill("")
        await window.page.get_by_label("State").select_option("failed")
        await expect(window.rows.first).to_contain_text("broken")
        await window.page.get_by_label("State").select_option("running")
        for kind, job in (("inference", "chat"), ("batch", "m")):
            await window.page.get_by_label("Kind").select_option(kind)
            await expect(window.rows.first).to_contain_text(job)
        await window.page.get_by_label("Text").fill("nothing-has-this-name")
        await expect(window.main.get_by_text("No job fits these filters")).to_be_visible()
