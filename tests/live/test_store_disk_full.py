"""The disk of NATS and Postgres is full: nothing is acknowledged that is lost, what runs runs on, and all goes on once
there is room. The disk is a tmpfs."""

import asyncio
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.chaos.stores import Stores
from tests.support.builders import spec
from tests.support.cluster import until
from tests.support.disk import fill, small_disk
from weft.client import Client
from weft.client.errors import ClientError, Refused
from weft.credentials import Credentials, provision
from weft.domain.job import JobSpec, JobState
from weftd.cli.local import ClusterHome, Options, running

STORES_BYTES = 192 << 20
VARIABLE_BYTES = 32_000
ROOM_BYTES = 4 << 20
SUBMISSIONS_MAX = 2_000
FULL_SECONDS = 15.0
WAIT_SECONDS_MAX = 90.0


@pytest.fixture
def disk() -> Iterator[Path]:
    """Where the account that runs Postgres can reach it."""
    folder = Path(tempfile.mkdtemp(prefix="weft-full-"))
    folder.chmod(0o755)
    try:
        with small_disk(folder / "disk", size=STORES_BYTES, mode="755") as mounted:
            yield mounted
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.timeout(400)
async def test_with_a_full_disk_no_submission_is_acknowledged_and_lost_and_what_runs_runs_on(
    disk: Path, tmp_path: Path
) -> None:
    home = ClusterHome(tmp_path / "cluster")
    home.make()
    options = Options(nodes=1, emulated_gpus=1, port=0)
    credentials = Credentials(home.credentials)
    provision(home.credentials, nodes=options.node_ids)
    (disk / "stores").mkdir(mode=0o755)
    stores = Stores(disk / "stores", credentials)
    up = await stores.start()
    folder = await stores.folder("postgres")
    assert folder.is_relative_to(disk)
    ticks = tmp_path / "ticks"
    try:
        async with AsyncExitStack() as stack:
            given = Options(nodes=1, emulated_gpus=1, port=0, nats_url=up.nats_url, pg_dsn=up.pg_dsn)
            local = await stack.enter_async_context(running(home.root, given))
            client = await stack.enter_async_context(Client(local.url, local.token, retry_seconds=1.0))
            loop = f"while true; do echo tick >> {ticks}; sleep 0.2; done"
            job = (await client.submit(spec("long", gpus=1, command=["sh", "-c", loop], role={"cpus": 1}))).id
            await until(client, job, lambda view: view.state is JobState.RUNNING, seconds_max=WAIT_SECONDS_MAX)

            acknowledged, refused = await _submit_until_refused(client, disk)
            assert isinstance(refused, Refused)
            assert acknowledged, "there was room for some"
            assert refused.status == 503, refused
            before = len(ticks.read_text().splitlines())
            await asyncio.sleep(FULL_SECONDS)
            assert len(ticks.read_text().splitlines()) > before

            (disk / "filling").unlink()
            acknowledged.append(await _submitted(client))
            for each in acknowledged:
                assert (await client.job(each)).id == each
            view = await until(client, job, lambda view: view.state is JobState.RUNNING, seconds_max=WAIT_SECONDS_MAX)
            assert view.epoch == 0
            before = len(ticks.read_text().splitlines())
            await asyncio.sleep(2)
            assert len(ticks.read_text().splitlines()) > before
    finally:
        await stores.stop()


def _large(number: int) -> JobSpec:
    """What Postgres cannot compress to less than half."""
    digits = random.Random(number)
    variables = {f"LARGE_{each}": digits.randbytes(VARIABLE_BYTES // 2).hex() for each in range(3)}
    return spec(f"large-{number}", gpus=1, command=["true"], role={"env": variables})


async def _submit_until_refused(client: Client, disk: Path) -> tuple[list[str], ClientError]:
    """The jobs that were acknowledged while the disk ran full, and what the next one was answered."""
    await asyncio.to_thread(fill, disk)
    os.truncate(disk / "filling", (disk / "filling").stat().st_size - ROOM_BYTES)
    acknowledged: list[str] = []
    for number in range(SUBMISSIONS_MAX):
        try:
            acknowledged.append((await client.submit(_large(number))).id)
        except ClientError as error:
            return acknowledged, error
    raise AssertionError(f"{SUBMISSIONS_MAX} submissions of {3 * VARIABLE_BYTES} bytes fit on a full disk")


async def _submitted(client: Client) -> str:
    """The next job that is acknowledged."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while True:
            try:
                return (await client.submit(spec("after", gpus=1, command=["true"]))).id
            except ClientError:
                await asyncio.sleep(0.5)
