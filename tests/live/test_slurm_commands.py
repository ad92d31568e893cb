"""Programs that know Slurm and nothing of Weft, unchanged, on a whole cluster by the commands of `weft slurm`."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.bench.contract.frameworks import environment, frameworks
from tests.support.cluster import Cluster, embedded_cluster
from tests.support.runs import until
from tests.support.tree import ROOT
from weft.domain.job import JobState
from weftd.cli.slurm.numbers import number_of, reference_of

PROGRAMS = ROOT / "tests/support/programs/slurm"
SECONDS_MAX = 300.0
pytestmark = pytest.mark.timeout(900)  # the programs are installed by the first test that ever runs


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with embedded_cluster(tmp_path_factory.mktemp("slurm"), nodes=1, gpus=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def libraries() -> Path:
    """The environment with the programs."""
    return environment(PROGRAMS / "requirements.txt")


class Shell:
    """A person's shell that has the commands of Slurm."""

    def __init__(self, cluster: Cluster, folder: Path, libraries: Path | None = None) -> None:
        self._folder = folder
        commands = folder / "commands"
        weft = [sys.executable, "-m", "weftd.cli", "slurm", "install", str(commands)]
        subprocess.run(weft, check=True, stdout=subprocess.DEVNULL)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WEFT_", "PYTHON", "SLURM"))}
        path = [str(commands), *([f"{libraries}/bin"] if libraries else []), kept["PATH"]]
        self._env = {
            **kept,
            "PATH": ":".join(path),
            "PYTHONPATH": f"{ROOT / 'libs'}:{ROOT / 'services'}",
            "WEFT_URL": cluster.local.url,
            "WEFT_TOKEN": cluster.local.token,
        }

    async def started(self, *command: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*command, cwd=self._folder, env=self._env, stdout=pipe, stderr=pipe)

    async def printed(self, *command: str, status: int = 0) -> str:
        """The output of a program, which ended with this status."""
        program = await self.started(*command)
        async with asyncio.timeout(SECONDS_MAX):
            out, error = await program.communicate()
        assert program.returncode == status, f"{out.decode()[-4000:]}{error.decode()[-4000:]}"
        return out.decode()


async def test_a_script_runs_as_under_slurm(cluster: Cluster, tmp_path: Path) -> None:
    shell = Shell(cluster, tmp_path)
    script = tmp_path / "run.sh"
    script.write_text(
        '#!/bin/bash -e\n#SBATCH -J mine -o out/%x-%j.txt --mem=100M\nsrun sh -c "echo $1 $SLURM_JOB_ID"\n'
    )
    number = (await shell.printed("sbatch", "--parsable", "run.sh", "hello")).strip()
    array = (
        await shell.printed(
            "sbatch",
            "--parsable",
            "--array=2-3%1",
            "--mem=100M",
            "-d",
            f"afterok:{number}",
            "--wrap",
            "exit $SLURM_ARRAY_TASK_ID",
        )
    ).strip()
    await cluster.ended(reference_of(number, {}).job)
    assert (tmp_path / f"out/mine-{number}.txt").read_text() == f"hello {number}\n"
    for element in (2, 3):
        await cluster.ended(reference_of(f"{array}_{element}", {}).elements[0])
    rows = await shell.printed("sacct", "-X", "-P", "-n", "-o", "JobID,State,ExitCode", "-j", f"{number},{array}")
    expected = [f"{number}|COMPLETED|0:0", f"{array}_2|FAILED|2:0", f"{array}_3|FAILED|3:0"]
    assert rows.splitlines() == expected
    assert await shell.printed("srun", "--mem=100M", "sh", "-c", "echo followed; exit 7", status=7) == "followed\n"
    waits = (await shell.printed("sbatch", "--parsable", "--mem=100M", "--wrap", "sleep 600")).strip()
    assert await shell.printed("squeue", "-h", "-o", "%i", "-j", waits) == f"{waits}\n"
    await shell.printed("scancel", waits)
    assert (await cluster.ended(reference_of(waits, {}).job)).state is JobState.CANCELLED
    assert await shell.printed("sinfo", "-h", "-o", "%P %D") == "default* 1\n"


async def test_submitit_runs_as_under_slurm_and_goes_on_after_a_requeue(
    cluster: Cluster, libraries: Path, tmp_path: Path
) -> None:
    shell = Shell(cluster, tmp_path, libraries)
    program = await shell.started(str(libraries / "bin/python"), str(PROGRAMS / "submitit_user.py"), str(tmp_path))
    assert program.stdout is not None
    async with asyncio.timeout(SECONDS_MAX):
        number = (await program.stdout.readline()).decode().strip()
        if number:  # it has started, and is asked to give way, as by a preemption
            await cluster.client.requeue(reference_of(number, {}).job)
        _, error = await program.communicate()
    assert program.returncode == 0, error.decode()[-4000:]
    view = await cluster.ended(reference_of(number, {}).job)
    assert (view.epoch, view.state, number_of(view.id)) == (1, JobState.SUCCEEDED, number)


@pytest.mark.nightly
async def test_snakemake_runs_its_rules_by_its_slurm_plugin(cluster: Cluster, libraries: Path, tmp_path: Path) -> None:
    shell = Shell(cluster, tmp_path, libraries)
    shutil.copy(PROGRAMS / "Snakefile", tmp_path / "Snakefile")
    options = ["--jobs", "4", "--latency-wait", "2", "--slurm-init-seconds-before-status-checks", "2"]
    await shell.printed("snakemake", "--executor", "slurm", *options)
    assert (tmp_path / "sum.txt").read_text() == "1\n2\n"


@pytest.mark.nightly
async def test_lightning_saves_at_the_signal_and_goes_on_after_a_requeue(cluster: Cluster, tmp_path: Path) -> None:
    python, program = (await asyncio.to_thread(frameworks)) / "bin/python", PROGRAMS / "lightning_user.py"
    shell = Shell(cluster, tmp_path)
    script = f"#!/bin/bash\n#SBATCH --mem=3G --signal=USR1@10 -o log.txt\nsrun {python} {program} {tmp_path}\n"
    (tmp_path / "run.sh").write_text(script)
    number = (await shell.printed("sbatch", "--parsable", "run.sh")).strip()
    job = reference_of(number, {}).job
    await until(lambda: (tmp_path / "trains").exists(), seconds_max=SECONDS_MAX)
    await cluster.client.requeue(job)
    view = await cluster.ended(job, seconds_max=SECONDS_MAX)
    log = (tmp_path / "log.txt").read_text()[-4000:]
    assert (view.epoch, view.state) == (1, JobState.SUCCEEDED), log
    assert int((tmp_path / "went-on-at").read_text()) > 0, log
