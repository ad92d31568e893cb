"""The terminal of the job page: a shell in a job of a whole cluster, under the dashboard's real policy."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

import weftd.gateway
from tests.support.cluster import Cluster, embedded_cluster
from tests.support.dashboard import dashboard
from weft.domain.job import JobState

XTERM = Path(weftd.gateway.__file__).parent / "face/xterm/xterm.js"
SPEC = b'{"name": "entered", "command": ["sleep", "600"], "grace": "1s", "roles": {"worker": {"cpus": 0.1}}}'


@pytest.fixture(scope="module")
async def cluster(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with embedded_cluster(tmp_path_factory.mktemp("terminal"), nodes=1, gpus=1) as made:
        yield made


async def test_a_person_types_into_a_shell_of_the_job(browser: Browser, cluster: Cluster) -> None:
    if not XTERM.exists():
        pytest.skip("xterm.js was not fetched: make terminal")
    job = await cluster.client.submit(SPEC)
    await cluster.client.until(job.id, JobState.RUNNING)
    async with dashboard(browser, cluster.local.url, cluster.local.token) as window:
        await window.go(f"job/{job.id}")
        await window.tab("Terminal")
        await window.button("Open a terminal").click()
        box = window.main.locator("section").filter(has=window.page.get_by_role("heading", name="Terminal"))
        await expect(box.get_by_role("status").first).to_contain_text("A shell of rank 0 on node-1")
        await window.page.keyboard.type("echo $((6*7))-$WEFT_JOB_ID; printf '\\033[38;2;10;200;30mgreen\\033[0m\\n'\n")
        await expect(box.locator(".xterm-rows")).to_contain_text(f"42-{job.id}")
        await expect(box.locator(".xterm-rows")).to_contain_text("green")
        await window.picture("terminal")
        await window.page.keyboard.press("F6")
        await expect(window.button("End the session")).to_be_focused()
        await window.page.locator(".xterm-helper-textarea").focus()
        await window.page.keyboard.type("exit 3\n")
        await expect(box.get_by_role("status").first).to_contain_text("The shell has ended with status 3.")
        await expect(window.button("Open a terminal")).to_be_visible()
    await cluster.client.cancel(job.id)


async def test_an_installation_without_it_names_the_command(browser: Browser, cluster: Cluster) -> None:
    job = await cluster.client.submit(SPEC)
    await cluster.client.until(job.id, JobState.RUNNING)
    async with dashboard(browser, cluster.local.url, cluster.local.token) as window:
        window.watch.expect("xterm")
        await window.page.route("**/xterm/xterm.js", lambda route: route.fulfill(status=404, body=""))
        await window.go(f"job/{job.id}")
        await window.tab("Terminal")
        await window.button("Open a terminal").click()
        await expect(window.main.get_by_text(f"weft shell {job.id}")).to_be_visible()
    await cluster.client.cancel(job.id)


async def test_a_page_without_the_proof_opens_no_terminal(browser: Browser, cluster: Cluster) -> None:
    """The cookie alone is not enough: another page of this host might have the browser send it."""
    job = await cluster.client.submit(SPEC)
    await cluster.client.until(job.id, JobState.RUNNING)
    script = """([path, protocols]) => new Promise(done => {
        const socket = new WebSocket(new URL(path, location.href.replace("http", "ws")), protocols);
        socket.onopen = () => done("open");
        socket.onerror = () => done("refused");
    })"""
    async with dashboard(browser, cluster.local.url, cluster.local.token) as window:
        window.watch.expect("attach", "WebSocket")
        path = f"/v1/jobs/{job.id}/attach?kind=shell&tty=1"
        for protocols in (["weft.attach"], ["weft.attach", "weft.proof." + "0" * 32]):
            assert await window.page.evaluate(script, [path, protocols]) == "refused"
    await cluster.client.cancel(job.id)
