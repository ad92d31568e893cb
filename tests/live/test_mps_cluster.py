"""A whole cluster with one node that holds shares by MPS. `weft nodes` lists what the node does not hold, a running job
gets another share, a job that took the whole GPU is ended. GPU, driver and daemon are emulated; all else is real."""

import json
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from libs.domain.job import CauseCode, JobState
from libs.sharing.native import Built
from tests.support.cluster import Cluster, embedded_cluster
from tests.support.mps import LAUNCHES, daemons, no_daemon_is_left
from tests.support.odd_folders import swept
from tests.support.person import Person
from tests.support.runs import until

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def cluster(built: Built) -> AsyncIterator[Cluster]:
    assert built.hook.is_file()
    folder = Path(tempfile.mkdtemp(prefix="wmc-"))
    home = folder / "nodes" / "node-1"
    with swept(folder), no_daemon_is_left(home):
        async with embedded_cluster(folder, nodes=1, gpus=1, settings={"EXECUTOR_SHARES": "mps"}) as cluster:
            yield cluster
        await until(lambda: not daemons(home))  # they end with the cluster, as no job is left


def job_file(folder: Path, name: str, *before: str, request: float) -> str:
    """A job that launches without an end."""
    command = [*before, sys.executable, "-c", LAUNCHES]
    role = {"share": {"request": request, "limit": 0.5, "memory": "64MiB"}, "cpus": 0.2}
    job: dict[str, Any] = {"name": name, "command": command, "env": {"PYTHONPATH": str(ROOT)}, "roles": {"w": role}}
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(job))
    return str(path)


async def test_a_running_job_keeps_its_limit_and_one_that_took_the_whole_gpu_fails(
    cluster: Cluster, tmp_path: Path
) -> None:
    person = Person(cluster, cluster.local.token)
    job = (await person.types("submit", job_file(tmp_path, "held", request=0.3))).out.strip()
    await cluster.state(job, JobState.RUNNING)
    nodes = (await person.types("nodes")).out
    assert "share requests (MPS has ceilings alone; tried on an emulated daemon)" in nodes
    assert "changed share limits (a running job keeps its own)" in nodes

    asked = await person.types("share", job, "--request", "0.4", "--limit", "0.8")
    assert asked.status == 0
    assert "as far as there is room and its node can change it" in asked.out
    view = await cluster.until(job, lambda view: any(run.share and run.share.request == 400 for run in view.runs))
    (share,) = [run.share for run in view.runs]
    assert share is not None
    assert (share.request, share.limit) == (400, 500)
    told = (await cluster.client.story(job))[-1].data.cause
    assert told is not None
    keeps = "what runs on node-1 keeps the limit with which it began, 0.5"
    assert told.sentence == f"share 0.3 (up to 0.5) → 0.4 (up to 0.5) of a GPU, asked by admin; {keeps}"

    # The request of the first is another at once: there is room for the rest of the GPU, and its node starts it.
    await person.types("share", job, "--request", "0.2")
    out = job_file(tmp_path, "out", "env", "-u", "CUDA_MPS_PIPE_DIRECTORY", request=0.5)
    other = (await person.types("submit", job_file(tmp_path, "other", request=0.3))).out.strip()
    escaped = (await person.types("submit", out)).out.strip()
    await cluster.state(other, JobState.RUNNING)
    ended = await cluster.ended(escaped)
    assert ended.state is JobState.FAILED
    why = (await cluster.client.story(escaped))[-1].data.cause
    assert why is not None
    assert why.code is CauseCode.UNCONTROLLED
    assert (
        why.sentence == "used its GPU outside its share, and this pool or its node is strict about that: it was killed"
    )
    for each in (job, other):
        assert (await cluster.client.job(each)).state is JobState.RUNNING
        await cluster.client.cancel(each)
    for each in (job, other):
        await cluster.ended(each)
    await until(lambda: daemons(cluster.local.home.node("node-1")) == {})
