"""A service of the local cluster is kept running, and stopped when asked, by force if it must."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from weft.servers.process import command_of
from weftd.cli.local import StartFailedError
from weftd.cli.local.plan import Service, Stage
from weftd.cli.local.process import ServiceProcess

SECONDS_MAX = 60
NOW = asyncio.Event()
NOW.set()

# What the probes see of a service, and nothing else of one.
READY = """
import http.server, os, signal, sys
class Probe(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
signal.signal(signal.SIGTERM, {on_term})
http.server.HTTPServer(("127.0.0.1", int(os.environ["FAKE_ADMIN_PORT"])), Probe).serve_forever()
"""
OBEDIENT = READY.format(on_term="lambda *_: sys.exit(0)")
DEAF = READY.format(on_term="signal.SIG_IGN")
BROKEN = "import sys; print('no such setting: FAKE_TICK'); sys.exit(3)"


class Making:
    """Makes service processes and hears what they tell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[ServiceProcess] = []
        self.heard: asyncio.Queue[str] = asyncio.Queue()

    def __call__(self, script: str) -> ServiceProcess:
        log = self.folder / "fake.log"
        service = Service(name="fake", module="weftd.fake", stage=Stage.CONTROL, settings={}, log=log)
        process = ServiceProcess(service, tell=self.heard.put_nowait, command=(sys.executable, "-c", script))
        self.made.append(process)
        process.start()
        return process


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Making]:
    making = Making(tmp_path)
    yield making
    for process in making.made:
        await process.stop(patience=0, hurry=NOW)


async def ready(process: ServiceProcess) -> int:
    async with asyncio.timeout(SECONDS_MAX):
        await process.ready()
    assert process.pid
    return process.pid


async def test_a_service_is_ready_when_its_probe_says_so_and_ends_when_asked(make: Making) -> None:
    process = make(OBEDIENT)
    pid = await ready(process)
    async with asyncio.timeout(SECONDS_MAX):
        await process.stop(patience=SECONDS_MAX, hurry=asyncio.Event())
    assert not command_of(pid)
    assert process.pid is None


async def test_a_crashed_service_is_started_again_and_that_is_told(make: Making) -> None:
    process = make(OBEDIENT)
    first = await ready(process)
    os.kill(first, signal.SIGKILL)
    async with asyncio.timeout(SECONDS_MAX):
        assert "fake was ended by SIGKILL; again in 0.5 s" in await make.heard.get()
    assert await ready(process) != first


async def test_a_service_that_only_ends_is_given_up_with_the_last_lines_of_its_log(make: Making) -> None:
    process = make(BROKEN)
    with pytest.raises(StartFailedError, match="no such setting: FAKE_TICK"):
        await ready(process)


async def test_a_service_that_does_not_end_is_killed_when_patience_is_over(make: Making) -> None:
    process = make(DEAF)
    pid = await ready(process)
    async with asyncio.timeout(SECONDS_MAX):
        await process.stop(patience=0.2, hurry=asyncio.Event())
    assert not command_of(pid)


async def test_a_hurry_ends_the_patience(make: Making) -> None:
    process = make(DEAF)
    pid = await ready(process)
    hurry = asyncio.Event()
    stopping = asyncio.create_task(process.stop(patience=1000, hurry=hurry))
    hurry.set()
    async with asyncio.timeout(SECONDS_MAX):
        await stopping
    assert not command_of(pid)


async def test_a_stop_while_it_waits_to_start_again_starts_nothing(make: Making) -> None:
    process = make(BROKEN)
    async with asyncio.timeout(SECONDS_MAX):
        await make.heard.get()
        await process.stop(patience=SECONDS_MAX, hurry=asyncio.Event())
    assert process.pid is None
