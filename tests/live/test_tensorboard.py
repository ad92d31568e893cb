"""`weft tensorboard` with the real TensorBoard, and the pages of trackers in `weft describe`, on a whole cluster."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.bench.contract.frameworks import FrameworksMissingError, environment
from tests.support.cluster import Cluster, embedded_cluster
from tests.support.person import Person
from tests.support.tree import ROOT

SECONDS_MAX = 120.0
PAGE = "https://wandb.ai/ada/mnist/runs/ab12cd"
PROGRAM = """
import os, sys, time
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

writer = EventFileWriter(os.path.join(os.environ["WEFT_RESULTS"], "runs"))
def scalar(step):
    value = summary_pb2.Summary.Value(tag="loss", simple_value=1 / step)
    writer.add_event(event_pb2.Event(wall_time=time.time(), step=step, summary=summary_pb2.Summary(value=[value])))
    writer.flush()
scalar(1)
print("first", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
scalar(2)
"""
pytestmark = pytest.mark.timeout(600)  # TensorBoard is installed by the first test that ever runs


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with embedded_cluster(tmp_path_factory.mktemp("tensorboard"), nodes=1, gpus=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def programs() -> Path:
    try:
        return environment(ROOT / "tests/support/programs/tensorboard.txt") / "bin"
    except FrameworksMissingError as error:
        pytest.skip(str(error))


async def steps_shown(session: aiohttp.ClientSession, port: int) -> list[int]:
    """The steps of the curve that TensorBoard has now."""
    at = f"http://127.0.0.1:{port}/data/plugin/scalars/scalars?tag=loss&run=board/results/runs"
    try:
        async with session.get(at) as answer:
            return [step for _, step, _ in await answer.json()] if answer.status == 200 else []
    except aiohttp.ClientError:
        return []


async def test_tensorboard_shows_what_a_job_writes_while_it_runs(
    cluster: Cluster, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    person = Person(cluster, cluster.local.token)
    gate = tmp_path / "gate"
    job = await person.runs("--name", "board", "--", str(programs / "python"), "-c", PROGRAM, str(gate))
    board = await person.begins("tensorboard", "board", "--port", str(unused_tcp_port))
    try:
        async with asyncio.timeout(SECONDS_MAX), aiohttp.ClientSession() as session:
            while await steps_shown(session, unused_tcp_port) != [1]:  # noqa: ASYNC110 -- its page is no event
                await asyncio.sleep(0.2)
            gate.touch()
            while await steps_shown(session, unused_tcp_port) != [1, 2]:  # noqa: ASYNC110 -- its page is no event
                await asyncio.sleep(0.2)
        await cluster.ended(job)
    finally:
        board.send_signal(signal.SIGINT)
        _, told = await board.communicate()
    assert "Traceback" not in told.decode(), told.decode()


async def test_a_job_without_such_files_and_a_machine_without_tensorboard_say_so(
    cluster: Cluster, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    person = Person(cluster, cluster.local.token)
    await cluster.ended(await person.runs("--name", "bare", "--", "true"))
    missing = await person.types("tensorboard", "bare")
    assert (missing.status, "pip install tensorboard" in missing.err) == (1, True), missing.err
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    none = await person.types("tensorboard", "bare")
    assert (none.status, "bare: no TensorBoard files below $WEFT_RESULTS" in none.err) == (1, True), none.err


async def test_the_page_of_a_tracker_is_described(cluster: Cluster) -> None:
    person = Person(cluster, cluster.local.token)
    job = await person.runs("--name", "tracked", "--", "echo", f"wandb: View run sun-1 at: {PAGE}")
    await cluster.ended(job)
    described = await person.types("describe", job)
    assert [line.split() for line in described.out.splitlines() if PAGE in line][-1] == ["W&B", PAGE]
    assert json.loads((await person.types("describe", job, "--json")).out)["tracking"] == [
        {"tracker": "W&B", "url": PAGE}
    ]
