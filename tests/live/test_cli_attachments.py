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


async def test_a_process_starts_in_the_folder_that_it_is_submitted_from(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hello.sh").write_text("echo hello from $PWD\n")
    (tmp_path / "job.yaml").write_text("name: here\ncommand: [sh, hello.sh]\n")
    monkeypatch.chdir(tmp_path)
    person = Person(cluster, cluster.local.token)
    for typed in (("submit", "job.yaml"), ("submit", "job.yaml", "-e", "A=1"), ("run", "-f", "--", "sh", "hello.sh")):
        ran = await person.types(*typed, "-f") if typed[0] == "submit" else await person.types(*typed)
        assert (ran.status, ran.out) == (0, f"hello from {tmp_path}\n"), ran.err
    (tmp_path / "job.yaml").write_text("name: there\ncommand: [pwd]\nworkdir: /usr\n")
    assert (await person.types("submit", "job.yaml", "-f")).out == "/usr\n"


async def test_a_run_notes_that_its_standard_input_is_not_passed(cluster: Cluster) -> None:
    person = Person(cluster, cluster.local.token)
    note = "note: standard input is not passed to the job"
    piped = await person.types("run", "-f", "--", "cat", "-", stdin=b"print(1)\n")
    assert (piped.status, piped.out) == (0, "")
    assert note in piped.err
    for typed, stdin in ((("-f", "--", "true"), b""), (("-f", "--", "true"), None), (("--", "true"), b"a list\n")):
        assert note not in (await person.types("run", *typed, stdin=stdin)).err


async def test_a_submission_notes_the_variables_that_replace_those_of_weft(cluster: Cluster) -> None:
    person = Person(cluster, cluster.local.token)
    ran = await person.types(
        "run", "--replicas", "2", "-e", "RANK=7", "-f", "--", "sh", "-c", "[ $RANK = 7 ] && echo kept $MASTER_ADDR"
    )
    assert (ran.status, ran.out) == (0, "kept 127.0.0.1\n"), ran.err
    assert "note: RANK is set by the job; Weft's own value is not used\n" in ran.err
