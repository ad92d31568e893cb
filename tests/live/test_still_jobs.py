"""Jobs that leave their GPUs idle, and jobs that hang, on a live cluster with emulated GPUs."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.builders import spec
from tests.support.cluster import LOOK_SECONDS, Cluster, embedded_cluster
from weft.domain.job import CauseCode, JobState
from weft.emulation.faults import Fault, write_fault

FILE = "$WEFT_CHECKPOINT_DIR/state"
SAVES = f"cat {FILE} || echo new; trap 'echo saved > {FILE}; exit 0' TERM; while :; do sleep 0.2; done"
SETTINGS = {"EXECUTOR_STILL_SECONDS": "1", "SCORER_BENCHMARKS": "off"}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with embedded_cluster(tmp_path, nodes=1, gpus=2, settings=SETTINGS) as made:
        yield made


def show_use(cluster: Cluster, use: float) -> None:
    """The driver of the node's GPUs reports this use of them from now on."""
    for gpu in (0, 1):
        write_fault(cluster.local.home.node("node-1") / "emulated", gpu, Fault(use=use))


@pytest.mark.timeout(180)
async def test_a_job_whose_gpus_idle_is_warned_stopped_and_goes_on_from_its_checkpoint(cluster: Cluster) -> None:
    show_use(cluster, 0.0)
    wanted = spec("idle", gpus=1, command=["sh", "-c", SAVES], idle_stop="10s", role={"cpus": 0.1, "memory": "64MiB"})
    job = (await cluster.client.submit(wanted)).id
    ended = await cluster.ended(job)
    assert (ended.state, ended.attempts) == (JobState.CANCELLED, 0)
    assert ended.ended_for is not None
    assert ended.ended_for.code is CauseCode.IDLE_STOPPED
    told = [event.data.cause.code for event in await cluster.client.story(job) if event.data.cause is not None]
    assert told.index(CauseCode.HELD_IDLE) < told.index(CauseCode.IDLE_STOPPED)
    await cluster.client.requeue(job)
    again = await cluster.state(job, JobState.RUNNING)
    assert again.epoch == 1
    assert await log_has(cluster, job, b"saved")


WAITS = """
import faulthandler, os, pathlib, signal, sys, time

def all_reduce():
    while True:
        time.sleep(0.1)

faulthandler.register(signal.SIGUSR1)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
print("epoch", os.environ["WEFT_EPOCH"], flush=True)
if os.environ["WEFT_EPOCH"] == "0":
    all_reduce()
"""


@pytest.mark.timeout(180)
async def test_a_job_that_hangs_is_shown_as_hung_leaves_its_stacks_and_starts_again(cluster: Cluster) -> None:
    show_use(cluster, 1.0)
    wanted = spec(
        "waits",
        gpus=1,
        replicas=2,
        command=[sys.executable, "-c", WAITS],
        hang={"after": "15s", "do": "requeue", "signal": "SIGUSR1"},
        retries={"max": 1, "backoff": "1s"},
        grace="2s",
        role={"cpus": 0.2, "memory": "128MiB"},
    )
    job = (await cluster.client.submit(wanted)).id
    hung = await cluster.until(job, lambda view: view.hung_since is not None)
    assert hung.state is JobState.RUNNING
    for rank in (0, 1):
        await log_has(cluster, job, b"in all_reduce", rank=rank, epoch=0)
    ended = await cluster.ended(job)
    assert (ended.state, ended.epoch, ended.attempts, ended.hung_since) == (JobState.SUCCEEDED, 1, 1, None)
    told = [event.data.cause.code for event in await cluster.client.story(job) if event.data.cause is not None]
    assert told.count(CauseCode.HUNG) == 3, "noted, stopped, requeued"


async def log_has(cluster: Cluster, job: str, text: bytes, *, rank: int = 0, epoch: int | None = None) -> bool:
    """Wait until the log of a rank has this text."""
    async with asyncio.timeout(30):
        while text not in await cluster.client.read_log(job, rank=rank, epoch=epoch):  # noqa: ASYNC110 -- a log is no event
            await asyncio.sleep(LOOK_SECONDS)
    return True
