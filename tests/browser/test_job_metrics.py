"""The numbers that a job reports, as curves on its page, and those of another job over them."""

from playwright.async_api import Browser, expect

from tests.support.dashboard import dashboard
from tests.support.gateway_world import World
from tests.support.steps import placement


def losses(*values: float) -> list[dict[str, float]]:
    return [{"step": place * 10.0, "loss": value} for place, value in enumerate(values)]


async def test_the_metrics_of_a_job_are_curves_and_another_job_is_drawn_over_them(
    browser: Browser, world: World
) -> None:
    mine = await world.running(name="mine")
    other = await world.running(name="other", placement=placement(("node-1", 1)))
    node = world.nodes["node-1"]
    await node.report(mine.id, [*losses(3.0, -2.0, 1.5), {"<b>reward": 7.0, "step": 30.0}])
    await node.report(other.id, losses(5.0, 4.5))
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        await window.go(f"job/{mine.id}?tab=metrics")
        box = window.main.locator("section").filter(has=window.page.get_by_role("heading", name="Reported metrics"))
        loss = box.locator("figure").filter(has_text="loss")
        await expect(loss.locator("figcaption")).to_have_text("loss by step")
        await expect(box.locator("figcaption")).to_have_text(["<b>reward by step", "loss by step"])
        await expect(loss).to_contain_text("-2")
        await expect(loss.locator(".legend li")).to_have_count(0)
        window.watch.expect("none-such")
        await box.get_by_label("with the jobs").fill("other, none-such")
        await box.get_by_label("with the jobs").press("Enter")
        await expect(loss.locator(".legend li")).to_have_text(["mine", "other"])
        await expect(box.get_by_role("status")).to_contain_text("none-such")


async def test_a_job_that_reports_nothing_has_no_curves(browser: Browser, world: World) -> None:
    job = await world.running(name="silent")
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        await window.go(f"job/{job.id}?tab=metrics")
        await expect(window.main.get_by_role("heading", name="Speed and use")).to_be_visible()
        await expect(window.main.get_by_role("heading", name="Reported metrics")).to_be_hidden()
