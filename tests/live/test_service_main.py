"""A service as a process: how it starts, what it tells, how it ends."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.support.doubles.bus import MemoryBus
from tests.support.tree import PYTHONPATH
from weft.service import Every, serve

SECONDS_MAX = 60

SERVICE = """
import asyncio, os, sys
import msgspec
from tests.support.doubles.bus import MemoryBus
from weft.service import Every, load, main, serve

class Config(msgspec.Struct, frozen=True, kw_only=True):
    crash: str = ""

async def run(stop):
    config = load(Config, prefix="FAKE_", environ=os.environ)
    async def beat():
        if config.crash == "bug":
            raise LookupError("a bug")
        if config.crash == "environment":
            raise OSError("a server is away")
    await serve("fake", bus=MemoryBus(), stop=stop, loops=[Every(1, beat)])

sys.exit(main("fake", run))
"""


@contextmanager
def service(folder: Path, **environ: str) -> Iterator[subprocess.Popen[str]]:
    script = folder / "fake.py"
    script.write_text(SERVICE)
    process = subprocess.Popen(
        [sys.executable, script],
        env={"PATH": os.defpath, "PYTHONPATH": PYTHONPATH, **environ},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr
        process.stderr.close()


def read_until(process: "subprocess.Popen[str]", text: str) -> str:
    assert process.stderr
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"ended without saying {text!r}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_well(tmp_path: Path, number: signal.Signals) -> None:
    with service(tmp_path) as process:
        read_until(process, "is ready")
        process.send_signal(number)
        read_until(process, "has ended")
        assert process.wait(SECONDS_MAX) == 0


def test_a_bug_ends_it_with_a_traceback_and_a_status(tmp_path: Path) -> None:
    with service(tmp_path, FAKE_CRASH="bug", WEFT_LOG="json") as process:
        told = json.loads(read_until(process, "crashed"))
        assert "LookupError: a bug" in told["error"]
        assert (told["level"], told["service"]) == ("critical", "fake")
        assert process.wait(SECONDS_MAX) == 1


def test_the_environment_ends_it_with_one_line_and_a_status(tmp_path: Path) -> None:
    with service(tmp_path, FAKE_CRASH="environment") as process:
        assert 'message="fake has to end: OSError: a server is away"' in read_until(process, "has to end")
        assert process.wait(SECONDS_MAX) == 1


def test_wrong_settings_end_it_before_it_begins(tmp_path: Path) -> None:
    with service(tmp_path, FAKE_CARSH="x") as process:
        assert "FAKE_CARSH is not a setting" in read_until(process, "cannot start")
        assert process.wait(SECONDS_MAX) == 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a process that its parent has ended")
def test_it_ends_with_its_parent_however_that_went(tmp_path: Path) -> None:
    (tmp_path / "fake.py").write_text(SERVICE)
    parent = textwrap.dedent(f"""
        import subprocess, sys
        subprocess.Popen([sys.executable, {str(tmp_path / "fake.py")!r}]).wait()
    """)
    environ = {"PATH": os.defpath, "PYTHONPATH": PYTHONPATH, "WEFT_EXIT_WITH_PARENT": "1"}
    with subprocess.Popen([sys.executable, "-c", parent], env=environ, stderr=subprocess.PIPE, text=True) as process:
        read_until(process, "is ready")
        process.kill()
        read_until(process, "has ended")


async def test_probes_tell_how_it_is_from_first_to_last(unused_tcp_port: int) -> None:
    stop, beating_on, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()
    first = True
    url = f"http://127.0.0.1:{unused_tcp_port}"

    async def beat() -> None:
        nonlocal first
        if not first:
            beating_on.set()
            await may_end.wait()
        first = False

    wake = asyncio.Event()
    running = asyncio.create_task(
        serve("fake", bus=MemoryBus(), stop=stop, loops=[Every(3600, beat, wake)], admin_port=unused_tcp_port)
    )
    async with aiohttp.ClientSession() as client, asyncio.timeout(SECONDS_MAX):
        await until(client, f"{url}/readyz", 200)
        async with client.get(f"{url}/healthz") as answer:
            told = await answer.json()
            assert (answer.status, told["service"], told["bus"], list(told["loops"])) == (
                200,
                "fake",
                "connected",
                ["beat"],
            )
        async with client.get(f"{url}/metrics") as answer:
            text = await answer.text()
            assert 'weft_fake_beat_seconds_count{loop="beat",outcome="ok"} 1.0' in text
            assert "weft_fake_ready 1.0" in text
            assert "process_resident_memory_bytes" in text
        wake.set()
        await beating_on.wait()
        stop.set()
        await until(client, f"{url}/readyz", 503)
        may_end.set()
        await running
        assert await status(client, f"{url}/readyz") is None


async def status(client: aiohttp.ClientSession, url: str) -> int | None:
    try:
        async with client.get(url) as answer:
            return answer.status
    except aiohttp.ClientConnectionError:
        return None


async def until(client: aiohttp.ClientSession, url: str, wanted: int) -> None:
    while await status(client, url) != wanted:  # noqa: ASYNC110 -- as its supervisor does
        await asyncio.sleep(0.01)
