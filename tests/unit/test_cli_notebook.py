"""`weft notebook`: the job that it submits, and what it prints while JupyterLab starts."""

import argparse
import asyncio
from pathlib import Path

import pytest

from tests.support.told_gateway import ToldGateway
from tests.support.told_services import JOB, endpoint, endpoints, weft
from tests.support.views import job_view
from weft.domain.job import Cause, CauseCode, JobState
from weft.domain.spec import Kind
from weft.messages.http import Submitted
from weftd.cli.__main__ import parse
from weftd.cli.cli_error import CliError
from weftd.cli.services import notebook as notebooks

Said = pytest.CaptureFixture[str]


def notebook_args(*typed: str) -> argparse.Namespace:
    return parse("notebook", ["notebook", *typed])


def test_a_notebook_is_a_job_with_one_replica_that_serves_below_its_own_path() -> None:
    args = notebook_args("--share", "0.25", "--gpu-memory", "8GiB", "--env", "A=b", "--cpus", "2")
    spec = notebooks.notebook_spec(args, cwd="/home/ada", jupyter="/opt/jupyter")
    assert (spec.kind, spec.workdir, spec.env) == (Kind.NOTEBOOK, "/home/ada", {"A": "b"})
    assert spec.service is not None
    assert (spec.service.path, spec.service.ready, spec.service.public) == ("/s/{job}/", None, False)
    share = spec.roles["worker"].share
    assert share is not None
    assert (share.request, share.memory) == (0.25, "8GiB")
    assert spec.command is not None
    assert spec.command[-2:] == ("/opt/jupyter", "")
    boxed = notebooks.notebook_spec(notebook_args("--image", "jupyter/base"), cwd="/home/ada", jupyter="/opt/jupyter")
    assert (boxed.workdir, boxed.image) == (None, "jupyter/base")
    assert boxed.command is not None
    assert boxed.command[-2:] == ("", "0.0.0.0")  # nobody but its own network reaches a container's own loopback


def test_the_memory_of_a_notebook_is_of_its_share_or_of_each_of_its_whole_gpus() -> None:
    shared = notebooks.notebook_spec(notebook_args("--share", "0.5", "--gpu-memory", "8GiB"), cwd="/", jupyter="")
    assert shared.gpu_memory is None
    whole = notebooks.notebook_spec(notebook_args("--gpus", "2", "--gpu-memory", "40GiB"), cwd="/", jupyter="")
    assert (whole.gpu_memory, whole.roles["worker"].share) == ("40GiB", None)


@pytest.mark.parametrize(
    ("typed", "field", "reason"),
    [
        (("--share", "0.5"), "--share", "needs --gpu-memory"),
        (("--gpu-memory", "8GiB"), "--gpu-memory", "needs --gpus or --share"),
    ],
)
async def test_half_of_a_notebooks_gpu_is_refused(
    gateway: ToldGateway, capsys: Said, typed: tuple[str, ...], field: str, reason: str
) -> None:
    assert await weft(gateway, "notebook", *typed) == 2
    assert f"{field}: {reason}" in capsys.readouterr().err


def test_files_that_go_along_are_where_a_notebook_works() -> None:
    asked = notebooks.notebook_spec(notebook_args("--sync", "."), cwd="/home/ada", jupyter="", context="ab" * 32)
    assert (asked.context, asked.workdir) == ("ab" * 32, None)
    assert notebooks.notebook_spec(notebook_args(), cwd="/home/ada", jupyter="").workdir == "/home/ada"


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        (("--gpus", "-1"), "--gpus"),
        (("--share", "2", "--gpu-memory", "1GiB"), "--share"),
        (("--share", "0.5", "--gpu-memory", "much"), "--gpu-memory"),
        (("--name", "Ünicode"), "--name"),
        (("--volume", "/a"), "--volume"),
        (("--gpus", "1", "--share", "0.5", "--gpu-memory", "1GiB"), ""),
    ],
)
def test_a_wrong_option_of_a_notebook_is_named(typed: tuple[str, ...], field: str) -> None:
    with pytest.raises(CliError) as cli_error:
        notebooks.notebook_spec(notebook_args(*typed), cwd="/", jupyter="")
    assert cli_error.value.field == field


async def test_notebook_prints_its_url_once_it_answers(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["POST /v1/jobs"] = Submitted(id=JOB, name="notebook", created=True, notes=("it may be stopped",))
    view = endpoints(gateway, endpoint(0, ready=True))
    assert await weft(gateway, "notebook", "--gpus", "1") == 0
    said = capsys.readouterr()
    assert said.out == f"{view.url}?weft_code=code_1\n"
    assert said.err == "note: it may be stopped\n"
    assert await weft(gateway, "notebook", "--share", "0.5") == 2


async def test_notebook_says_that_there_is_no_jupyter(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["POST /v1/jobs"] = Submitted(id=JOB, name="notebook", created=True)
    endpoints(gateway)
    gateway.answers[f"GET /v1/jobs/{JOB}"] = job_view(JOB, JobState.FAILED, exit_code=127)
    assert await weft(gateway, "notebook") == 1
    assert f"weft: there is no jupyter in the environment of the job {JOB}" in capsys.readouterr().err


async def test_notebook_gives_up_waiting_and_says_for_what(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["POST /v1/jobs"] = Submitted(id=JOB, name="notebook", created=True)
    endpoints(gateway)
    no_room = Cause(code=CauseCode.NO_ROOM, sentence="wants 1 GPU; none is free")
    gateway.answers[f"GET /v1/jobs/{JOB}"] = job_view(JOB, JobState.QUEUED, name="notebook", waiting_for=no_room)
    assert await weft(gateway, "notebook", "--wait", "0.3") == 1
    assert "did not answer within 0s: it waits: wants 1 GPU; none is free" in capsys.readouterr().err


async def started(script: str, tmp_path: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", script, "notebook", *arguments),
        env={"PATH": "/nowhere", "WEFT_PORT": "4000", "WEFT_SERVICE_PATH": "/s/j-1/", **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_the_script_of_a_notebook_finds_jupyter_and_listens_where_its_node_is_reached(tmp_path: Path) -> None:
    fake = tmp_path / "jupyter"
    fake.write_text('#!/bin/sh\necho "$@"\n')
    fake.chmod(0o755)
    status, out, _ = await started(notebooks.SCRIPT, tmp_path, str(fake), "", WEFT_ADDRESS="127.0.0.1")
    assert status == 0
    assert {"lab", "--ip=127.0.0.1", "--port=4000", "--ServerApp.base_url=/s/j-1/"} <= set(out.split())
    _, out, _ = await started(notebooks.SCRIPT, tmp_path, "/gone", "", PATH=str(tmp_path), WEFT_ADDRESS="10.0.0.7")
    assert "--ip=0.0.0.0" in out.split()
    _, out, _ = await started(notebooks.SCRIPT, tmp_path, "", "0.0.0.0", PATH=str(tmp_path), WEFT_ADDRESS="127.0.0.1")
    assert "--ip=0.0.0.0" in out.split()
    status, _, err = await started(notebooks.SCRIPT, tmp_path, "", "")
    assert (status, err) == (127, "weft notebook: there is no jupyter here: PATH is /nowhere\n")
