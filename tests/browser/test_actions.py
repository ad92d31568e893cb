"""What may be done with a job on its page: each action asks first, and leaves what the API would leave."""

from typing import Any

from playwright.async_api import Browser, expect

from tests.support.dashboard import Dashboard, dashboard
from tests.support.gateway_world import World
from tests.support.steps import placement
from weft.domain.job import JobEvent
from weft.messages.asks import Ask
from weft.messages.http.tenants import TenantWanted

SIZED: dict[str, Any] = {"role": {"replicas": {"min": 1, "want": 2, "max": 4}}, "resize": {"how": "live"}}
TWO = placement(("node-1", 0), ("node-1", 1))


NO_LOG = "/logs?"  # no executor here has one, and Chromium writes a line for each refusal


async def asks(world: World) -> list[Ask]:
    return await world.place.stores.scheduler.asks(pool="default", limit=100)


async def begin(window: Dashboard, action: str) -> None:
    """Press the action's button, and see its question."""
    await window.main.get_by_role("button", name=action, exact=True).click()
    await expect(window.page.get_by_role("dialog")).to_be_visible()


async def agree(window: Dashboard, yes: str) -> None:
    await window.page.get_by_role("dialog").get_by_role("button", name=yes, exact=True).click()
    await expect(window.page.get_by_role("dialog")).to_have_count(0)
    await expect(window.page.get_by_text("is accepted")).to_be_visible()


async def test_a_job_is_cancelled_after_a_question_and_not_before(browser: Browser, world: World) -> None:
    job = await world.running(name="mine")
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        window.watch.expect(NO_LOG)
        await window.go(f"job/{job.id}")
        await begin(window, "Cancel")
        assert await window.barriers() == []
        await window.page.get_by_role("dialog").get_by_role("button", name="Back").click()
        await expect(window.main.get_by_role("button", name="Cancel", exact=True)).to_be_focused()
        await begin(window, "Cancel")
        await window.page.keyboard.press("Escape")
        await expect(window.page.get_by_role("dialog")).to_have_count(0)
        assert await asks(world) == []
        await begin(window, "Cancel")
        await agree(window, "Cancel the job")
        assert [(ask.kind.value, ask.subject_id, ask.tenant) for ask in await asks(world)] == [
            ("cancel", job.id, "alice")
        ]
        job = await world.go(job, JobEvent.STOPPING, JobEvent.CANCELLED)
        await expect(window.main.get_by_text("cancelled", exact=True).first).to_be_visible()
        await expect(window.main.get_by_role("button", name="Cancel", exact=True)).to_have_count(0)


async def test_a_job_that_failed_is_requeued(browser: Browser, world: World) -> None:
    job = await world.go(await world.running(name="broken"), JobEvent.FAILED, exit_code=3)
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        window.watch.expect(NO_LOG)
        await window.go(f"job/{job.id}")
        await begin(window, "Requeue")
        await agree(window, "Requeue")
    assert [(ask.kind.value, ask.subject_id) for ask in await asks(world)] == [("requeue", job.id)]


async def test_a_job_is_made_larger_within_what_it_says(browser: Browser, world: World) -> None:
    job = await world.running(placement=TWO, **SIZED)
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        window.watch.expect(NO_LOG)
        await window.go(f"job/{job.id}")
        await begin(window, "Change the size")
        field = window.page.get_by_label("worker")
        await expect(field).to_have_value("2")
        await field.fill("9")  # the browser itself holds it back
        await window.page.get_by_role("dialog").get_by_role("button", name="Change it").click()
        assert await asks(world) == []
        await field.fill("3")
        await agree(window, "Change it")
    assert [(ask.kind.value, ask.scale and ask.scale.size) for ask in await asks(world)] == [("scale", {"worker": 3})]


async def test_what_the_gateway_refuses_is_shown_at_its_field(browser: Browser, world: World) -> None:
    job = await world.running(name="mine")
    await world.admin.change_tenant("alice", TenantWanted(priority_max=10))
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        window.watch.expect(NO_LOG, "status of 4")
        await window.go(f"job/{job.id}")
        await begin(window, "Change the priority")
        field = window.page.get_by_label("Priority", exact=True)
        await field.fill("500")
        await window.page.get_by_role("dialog").get_by_role("button", name="Change it").click()
        await expect(window.page.get_by_role("dialog").get_by_role("alert")).to_contain_text("priority")
        await expect(field).to_be_focused()
        assert await asks(world) == []
        await field.fill("7")
        await agree(window, "Change it")
    assert [(ask.kind.value, ask.priority) for ask in await asks(world)] == [("prioritise", 7)]


async def test_a_specification_is_copied_as_yaml_that_can_be_submitted(browser: Browser, world: World) -> None:
    job = await world.running(name="mine", labels={"note": "a: 'b' # \" \\ \n- c"}, env={"EMPTY": "", "NO": "no"})
    permissions = ["clipboard-read", "clipboard-write"]
    async with dashboard(browser, world.gateway.url, world.tokens["alice"], permissions=permissions) as window:
        window.watch.expect(NO_LOG)
        await window.go(f"job/{job.id}")
        await window.main.get_by_role("button", name="Copy as YAML").click()
        await expect(window.page.get_by_text("is copied")).to_be_visible()
        copied = await window.page.evaluate("navigator.clipboard.readText()")
    status, _, _ = await world.ask(
        "POST", "/v1/jobs", data=copied.encode(), headers={"Content-Type": "application/yaml"}
    )
    assert status in (200, 201, 202)
    again = await world.alice.job("mine")
    assert again.id != job.id
    assert again.spec == (await world.alice.job(job.id)).spec


async def test_a_job_of_another_tenant_is_not_there(browser: Browser, world: World) -> None:
    job = await world.running(name="of-alice")
    async with dashboard(browser, world.gateway.url, world.tokens["bob"]) as window:
        window.watch.expect("status of 404")
        await window.page.evaluate("id => { location.hash = `#/job/${id}` }", job.id)
        await expect(window.main.get_by_text("There is no job")).to_be_visible()
        assert "of-alice" not in await window.text()
