"""Other libraries on Weft: programs of their users, with the real libraries, on a whole cluster.

The wheel is installed beside the libraries, so that they find Weft by its entry points.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.bench.contract.frameworks import environment
from tests.support.cluster import Cluster, embedded_cluster
from tests.support.tree import ROOT
from weft.domain.job import JobState

PROGRAMS = ROOT / "tests/support/programs/integrations"
SECONDS_MAX = 240.0
pytestmark = pytest.mark.timeout(900)  # the libraries are installed by the first test that ever runs


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with embedded_cluster(tmp_path_factory.mktemp("integrations"), nodes=1, gpus=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The environment with the libraries, and a folder in which Weft is installed."""
    folder = tmp_path_factory.mktemp("installed")
    libraries = environment(PROGRAMS / "requirements.txt")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run(
        [*pip, "install", "--no-deps", "--no-build-isolation", "--target", str(folder), str(ROOT)], check=True
    )
    return libraries, folder


async def printed(
    cluster: Cluster, installed: tuple[Path, Path], tmp_path: Path, *command: str, status: int = 0
) -> str:
    """The output of a program of the environment, which ended with this status."""
    libraries, weft = installed
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WEFT_", "PYTHON", "PYTEST_"))}
    program = await asyncio.create_subprocess_exec(
        *(str(libraries / "bin/python"), *command),
        cwd=tmp_path,
        env={
            **kept,
            "PYTHONPATH": str(weft),
            "WEFT_URL": cluster.local.url,
            "WEFT_TOKEN": cluster.local.token,
            "PATH": f"{libraries}/bin:{kept['PATH']}",
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(SECONDS_MAX):
        out, error = await program.communicate()
    assert program.returncode == status, f"{out.decode()[-4000:]}{error.decode()[-4000:]}"
    return out.decode()


async def test_submitit_runs_its_functions_as_jobs(
    cluster: Cluster, installed: tuple[Path, Path], tmp_path: Path
) -> None:
    out = await printed(cluster, installed, tmp_path, str(PROGRAMS / "submitit_user.py"), str(tmp_path / "folder"))
    job, cancelled = out.split()
    view = await cluster.ended(job)
    assert (view.name, view.state) == ("by-submitit", JobState.SUCCEEDED)
    labelled = (await cluster.client.jobs(labels=["team=vision"])).jobs
    assert {one.name for one in labelled} == {"by-submitit"}
    assert cancelled == "CANCELLED"


async def test_optuna_runs_its_trials_as_jobs(cluster: Cluster, installed: tuple[Path, Path], tmp_path: Path) -> None:
    out = await printed(cluster, installed, tmp_path, str(PROGRAMS / "optuna_user.py"))
    view = await cluster.client.job(out.split()[-1])
    assert (view.name, view.state) == ("loss", JobState.SUCCEEDED)


async def test_hydra_runs_a_sweep_as_jobs(cluster: Cluster, installed: tuple[Path, Path], tmp_path: Path) -> None:
    choice = ["-m", "hydra/launcher=weft", "hydra.launcher.cpus_per_task=1", "hydra.launcher.priority=3"]
    await printed(
        cluster, installed, tmp_path, str(PROGRAMS / "hydra_user.py"), *choice, "hydra.sweep.dir=out", "+rate=1,2"
    )
    assert [(tmp_path / "out" / number / "rate").read_text() for number in ("0", "1")] == ["1", "2"]
    jobs = [await cluster.ended(job.id) for job in (await cluster.client.jobs()).jobs if job.name == "hydra-user"]
    assert [(job.state, job.priority) for job in jobs] == [(JobState.SUCCEEDED, 3)] * 2


async def test_the_workers_of_dask_are_jobs(cluster: Cluster, installed: tuple[Path, Path], tmp_path: Path) -> None:
    await printed(cluster, installed, tmp_path, str(PROGRAMS / "dask_user.py"))
    out = await printed(cluster, installed, tmp_path, str(ROOT / "examples/dask_sum.py"))
    assert out.splitlines()[-1] == "the sum of the squares below 1000 is 332833500"
    workers = [job for job in (await cluster.client.jobs()).jobs if job.name == "dasks"]
    assert (len(workers), all(job.state.final for job in workers)) == (2, True)


async def test_torchx_runs_an_app_as_a_job_with_its_roles(
    cluster: Cluster, installed: tuple[Path, Path], tmp_path: Path
) -> None:
    handle = await printed(cluster, installed, tmp_path, str(PROGRAMS / "torchx_user.py"))
    view = await cluster.client.job(handle.split()[-1].rpartition("/")[2])
    assert (view.name, view.replicas, view.gpus, view.priority) == ("my-app", 2, 2, 5)


async def test_pytest_runs_marked_tests_as_jobs_of_a_cluster_of_its_own(
    cluster: Cluster, installed: tuple[Path, Path], tmp_path: Path
) -> None:
    shutil.copy(PROGRAMS / "pytest_user.py", tmp_path / "test_user.py")
    out = await printed(cluster, installed, tmp_path, "-m", "pytest", "-p", "no:cacheprovider", status=1)
    assert "1 failed, 2 passed" in out
    assert "- none" in out, "the log of the job is the reason of the failure"


async def test_pyright_finds_the_types_of_typical_use(
    cluster: Cluster, installed: tuple[Path, Path], tmp_path: Path
) -> None:
    _, weft = installed
    program = ROOT / "tests/support/programs/typed_use.py"
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(weft)], "enableTypeIgnoreComments": True}
    for name, text in (("right", program.read_text()), ("wrong", f"{program.read_text()}\nweft.rank() + 'a'\n")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "use.py").write_text(text)
        (folder / "pyrightconfig.json").write_text(json.dumps(settings))
        await printed(cluster, installed, folder, "-m", "basedpyright", "-p", str(folder), status=int(name == "wrong"))
