"""A cluster goes from the newest release to this tree, service by service, under load: nothing is lost or restarted."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.cluster import until
from tests.support.tier import some
from tests.support.versions import NoEarlierVersionError, Version, earlier_version, this_version
from weft import servers
from weft.client import Client
from weft.credentials import Credentials
from weft.domain.job import JobState
from weft.domain.spec import JobSpec, Replicas, Role
from weftd.cli.local.leftovers import kill_runs
from weftd.cli.local.ports import free_port
from weftd.cli.local.process import ServiceProcess

NODES = ["node-1", "node-2"]
CONTROL = ["gateway", "scheduler", "scorer", "reallocator", "router"]
ON_NODES = [f"{kind}-{node}" for node in NODES for kind in ("executor", "telemetry")]
PATIENCE_SECONDS = 20.0

# It writes one line a tenth of a second until it is told that the upgrade is over: a second run would show.
WORKER = """
import os, sys, time
trace, over = sys.argv[1:]
with open(f"{trace}-{os.environ['WEFT_RANK']}", "a") as file:
    print("began", os.environ["WEFT_EPOCH"], file=file, flush=True)
    while not os.path.exists(over):
        time.sleep(0.1)
    print("ended", os.environ["WEFT_EPOCH"], file=file, flush=True)
"""


class Mixed:
    """Some services of one version, some of another, on the same servers."""

    def __init__(self, folder: Path, asked: dict[str, Any]) -> None:
        self.folder = folder
        self.asked = asked
        self.running: dict[str, ServiceProcess] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.asked['port']}"

    @property
    def token(self) -> str:
        return Credentials(self.folder / "credentials").admin_token()

    async def start(self, version: Version, names: Sequence[str]) -> None:
        """Those of them that this version has: the earlier one may lack a service."""
        planned = await version.services(self.asked)
        names = [name for name in names if name in planned]
        for name in names:
            self.running[name] = ServiceProcess(planned[name], tell=print)
            self.running[name].start()
        async with asyncio.timeout(60):
            for name in names:
                await self.running[name].ready()

    async def stop(self, names: Sequence[str]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                process = self.running.pop(name)
                tasks.create_task(process.stop(patience=PATIENCE_SECONDS, hurry=asyncio.Event()))

    async def roll(self, version: Version, names: Sequence[str]) -> None:
        """One after the other: the old one ends, the new one begins."""
        for name in names:
            await self.stop([name] if name in self.running else [])
            await self.start(version, [name])


@asynccontextmanager
async def servers_for(folder: Path, earlier: Version) -> AsyncIterator[Mixed]:
    asked: dict[str, Any] = {"home": str(folder), "credentials": str(folder / "credentials"), "nodes": NODES}
    await earlier.provision(asked)
    async with servers.temporary(folder, credentials=Credentials(folder / "credentials")) as up:
        settings = {"EXECUTOR_STOP_JOBS_ON_EXIT": "0", "EXECUTOR_CGROUPS": "0"}
        asked |= {"nats_url": up.nats_url, "pg_dsn": up.pg_dsn, "settings": settings}
        asked |= {"port": free_port(), "router_port": free_port()}
        mixed = Mixed(folder, asked)
        try:
            yield mixed
        finally:
            await mixed.stop(list(mixed.running))
            await asyncio.to_thread(kill_runs, folder / "nodes")


def worker(trace: Path, over: Path, *, ranks: int = 1) -> JobSpec:
    role = Role(replicas=Replicas(want=ranks), gpus=1, cpus=0.1, memory="64MiB")
    command = (sys.executable, "-S", "-c", WORKER, str(trace), str(over))
    return JobSpec(name=trace.name, command=command, roles={"worker": role})


async def submit_on(client: Client, submitted: dict[str, str], over: asyncio.Event) -> None:
    """A short job now and then, whichever gateway is there; each key is one job, however often it is sent."""
    spec = JobSpec(name="short", command=("true",), roles={"worker": Role(cpus=0.1, memory="64MiB")})
    while not over.is_set():
        key = f"key-{len(submitted)}"
        submitted[key] = (await client.submit(spec, key=key)).id
        await asyncio.sleep(0.3)


async def serves(mixed: Mixed) -> bool:
    """Does the router know this token, and that there is no service of this name?"""
    url, token = f"http://127.0.0.1:{mixed.asked['router_port']}/s/j-none/", {"Authorization": f"Bearer {mixed.token}"}
    async with aiohttp.ClientSession() as session, session.get(url, headers=token) as answer:
        return answer.status == 404 and b"no such service" in await answer.read()


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "order", some(1, [[*CONTROL, *ON_NODES], [*ON_NODES, *reversed(CONTROL)]]), ids=["control", "nodes"]
)
async def test_jobs_run_through_a_rolling_restart_into_this_version(order: list[str], tmp_path: Path) -> None:
    """`order`: who goes first. Both must do, since nobody upgrades all machines in one instant."""
    try:
        earlier = await asyncio.to_thread(earlier_version, tmp_path / "earlier")
    except NoEarlierVersionError as error:
        pytest.skip(str(error))
    this, over = this_version(), tmp_path / "over"
    async with servers_for(tmp_path / "home", earlier) as mixed:
        await earlier.migrate(mixed.asked)
        await mixed.start(earlier, order)
        async with Client(mixed.url, mixed.token, retry_seconds=60) as client:
            long = {f"long-{one}": worker(tmp_path / f"long-{one}", over) for one in range(3)}
            long["gang"] = worker(tmp_path / "gang", over, ranks=4)
            jobs = {name: (await client.submit(spec)).id for name, spec in long.items()}
            for job in jobs.values():
                await until(client, job, lambda view: view.state is JobState.RUNNING)

            submitted: dict[str, str] = {}
            upgraded = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(submit_on(client, submitted, upgraded))
                # Expand first, under the earlier services; then the services, one by one.
                await this.provision(mixed.asked)
                await servers.reload_users(mixed.folder)
                await this.migrate(mixed.asked)
                await mixed.roll(this, order)
                upgraded.set()
            assert mixed.running.keys() == set(order)
            assert await serves(mixed)
            over.touch()
            for job in [*jobs.values(), *submitted.values()]:
                view = await until(client, job, lambda view: view.state.final)
                assert (view.state, view.epoch) == (JobState.SUCCEEDED, 0), view
    assert len(set(submitted.values())) == len(submitted) > 0
    for name, spec in long.items():
        for rank in range(4 if name == "gang" else 1):
            assert (tmp_path / f"{name}-{rank}").read_text().splitlines() == ["began 0", "ended 0"], spec.name
