"""A Postgres that stands still for longer than the fence: the jobs run on, as long as every scheduler is heard."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.chaos.stores import Stores
from tests.support.builders import spec
from tests.support.cluster import until
from tests.support.tier import some
from weft.client import Client
from weft.credentials import Credentials, provision
from weft.domain.job import JobState
from weftd.cli.local import ClusterHome, Options, running
from weftd.cli.local.plan import Addresses, services
from weftd.cli.local.process import ServiceProcess

FENCE_SECONDS = 8.0
TIMES = {
    "EXECUTOR_FENCE_SECONDS": f"{FENCE_SECONDS:g}",
    "EXECUTOR_FENCE_GRACE_MAX": "1",
    "EXECUTOR_DRIFT_SECONDS": "2",
    "EXECUTOR_LEASE_SECONDS": "20",
    "EXECUTOR_SYNC_SECONDS": "0.5",
    "SCHEDULER_LEASE_SECONDS": "20",
    "SCHEDULER_LEADER_SECONDS": "3",
}
WAIT_SECONDS_MAX = 90.0


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""  # a job that runs may not have written yet


async def _says(log: Path, what: str) -> None:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while what not in _text(log):  # noqa: ASYNC110 - a file tells nobody
            await asyncio.sleep(0.1)


async def _grows(file: Path, lines: int) -> None:
    """The job writes five lines a second."""
    had = len(_text(file).splitlines())
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while len(_text(file).splitlines()) < had + lines:  # noqa: ASYNC110 - a file tells nobody
            await asyncio.sleep(0.1)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("second", some(1, ["killed", "none", "standing by"]))
async def test_what_runs_runs_on_while_postgres_stands_still_if_every_scheduler_is_heard(
    tmp_path: Path, second: str
) -> None:
    home = ClusterHome(tmp_path / "cluster")
    home.make()
    options = Options(nodes=1, emulated_gpus=1, port=0, settings=TIMES)
    credentials = Credentials(home.credentials)
    provision(home.credentials, nodes=options.node_ids)
    stores = Stores(tmp_path / "servers", credentials)
    up = await stores.start()
    ticks = tmp_path / "ticks"
    try:
        async with AsyncExitStack() as stack:
            given = Options(nodes=1, emulated_gpus=1, port=0, settings=TIMES, nats_url=up.nats_url, pg_dsn=up.pg_dsn)
            local = await stack.enter_async_context(running(home.root, given))
            client = await stack.enter_async_context(Client(local.url, local.token))
            planned = services(given, home, credentials, Addresses(nats_url=up.nats_url, pg_dsn=up.pg_dsn, port=0))
            scheduler = next(service for service in planned if service.name == "scheduler")
            another = ServiceProcess(replace(scheduler, name="second", log=home.log("second")), tell=lambda _: None)
            if second != "none":
                another.start()
                await another.ready()
                stack.push_async_callback(another.stop, patience=10.0, hurry=asyncio.Event())
            loop = f"while true; do echo tick >> {ticks}; sleep 0.2; done"
            job = (await client.submit(spec("long", gpus=1, command=["sh", "-c", loop], role={"cpus": 1}))).id
            await until(client, job, lambda view: view.state is JobState.RUNNING, seconds_max=WAIT_SECONDS_MAX)
            await _grows(ticks, 50)  # by then the leader has named the second one to the store

            await stores.freeze("postgres")
            if second == "killed":
                assert another.pid
                await _grows(ticks, 10)
                os.kill(another.pid, signal.SIGKILL)
                await _says(home.log(f"executor-{options.node_ids[0]}"), "stopping")
            else:
                await _grows(ticks, int(5 * 2.5 * FENCE_SECONDS))
            stores.thaw("postgres")

            epoch = 1 if second == "killed" else 0
            view = await until(
                client,
                job,
                lambda view: view.state is JobState.RUNNING and view.epoch == epoch,
                seconds_max=WAIT_SECONDS_MAX,
            )
            assert view.epoch == epoch
            await _grows(ticks, 10)
            told = home.log("scheduler").read_text() + (home.log("second").read_text() if second != "none" else "")
            assert "the nodes keep their runs" in told
    finally:
        await stores.stop()
