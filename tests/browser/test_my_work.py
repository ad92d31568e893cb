"""The home page, the form of a new job, acting on several jobs, and jumping: work without the command line."""

import re
import time

from playwright.async_api import Browser, expect

from tests.support.chromium import PHONE
from tests.support.dashboard import dashboard
from tests.support.gateway_world import World
from tests.support.steps import placement
from weft.domain.job import Cause, CauseCode, JobEvent
from weft.messages.asks import AskKind
from weft.messages.files import JobFile

TAIL = b"step 1\nRuntimeError: CUDA out of memory\n"
ENDED = Cause(code=CauseCode.EXITED, sentence="rank 0 ended with status 3", numbers={"rank": 0, "exit_code": 3})


async def test_the_home_page_has_my_jobs_by_what_they_do_and_nobody_elses(browser: Browser, world: World) -> None:
    await world.running(name="runs-now")
    await world.submitted(name="waits-now", gpus=4)
    await world.go(await world.running(name="broke", placement=placement(("node-1", 1))), JobEvent.FAILED, cause=ENDED)
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        await expect(window.main.get_by_role("heading", name="My work")).to_be_visible()
        for title, job in (("Running", "runs-now"), ("Waiting", "waits-now"), ("Failed", "broke")):
            box = window.main.locator("section").filter(has=window.page.get_by_role("heading", name=re.compile(title)))
            await expect(box.get_by_role("link", name=job)).to_be_visible()
        await expect(window.main.get_by_text("rank 0 ended with status 3")).to_be_visible()
        assert await window.barriers() == []
    async with dashboard(browser, world.gateway.url, world.tokens["bob"], size=PHONE) as window:
        await expect(window.main.get_by_text("No job of yours waits or runs")).to_be_visible()
        await expect(window.main.get_by_text("weft run --gpus 1 -- python train.py")).to_be_visible()
        assert "runs-now" not in await window.text()


async def test_selected_jobs_are_cancelled_after_a_question_that_names_them(browser: Browser, world: World) -> None:
    first = await world.running(name="first")
    other = await world.running(name="other", placement=placement(("node-1", 1)))
    await world.running(name="stays", placement=placement(("node-1", 2)))
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        for name in ("first", "other"):
            await window.main.get_by_role("checkbox", name=f"Select {name}").check()
        await expect(window.main.get_by_text("2 selected")).to_be_visible()
        await window.main.get_by_role("button", name="Cancel", exact=True).click()
        question = window.page.get_by_role("dialog")
        await expect(question).to_contain_text("first")
        await expect(question).to_contain_text("other")
        assert await world.place.stores.scheduler.asks(pool="default", limit=100) == []
        await question.get_by_role("button", name="Cancel 2 jobs").click()
        await expect(window.page.get_by_text("2 jobs will be cancelled")).to_be_visible()
    asks = await world.place.stores.scheduler.asks(pool="default", limit=100)
    assert {(ask.kind, ask.subject_id) for ask in asks} == {(AskKind.CANCEL, first.id), (AskKind.CANCEL, other.id)}


async def test_a_new_job_is_checked_as_it_is_typed_and_submitted(browser: Browser, world: World) -> None:
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        window.watch.expect("status of 400", "/logs?")  # a mistake; and the job has not run
        await window.main.get_by_role("link", name="New job").click()
        await expect(window.main.get_by_text("Correct.")).to_be_visible()
        yaml = window.page.get_by_label("Job file (YAML)")
        await window.page.get_by_label("Name", exact=True).fill("from-form")
        await window.page.get_by_label("Replicas").fill("3")
        await expect(yaml).to_have_value(re.compile(r"name: from-form"))
        await expect(yaml).to_have_value(re.compile(r"want: 3"))
        await yaml.fill('name: Bad Name\nkind: batch\ncommand: ["true"]\ngpus: 1\n')
        wrong = window.main.get_by_role("alert")
        await expect(wrong).to_contain_text("name")
        await expect(wrong).to_contain_text("gpus")
        await expect(window.main.get_by_role("button", name="Submit")).to_be_disabled()
        assert await window.barriers() == []
        await yaml.fill("name: typed\nkind: batch\ncommand: [sh, -c, \"echo 'a b'\"]\n")
        await expect(window.page.get_by_label("Name", exact=True)).to_have_value("typed")
        await expect(window.page.get_by_label("Command")).to_have_value("sh -c 'echo '\\''a b'\\'''")
        assert (await world.alice.jobs()).jobs == ()  # a check stores nothing
        await window.main.get_by_role("button", name="Submit").click()
        await expect(window.main.get_by_role("heading", level=1)).to_contain_text("typed")
    assert (await world.alice.job("typed")).spec.command == ("sh", "-c", "echo 'a b'")


