"""What goes along with a job from the shell that submits it, on a whole cluster."""

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import Struct

from tests.support.cluster import Cluster, embedded_cluster
from tests.support.person import Person


class Shell(Person, Struct, frozen=True):
    """A person whose shell has variables of its own, and is in a folder."""

    own: dict[str, str] = {}

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, **self.own}


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with embedded_cluster(tmp_path_factory.mktemp("along"), nodes=2, gpus=2) as cluster:
        yield cluster


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A virtual environment as `python -m venv` makes it, without its packages."""
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(os.path.realpath(sys.executable))
    (programs / "tool").write_text("#!/bin/sh\necho tool of $VIRTUAL_ENV with $TOKEN\n")
    (programs / "tool").chmod(0o755)
    return tmp_path / "venv"


async def test_a_job_runs_in_the_virtual_environment_and_with_the_variables_of_the_shell(
    cluster: Cluster, venv: Path, tmp_path: Path
) -> None:
    shell = Shell(cluster, cluster.local.token, own={"VIRTUAL_ENV": str(venv), "TOKEN": "t0"})
    ran = await shell.types("run", "--venv", "-e", "TOKEN", "-f", "--", "tool")
    assert (ran.status, ran.out) == (0, f"tool of {venv} with t0\n")
    (tmp_path / "job.yaml").write_text("name: filed\ncommand: [tool]\n")
    filed = await shell.types("submit", str(tmp_path / "job.yaml"), "--venv", "-e", "TOKEN=t1", "-f")
    assert (filed.status, filed.out) == (0, f"tool of {venv} with t1\n")
    without = await Shell(cluster, cluster.local.token, own={"VIRTUAL_ENV": ""}).types("run", "--venv", "--", "tool")
    assert (without.status, without.out) == (1, "")
    assert "--venv: no virtual environment is active here" in without.err
