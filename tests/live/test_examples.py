"""The programs of `examples/` as jobs of a whole cluster, each to its end. Three more are in test_python.py."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

import weft
from tests.bench.contract.frameworks import FrameworksMissingError, frameworks
from tests.support.cluster import Cluster, embedded_cluster
from tests.support.tree import ROOT
from weft.domain.job import JobState

EXAMPLES = ROOT / "examples"
SECONDS_MAX = 300.0
pytestmark = pytest.mark.timeout(900)  # frameworks take seconds to start, and are installed by the first test ever


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with embedded_cluster(tmp_path_factory.mktemp("examples"), nodes=1, gpus=2) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def known(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_URL", cluster.local.url)
    monkeypatch.setenv("WEFT_TOKEN", cluster.local.token)


@pytest.fixture(scope="module")
def programs() -> Path:
    """The folder with the `python` and the `torchrun` of the frameworks."""
    try:
        return frameworks() / "bin"
    except FrameworksMissingError as error:
        pytest.skip(str(error))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "program", "replicas", "metric"),
    [("ddp", "torchrun", 2, "loss"), ("lightning_train", "python", 1, "train_loss"), ("finetune", "python", 1, "loss")],
)
async def test_a_training_with_a_framework_goes_on_where_it_was_stopped(
    cluster: Cluster, programs: Path, tmp_path: Path, name: str, program: str, replicas: int, metric: str
) -> None:
    async def submitted(steps: int) -> weft.aio.Job[None]:
        return await weft.aio.run(
            [str(programs / program), str(EXAMPLES / f"{name}.py"), str(steps)],
            name=name.replace("_", "-"),
            replicas=replicas,
            gpus=1,
            memory="2GiB",
            grace="30s",
            checkpoints={"on_stop": True},
            env={"PYTHONPATH": str(ROOT / "libs"), "OMP_NUM_THREADS": "1"},
            workdir=str(tmp_path),
        )

    async with asyncio.timeout(SECONDS_MAX):
        short = await submitted(20)
        assert await short.wait() is JobState.SUCCEEDED, [line async for line in short.logs()][-20:]
        assert short.view is not None
        assert (short.view.progress["step"], short.view.progress["steps"], metric in short.view.progress) == (
            20,
            20,
            True,
        )
        job = await submitted(1_000_000)
        try:
            await cluster.until(job.id, lambda view: view.progress.get("step", 0) >= 10, seconds_max=SECONDS_MAX)
            await cluster.client.requeue(job.id)
            await cluster.until(
                job.id, lambda view: view.epoch == 1 and view.state is JobState.RUNNING, seconds_max=SECONDS_MAX
            )
            async with aclosing(job.logs(follow=True)) as lines:
                async for line in lines:
                    if "resumes" in line:
                        break
            again = await cluster.until(job.id, lambda view: view.progress.get("step", 0) > 10, seconds_max=SECONDS_MAX)
            found = await job.metrics(points=10_000)
        finally:
            await job.cancel()
        await job.wait()
    at = [step for step in found.series["step"] if step is not None]
    assert at == sorted(at), "no step was lost, and none was done again"
    assert again.attempts == 0