async def test_a_job_is_cloned_with_its_specification(browser: Browser, world: World) -> None:
    job = await world.running(name="again", labels={"team": "vision"})
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        window.watch.expect("/logs?")
        await window.go(f"job/{job.id}")
        await window.main.get_by_role("link", name="Clone").click()
        await expect(window.page.get_by_label("Job file (YAML)")).to_have_value(re.compile("team: vision"))
        await expect(window.page.get_by_label("Name", exact=True)).to_have_value("again")


async def test_a_failed_job_opens_on_its_last_lines_and_its_log_is_searched(browser: Browser, world: World) -> None:
    job = await world.running(name="broke")
    await world.nodes["node-1"].write(job.id, b"".join(b"line %d\n" % n for n in range(500)) + TAIL, end=True)
    await world.go(job, JobEvent.FAILED, cause=ENDED, exit_code=3)
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        await window.go(f"job/{job.id}")
        await expect(window.main.get_by_text("rank 0 ended with status 3").first).to_be_visible()
        await expect(window.main.get_by_role("region", name="The last lines")).to_contain_text("CUDA out of memory")
        await window.tab("Logs")
        await window.page.get_by_role("searchbox", name="Search the log").fill("LINE 77")
        await window.button("Search").click()
        await expect(window.main.get_by_text("1 line found")).to_be_visible()
        await window.main.get_by_role("list", name="Found lines").get_by_role("button").click()
        log = window.main.get_by_role("log")
        await expect(log.locator("> div").first).to_have_text("line 77")
        assert "byte=" in window.page.url  # the address is a link to the line
        await window.page.reload()
        await expect(log.locator("> div").first).to_have_text("line 77")


async def test_the_files_of_a_job_are_listed_and_downloaded(browser: Browser, world: World) -> None:
    job = await world.running(name="writes")
    none = await world.running(name="writes-none", placement=placement(("node-1", 1)))
    kept = JobFile(path="results/model.pt", bytes=2048, modified_at=time.time())
    world.nodes["node-1"].files[job.id] = kept
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        window.watch.expect("/files?")  # the second job has none
        await window.go(f"job/{job.id}?tab=files")
        async with window.page.expect_download() as coming:
            await window.button("Download results.model.pt").click()
        download = await coming.value
        assert download.suggested_filename == "model.pt"
        assert (await download.path()).stat().st_size == kept.bytes
        await window.go(f"job/{none.id}?tab=files")
        await expect(window.main.get_by_text("No files", exact=True)).to_be_visible()


async def test_any_page_job_or_node_is_reached_by_its_name(browser: Browser, world: World) -> None:
    job = await world.running(name="somewhere")
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        window.watch.expect("/logs?")
        await expect(window.main.get_by_role("link", name="somewhere")).to_be_visible()
        await window.page.keyboard.press("Control+k")
        field = window.page.get_by_role("combobox", name="Jump to")
        await expect(field).to_be_focused()
        assert await window.barriers() == []
        await field.fill("somewh")
        await expect(window.page.get_by_role("option", name="somewhere")).to_be_visible()
        await window.page.keyboard.press("Enter")
        await expect(window.main.get_by_role("heading", level=1)).to_contain_text("somewhere")
        assert job.id in window.page.url


async def test_an_administrator_drains_a_node_after_a_question_that_names_it(browser: Browser, world: World) -> None:
    async with dashboard(browser, world.gateway.url, world.tokens["admin"]) as window:
        await window.page.get_by_role("navigation", name="Pages").get_by_role("link", name="Admin").click()
        await window.button("Drain node-1").click()
        question = window.page.get_by_role("dialog")
        await expect(question).to_contain_text("Drain node-1")
        await question.get_by_label("Reason").fill("new memory")
        await question.get_by_role("button", name="Drain node-1").click()
        await expect(window.page.get_by_text("node-1 takes no new job")).to_be_visible()
        for tab in ("Tokens", "People", "Quotas", "Webhooks", "Secrets", "Audit"):
            await window.tab(tab)
            await expect(window.main.get_by_role("heading", name=tab, level=2)).to_be_visible()
        assert await window.barriers() == []
    (ask,) = await world.place.stores.scheduler.asks(pool="default", limit=100)
    assert (ask.kind, ask.subject_id) == (AskKind.DRAIN, "node-1")
