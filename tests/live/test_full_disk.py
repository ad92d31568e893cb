"""A node whose disk is full: its executor goes on, comes back, forgets nothing, and says so. The disk is a tmpfs."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.control_plane import ControlPlane
from tests.support.disk import DISK_BYTES, fill, small_disk
from tests.support.executors import executor
from tests.support.nats_server import NatsServer
from tests.support.runs import order, until
from weft.messages.nodes import EndReason
from weftd.cli.local.leftovers import kill_runs
from weftd.cli.local.ports import free_port
from weftd.executor.runs import RunKey

QUIET, FILLER, LATE, CHATTY = (RunKey(name, 1, 0) for name in ("quiet", "filler", "late", "chatty"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as folder:
        yield folder
        kill_runs(folder)


async def metric(port: int, name: str) -> float:
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/metrics") as answer:
        text = await answer.text()
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


async def test_a_full_disk_ends_neither_the_executor_nor_its_runs_and_no_end_is_forgotten(
    disk: Path, server: NatsServer, control: ControlPlane, tmp_path: Path
) -> None:
    ends, port = tmp_path / "ends", free_port()
    quiet = order(QUIET.job_id, command=("sh", "-c", f"until [ -e {ends} ]; do sleep 0.05; done; exit 5"))
    stays = order(FILLER.job_id, command=("sh", "-c", "trap 'exit 7' TERM; while :; do sleep 0.05; done"), grace=5.0)
    late = order(LATE.job_id, command=("sh", "-c", "exit 3"))
    short = {"EXECUTOR_FENCE_SECONDS": "5", "EXECUTOR_FENCE_GRACE_MAX": "1", "EXECUTOR_SYNC_SECONDS": "0.5"}
    settings = {**short, "EXECUTOR_ADMIN_PORT": str(port)}
    home = disk / "home"
    async with executor(server, home, keeping=True, **settings) as first:
        await control.want(quiet, stays)
        await control.hears(QUIET, "running")
        await control.hears(FILLER, "running")
        fill(disk)
        heard = len(control.reports)
        await control.want(quiet, stays, late)
        await until(lambda: len(control.reports) > heard + 6)
        assert LATE not in {key for key, run in control.seen.items() if run.state == "exited"}
        async with asyncio.timeout(20):
            while await metric(port, "weft_executor_disk_full") != 1:  # noqa: ASYNC110 - it is asked over HTTP
                await asyncio.sleep(0.1)
        assert first.returncode is None
        first.kill()
        await first.wait()
    ends.touch()  # It ends while nobody watches, and its status must find room.
    await asyncio.sleep(0.3)
    control.seen.clear()
    async with executor(server, home, keeping=True, **settings) as second:
        seen = await control.hears(QUIET, "exited")
        assert (seen.exit_code, seen.reason) == (5, EndReason.EXIT)
        assert (await control.hears(FILLER, "running")).state == "running"
        (disk / "filling").unlink()
        seen = await control.hears(LATE, "exited")
        assert (seen.exit_code, seen.reason) == (3, EndReason.EXIT)
        fill(disk)
        second.kill()
        await second.wait()
    await control.fall_silent()
    server.kill()
    async with executor(server, home, **settings):
        record = home / "runs" / str(FILLER)
        await until(lambda: (record / "exit").read_text().startswith("7\n"))


async def test_a_run_that_writes_more_than_the_disk_holds_does_not_fill_the_disk_for_the_others(
    disk: Path, server: NatsServer, control: ControlPlane
) -> None:
    home = disk / "home"
    chatty = order(CHATTY.job_id, command=("sh", "-c", "while :; do head -c 400000 /dev/zero; sleep 0.04; done"))
    quiet = order(QUIET.job_id, command=("sh", "-c", "i=0; while :; do echo $i; i=$((i+1)); sleep 0.02; done"))
    async with executor(server, home):
        await control.want(chatty, quiet)
        await control.hears(CHATTY, "running")
        log, other = home / "logs" / f"{CHATTY}.log", home / "logs" / f"{QUIET}.log"
        await until(lambda: log.exists() and log.stat().st_size > 2 * DISK_BYTES, seconds_max=90)
        assert os.statvfs(disk).f_bavail > 0
        lines = other.read_bytes().split(b"\n")[:-1]
        assert lines == [b"%d" % number for number in range(len(lines))]
        await until(lambda: other.stat().st_size > 0)
        assert control.seen[QUIET].state == "running"
