"""However `weft demo` ends, nothing of it is left. (That it succeeds is `make demo`, which CI runs.)"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.tier import some
from weft import servers
from weft.servers.process import command_of, wait_until
from weftd.cli.demo.command import clear_abandoned
from weftd.cli.local import ClusterHome
from weftd.cli.local.leftovers import living_runs

SECONDS_MAX = 60
STARTING, RUNNING = "NATS and Postgres", "alpha     running"


async def demo(temporary: Path, *arguments: str) -> asyncio.subprocess.Process:
    """A demo whose folder is made in this one."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "weftd.cli", "demo", *arguments),
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def said(process: asyncio.subprocess.Process, words: str = "") -> str:
    """What it prints until it says these words, which it must say; without words, until it ends."""
    assert process.stdout
    lines: list[str] = []
    async with asyncio.timeout(SECONDS_MAX):
        while line := (await process.stdout.readline()).decode():
            lines.append(line)
            if words and words in line:
                return "".join(lines)
        await process.wait()
    assert not words, f"it never said {words!r}, but:\n{''.join(lines)}"
    return "".join(lines)


async def processes(home: Path) -> set[int]:
    state, found = ClusterHome(home).state(), await servers.status(home)
    assert state
    of_servers = {server.pid for server in (found.nats, found.postgres) if server and server.pid}
    return {*state.pids.values(), *of_servers, *living_runs(ClusterHome(home).nodes)}


def only(folder: Path) -> Path:
    [found] = [each for each in folder.iterdir() if not each.name.startswith("weft-router-")]
    return found


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if command_of(pid)}


async def test_a_demo_that_takes_too_long_says_what_is_stuck_and_fails(tmp_path: Path) -> None:
    process = await demo(tmp_path, "--seconds-max", "2")
    output = await said(process)
    assert process.returncode == 1
    assert "the demo has run for 2 s; jobs that have not ended: " in output
    assert "nothing is left running" in output
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "when"),
    some(
        2,
        [
            (signal.SIGINT, RUNNING),
            (signal.SIGTERM, RUNNING),
            (signal.SIGHUP, RUNNING),
            (signal.SIGTERM, STARTING),
            (signal.SIGINT, STARTING),
            (signal.SIGHUP, STARTING),
        ],
    ),
)
async def test_a_demo_that_is_asked_to_stop_leaves_nothing(tmp_path: Path, number: int, when: str) -> None:
    process = await demo(tmp_path)
    await said(process, when)
    home = only(tmp_path)
    before = await processes(home)
    assert before
    process.send_signal(number)
    await said(process)
    assert process.returncode == 130
    assert alive(before) == set()
    assert os.listdir(tmp_path) == []


async def test_what_a_killed_demo_left_is_cleared_by_the_next_one(tmp_path: Path) -> None:
    process = await demo(tmp_path)
    await said(process, RUNNING)
    home = only(tmp_path)
    before = await processes(home)
    process.kill()
    await said(process)
    assert alive(before)
    await clear_abandoned(tmp_path)
    assert await asyncio.to_thread(wait_until, lambda: not alive(before), SECONDS_MAX)
    assert os.listdir(tmp_path) == []


async def test_a_demo_that_runs_is_not_cleared(tmp_path: Path) -> None:
    home = ClusterHome(tmp_path / "weft-demo-1")
    home.make()
    home.take()
    await clear_abandoned(tmp_path)
    assert home.root.exists()
    home.release()
