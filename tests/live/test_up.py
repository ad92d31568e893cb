"""`weft up` brings a whole cluster up, attaches to one that is, keeps its data, and leaves nothing running."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import until
from weft import servers
from weft.client import Client
from weft.domain.job import FINAL, JobState
from weft.domain.spec import JobSpec, Role
from weft.messages.http import JobView
from weft.messages.http.status import Grave
from weft.servers.process import command_of, wait_until
from weftd.cli.demo.parts import program
from weftd.cli.local import ClusterHome
from weftd.cli.local.leftovers import living_runs
from weftd.gateway.thinking.status import SILENT_SECONDS

SECONDS_MAX = 60


class Up:
    """One `weft up`, and what it has printed so far."""

    def __init__(self, process: asyncio.subprocess.Process, home: Path) -> None:
        self.process = process
        self.home = home
        self.lines: list[str] = []

    async def says(self, words: str) -> str:
        """The next line with these words."""
        assert self.process.stdout
        async with asyncio.timeout(SECONDS_MAX):
            while line := (await self.process.stdout.readline()).decode():
                self.lines.append(line)
                if words in line:
                    return line
        raise AssertionError(f"it never said {words!r}, but:\n{''.join(self.lines)}")

    async def ends(self, *signals: signal.Signals) -> int:
        """Its exit status, once it has been sent these."""
        assert self.process.stdout
        for number in signals:
            self.process.send_signal(number)
        async with asyncio.timeout(SECONDS_MAX):
            self.lines.append((await self.process.stdout.read()).decode())
            return await self.process.wait()

    def client(self) -> Client:
        client = ClusterHome(self.home).client()
        assert client
        return Client(client.url, client.token)


class Ups:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.made: list[Up] = []

    async def __call__(self, *arguments: str) -> Up:
        return await self.run("up", "--nodes", "1", "--emulated-gpus", "2", "--port", "0", *arguments)

    async def run(self, command: str, *arguments: str) -> Up:
        settings = {name: value for name, value in os.environ.items() if not name.startswith("WEFT_")}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "weftd.cli", command, "--home", str(self.home), *arguments),
            env=settings,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        self.made.append(Up(process, self.home))
        return self.made[-1]


@pytest.fixture
async def weft_up(tmp_path: Path) -> AsyncIterator[Ups]:
    ups = Ups(tmp_path / "home")
    yield ups
    for up in ups.made:
        if up.process.returncode is None:
            await up.ends(signal.SIGINT)
    if ClusterHome(ups.home).runs():
        await (await ups.run("down", "--kill")).ends()
    await servers.erase(ups.home)


async def processes(home: Path) -> dict[str, int]:
    """Everything that runs for this home, by what it is."""
    state, found = ClusterHome(home).state(), await servers.status(home)
    assert state
    runs = {f"run {pid}": pid for pid in living_runs(ClusterHome(home).nodes)}
    of_servers = {"nats": found.nats and found.nats.pid, "postgres": found.postgres and found.postgres.pid}
    return {**state.pids, **runs, **{name: pid for name, pid in of_servers.items() if pid}}


def alive(pids: dict[str, int]) -> list[str]:
    return [name for name, pid in pids.items() if command_of(pid)]


async def training(client: Client) -> JobView:
    """A long training that has its first checkpoint behind it."""
    spec = JobSpec(
        name="long", command=program("train", "--steps", "1000000"), roles={"worker": Role(gpus=1)}, grace="5s"
    )
    job = await client.submit(spec)
    view = await until(client, job.id, lambda view: view.progress.get("step", 0) > 0 or view.state.final)
    assert view.state is JobState.RUNNING, await client.story(job.id)
    return view


async def first_words(client: Client, job: str, epoch: int) -> bytes:
    async with asyncio.timeout(SECONDS_MAX):
        async for words in client.follow_log(job, epoch=epoch):
            if words:
                return words
    return b""


async def test_a_second_up_says_where_the_first_one_is_and_ends(weft_up: Ups) -> None:
    first = await weft_up()
    url = (await first.says("Weft is up")).split()[-1]
    second = await weft_up()
    assert await second.ends() == 0
    assert f"already up: {url}" in "".join(second.lines)
    async with first.client() as client:
        assert [node.id for node in (await client.nodes()).nodes] == ["node-1"]


async def test_ctrl_c_leaves_nothing_running_and_the_job_goes_on_from_its_checkpoint_at_the_next_up(
    weft_up: Ups,
) -> None:
    first = await weft_up()
    await first.says("Weft is up")
    async with first.client() as client:
        job = await training(client)
        saved = weft_up.home / "saved"
        train = f"trap 'sleep 1; echo saved >{saved}; exit 0' TERM; echo up; while :; do sleep 0.05; done"
        script = 'sh -c "$TRAIN"; echo after'
        wrapped = await client.submit(JobSpec(name="wrapped", command=("sh", "-c", script), env={"TRAIN": train}))
        running = await until(client, wrapped.id, lambda view: view.state is JobState.RUNNING)
        assert b"up" in await first_words(client, wrapped.id, running.epoch)
    before = await processes(weft_up.home)
    assert {"gateway", "scheduler", "executor-node-1", "nats", "postgres"} <= before.keys()
    assert any(name.startswith("run ") for name in before)
    assert await first.ends(signal.SIGINT) == 0
    assert alive(before) == []
    assert saved.exists(), "a program below a shell has its grace"

    second = await weft_up()
    await second.says("Weft is up")
    async with second.client() as client:
        resumed = await until(client, job.id, lambda view: view.epoch > job.epoch and view.state is JobState.RUNNING)
        assert b"resumed at step" in await first_words(client, job.id, resumed.epoch)
        await client.cancel(job.id)
        ended = await until(client, job.id, lambda view: view.state in FINAL)
    assert (resumed.state, ended.state) == (JobState.RUNNING, JobState.CANCELLED)
    assert await second.ends(signal.SIGTERM) == 0


async def test_a_detached_cluster_outlives_its_command_until_down_stops_it(weft_up: Ups) -> None:
    home = ClusterHome(weft_up.home)
    up = await weft_up("--detach")
    assert await up.ends() == 0
    assert "`weft down`" in up.lines[-1]
    async with up.client() as client:
        assert [node.id for node in (await client.nodes()).nodes] == ["node-1"]
    before = await processes(weft_up.home)
    again = await weft_up("--detach")
    assert await again.ends() == 0
    assert "already up" in again.lines[-1]

    down = await weft_up.run("down")
    assert await down.ends() == 0
    assert (alive(before), home.runs()) == ([], None)
    assert home.up_log.stat().st_mode & 0o077 == 0, "the administrator's token is in it"
    nothing = await weft_up.run("down")
    assert await nothing.ends() == 0
    assert "no cluster runs" in nothing.lines[-1]


async def test_down_with_kill_waits_for_no_job(weft_up: Ups) -> None:
    up = await weft_up("--detach")
    assert await up.ends() == 0
    async with up.client() as client:
        deaf = JobSpec(name="deaf", command=("sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"), grace="60s")
        job = await client.submit(deaf)
        await until(client, job.id, lambda view: view.state is JobState.RUNNING)
    before = await processes(weft_up.home)
    down = await weft_up.run("down", "--kill")
    async with asyncio.timeout(30):
        assert await down.ends() == 0
    assert alive(before) == []


async def test_a_detached_up_that_fails_says_why_and_leaves_nothing(weft_up: Ups) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        up = await weft_up("--port", str(taken.getsockname()[1]), "--detach")
        assert await up.ends() == 1
    assert "is taken; choose another with --port" in up.lines[-1]
    assert ClusterHome(weft_up.home).runs() is None


async def test_a_service_that_dies_is_started_again(weft_up: Ups) -> None:
    up = await weft_up()
    await up.says("Weft is up")
    before = await processes(weft_up.home)
    os.kill(before["scheduler"], signal.SIGKILL)
    await up.says("scheduler was ended by SIGKILL; again in 0.5 s")
    async with up.client() as client:
        job = await training(client)
        assert job.state is JobState.RUNNING
    assert (await processes(weft_up.home))["scheduler"] != before["scheduler"]


async def test_status_names_a_service_that_stands_still_and_no_more_once_it_goes_on(weft_up: Ups) -> None:
    up = await weft_up()
    await up.says("Weft is up")
    scorer = (await processes(weft_up.home))["scorer"]
    async with up.client() as client:

        async def heard(services: set[str], *problems: str) -> None:
            """Return once exactly these services are heard, and these have a problem."""
            async with asyncio.timeout(SECONDS_MAX):
                while True:
                    told = await client.status()
                    there = {one.service for one in told.services if one.silent_seconds <= SILENT_SECONDS}
                    if there == services and problems == tuple(
                        one.about for one in told.findings if one.grave is Grave.PROBLEM
                    ):
                        return
                    await asyncio.sleep(0.5)

        every = {"gateway", "scheduler", "scorer", "reallocator", "router"}
        await heard(every)
        os.kill(scorer, signal.SIGSTOP)
        try:
            await heard(every - {"scorer"}, "scorer")
        finally:
            os.kill(scorer, signal.SIGCONT)
        await heard(every)


async def test_no_service_outlives_an_up_that_was_killed_and_the_next_one_takes_its_servers(weft_up: Ups) -> None:
    first = await weft_up()
    await first.says("Weft is up")
    before = await processes(weft_up.home)
    await first.ends(signal.SIGKILL)
    assert await asyncio.to_thread(wait_until, lambda: set(alive(before)) == {"nats", "postgres"}, SECONDS_MAX)
    second = await weft_up()
    await second.says("Weft is up")
    after = await processes(weft_up.home)
    assert (after["nats"], after["postgres"]) == (before["nats"], before["postgres"])
    assert await second.ends(signal.SIGINT) == 0
    assert alive(after) == []


async def test_a_port_that_is_taken_is_said_in_one_line(weft_up: Ups) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        up = await weft_up("--port", str(port))
        assert await up.ends() == 1
    assert (
        up.lines[-1].splitlines()[-1] == f"weft: port {port} is taken; choose another with --port, or any with --port 0"
    )


async def test_servers_that_die_are_started_again_under_a_running_job_and_nothing_is_lost(weft_up: Ups) -> None:
    up = await weft_up()
    await up.says("Weft is up")
    async with up.client() as client:
        job = await training(client)
        before = await processes(weft_up.home)
        for server in ("nats", "postgres"):
            os.kill(before[server], signal.SIGKILL)
        await up.says("NATS and Postgres died, starting again")
        other = await client.submit(JobSpec(name="other", command=("true",)))
        assert (await until(client, other.id, lambda view: view.state in FINAL)).state is JobState.SUCCEEDED
        unharmed = await client.job(job.id)
        assert (unharmed.state, unharmed.epoch) == (JobState.RUNNING, job.epoch)
        await client.cancel(job.id)
        assert (await until(client, job.id, lambda view: view.state in FINAL)).state is JobState.CANCELLED
