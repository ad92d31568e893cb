"""The output of a job on its page: live, in bounds, still while it is read, and of the rank that is chosen."""

from playwright.async_api import Browser, Locator, expect

from tests.support.dashboard import Dashboard, dashboard
from tests.support.gateway_world import World
from tests.support.steps import placement
from weft.domain.job import JobEvent

LINES_MAX = 2000  # as in services/weftd/gateway/face/job/log.js
FLOOD = 30_000
TWO = placement(("node-1", 0), ("node-1", 1))


def output(window: Dashboard) -> Locator:
    return window.main.get_by_role("log")


async def lines(window: Dashboard) -> list[str]:
    return str(await output(window).inner_text()).split("\n")


async def at_end(window: Dashboard) -> bool:
    return bool(await output(window).evaluate("each => each.scrollHeight - each.scrollTop - each.clientHeight < 40"))


async def test_output_is_shown_as_it_is_written_with_its_colours_to_the_end_of_the_run(
    browser: Browser, world: World
) -> None:
    job = await world.running(name="mine")
    await world.nodes["node-1"].write(job.id, b"\x1b[32mbegins\x1b[0m <b>\xff\n")
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        await window.go(f"job/{job.id}?tab=logs")
        await expect(output(window).get_by_text("begins")).to_have_class("a-t2")
        await expect(output(window)).to_contain_text("<b>\ufffd")
        await world.nodes["node-1"].write(job.id, b"half a li")
        await expect(output(window)).to_contain_text("half a li")
        await world.nodes["node-1"].write(job.id, b"ne\rover\n")
        await expect(output(window)).to_contain_text("half a line")
        assert [line.strip() for line in await lines(window) if line.strip()][-2:] == ["half a line", "over"]
        await world.nodes["node-1"].write(job.id, b"", end=True)
        await world.go(job, JobEvent.SUCCEEDED, exit_code=0)
        await expect(window.main.get_by_text("the run is over")).to_be_visible()


async def test_a_flood_is_kept_in_bounds_and_its_earlier_parts_are_read_when_they_are_wanted(
    browser: Browser, world: World
) -> None:
    job = await world.running(name="mine")
    await world.nodes["node-1"].write(job.id, b"".join(b"line %d\n" % number for number in range(FLOOD)))
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        await window.go(f"job/{job.id}?tab=logs")
        await expect(output(window)).to_contain_text(f"line {FLOOD - 1}")
        assert await output(window).locator("> div").count() <= LINES_MAX
        await window.button("Earlier").click()
        await expect(window.main.get_by_text("not live")).to_be_visible()
        first = next(line for line in await lines(window) if line)
        await window.button("Earlier").click()
        before = f"line {int(first.split()[1]) - 1}"
        await expect(output(window).get_by_text(before, exact=True)).to_be_attached()
        assert [line for line in await lines(window) if line][-1] == before  # nothing is left out, nothing comes twice
        await window.button("Later").click()
        await expect(output(window).get_by_text(first, exact=True)).to_be_attached()
        await window.button("To the end").click()
        await expect(output(window)).to_contain_text(f"line {FLOOD - 1}")
        await world.nodes["node-1"].write(job.id, b"still live\n")
        await expect(output(window)).to_contain_text("still live")


async def test_output_stands_still_while_it_is_read_and_goes_on_at_its_end(browser: Browser, world: World) -> None:
    job = await world.running(name="mine")
    await world.nodes["node-1"].write(job.id, b"".join(b"line %d\n" % number for number in range(300)))
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        await window.go(f"job/{job.id}?tab=logs")
        await expect(output(window)).to_contain_text("line 299")
        assert await at_end(window)
        await output(window).focus()
        await window.page.keyboard.press("Home")
        await expect(output(window)).to_have_js_property("scrollTop", 0)
        await world.nodes["node-1"].write(job.id, b"one more\ntwo more\n")
        more = window.main.get_by_role("button", name="2 new lines below")
        await expect(more).to_be_visible()
        assert await output(window).evaluate("each => each.scrollTop") == 0
        await more.press("Enter")
        await expect(output(window)).to_contain_text("two more")
        assert await at_end(window)
        await expect(output(window)).to_be_focused()
        await world.nodes["node-1"].write(job.id, b"goes on\n")
        await expect(output(window)).to_contain_text("goes on")
        assert await at_end(window)


async def test_the_output_of_another_rank_is_chosen(browser: Browser, world: World) -> None:
    job = await world.running(name="mine", placement=TWO, replicas=2)
    for rank in (0, 1):
        await world.nodes["node-1"].write(job.id, b"written by rank %d\n" % rank, rank=rank)
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        await window.go(f"job/{job.id}?tab=logs")
        await expect(output(window)).to_contain_text("written by rank 0")
        await window.main.get_by_label("rank", exact=True).select_option("1")
        await expect(output(window)).to_contain_text("written by rank 1")
        await expect(output(window)).not_to_contain_text("written by rank 0")


async def test_a_job_that_has_not_started_says_so_and_shows_its_output_once_it_runs(
    browser: Browser, world: World
) -> None:
    job = await world.submitted(name="mine")
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        await window.go(f"job/{job.id}?tab=logs")
        await expect(window.main.get_by_text("it has not started yet")).to_be_visible()
        job = await world.go(job, JobEvent.PLACED, placement=placement(("node-1", 0)))
        await world.go(job, JobEvent.STARTING, JobEvent.STARTED)
        await world.nodes["node-1"].write(job.id, b"it begins\n")
        await expect(output(window)).to_contain_text("it begins")
        await expect(window.main.get_by_text("it has not started yet")).to_have_count(0)
