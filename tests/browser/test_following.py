"""The page follows the cluster as it changes, shows it as it was, and looks as it is wanted to."""

from playwright.async_api import Browser, expect

from tests.support.dashboard import dashboard
from tests.support.gateway_world import World
from tests.support.steps import placement
from weft.domain.job import JobEvent


async def test_the_page_follows_the_cluster_as_it_changes(browser: Browser, world: World) -> None:
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        await window.go("cluster")
        await expect(window.main.get_by_text("Nothing runs")).to_be_visible()
        job = await world.running(name="comes")
        await expect(window.main.get_by_role("link", name="comes").first).to_be_visible()
        await world.go(job, JobEvent.STOPPING, JobEvent.CANCELLED)
        await expect(window.main.get_by_text("Nothing runs")).to_be_visible()
        assert sum(asked == "GET /v1/live" for asked in window.watch.asked) == 1


async def test_the_past_is_shown_as_it_was_and_called_so(browser: Browser, world: World) -> None:
    job = await world.running(name="was-here", placement=placement(("node-1", 0)))
    then = (await world.alice.story(job.id))[-1]
    await world.go(job, JobEvent.STOPPING, JobEvent.CANCELLED)
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        await window.go("cluster")
        await expect(window.main.get_by_text("Nothing runs")).to_be_visible()
        await window.button("Time").click()
        slider = window.page.get_by_role("slider", name="Moment that is shown")
        await expect(slider).to_be_focused()
        await window.page.evaluate("time => { location.hash = `#/cluster?at=${Date.parse(time) / 1000}` }", then.time)
        await expect(window.page.get_by_text("as it was at")).to_be_visible()
        await expect(window.main.get_by_role("link", name="was-here").first).to_be_visible()
        await window.picture("light-past")
        assert await window.barriers() == []
        await window.button("Back to now").click()
        await expect(window.main.get_by_text("Nothing runs")).to_be_visible()


async def test_the_theme_is_chosen_and_kept(browser: Browser, world: World) -> None:
    background = "getComputedStyle(document.documentElement).backgroundColor"
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        light = await window.page.evaluate(background)
        await window.account("Theme: auto")
        await window.account("Theme: light")
        dark = await window.page.evaluate(background)
        assert dark != light
        await window.page.reload()
        assert await window.page.evaluate(background) == dark


async def test_a_what_if_is_answered_and_a_bad_one_names_its_field(browser: Browser, world: World) -> None:
    await world.running(name="holds", placement=placement(("node-1", 0), ("node-1", 1)), replicas=2)
    await world.submitted(name="wants", gpus=4)
    async with dashboard(browser, world.gateway.url, world.tokens["admin"]) as window:
        window.watch.expect("status of 4")
        await window.go("what-if")
        await window.page.get_by_label("Drain").fill("node-99")
        await window.button("Try it out").click()
        await expect(window.main.get_by_role("alert")).to_contain_text("node-99")
        await expect(window.page.get_by_label("Drain")).to_be_focused()
        await window.page.get_by_label("Drain").fill("")
        await window.page.get_by_label("More nodes").fill("2")
        await window.button("Try it out").click()
        await expect(window.main.get_by_role("heading", name="The answer")).to_be_visible()
        assert await window.barriers() == []
