"""The files of a job on its page: their names come from the job, and nobody believes them."""

import shlex

from playwright.async_api import Browser, expect

from tests.support.dashboard import dashboard
from tests.support.gateway_world import World
from weft.messages.files import JobFile

NAME = "results/it's; touch owned #$(touch owned)"


async def test_the_command_to_copy_has_the_name_of_a_file_as_one_word(browser: Browser, world: World) -> None:
    job = await world.running(name="mine")
    world.nodes["node-1"].files[job.id] = JobFile(path=NAME, bytes=3, modified_at=0.0)
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        await window.go(f"job/{job.id}?tab=files")
        await expect(window.main.get_by_role("table", name="Files of the job")).to_contain_text("touch owned")
        command = str(await window.main.locator("#panel-files .copied code").inner_text())
    assert shlex.split(command) == ["weft", "cp", f"mine:{NAME}", "."]
