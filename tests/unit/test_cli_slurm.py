"""The commands of Slurm: from what is typed to what the gateway is asked and what is printed."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.support.told_gateway import ToldGateway
from tests.support.views import array_view, job_view, node_view
from weft.domain.job import Cause, CauseCode, JobState
from weft.domain.spec import JobSpec
from weft.messages.asks import AskKind
from weft.messages.http import Accepted, ArrayAsked, ArraysView, JobsView, JobView, NodesView, Submitted
from weftd.cli.__main__ import main as weft_main
from weftd.cli.cli_error import CliError
from weftd.cli.migration.slurm_prelude import prelude
from weftd.cli.slurm.__main__ import NAMES, main
from weftd.cli.slurm.numbers import number_of, reference_of

Said = pytest.CaptureFixture[str]
Typed = Callable[..., Awaitable[int]]

J, J_NUMBER = "j-000000001z", "71"
ARRAY, OTHER = "a-000000001z", "j-0000000020"
WRAPPED = ("--wrap", "true")


@pytest.fixture
def slurm(gateway: ToldGateway, monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Run a command in this process, in a thread of its own, since it makes its own event loop."""
    monkeypatch.setenv("WEFT_URL", gateway.url)
    monkeypatch.setenv("WEFT_TOKEN", "t")
    monkeypatch.setenv("LOGNAME", "ada")
    gateway.answers["POST /v1/jobs"] = Submitted(id=J, name="wrap", created=True)

    async def typed(name: str, *words: str) -> int:
        return await asyncio.to_thread(main, name, words)

    return typed


def submitted(gateway: ToldGateway) -> dict[str, object]:
    """The specification that the gateway was sent last."""
    found: dict[str, object] = json.loads(gateway.bodies[-1])
    return found


def asked(gateway: ToldGateway, method: str = "POST") -> list[str]:
    return [each for each in gateway.asked if each.startswith(method)]


# numbers


@given(st.text(alphabet="0123456789abcdefghijklmnopqrstuvwxyz", min_size=10, max_size=10), st.integers(0, 999_999))
def test_the_number_of_a_job_leads_back_to_it(characters: str, index: int) -> None:
    job, element = f"j-{characters}", f"j-{characters}-{index}"
    assert reference_of(number_of(job), {}).job == job
    assert reference_of(number_of(f"a-{characters}"), {}).array == f"a-{characters}"
    assert reference_of(number_of(element), {}).elements == (element,)


@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize(
    ("job", "array", "printed"),
    [("j-zzzzzzzzzz", "", ["3656158440062975"]), ("j-000000001z-4", ARRAY, ["76", J_NUMBER, "4"])],
)
def test_a_script_finds_the_number_that_the_commands_show(shell: str, job: str, array: str, printed: list[str]) -> None:
    head = prelude(name="x", cpus=1, gpus=0, of_array=bool(array))
    script = head + "printf '%s\\n' $SLURM_JOB_ID $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID\n"
    run = {"WEFT_JOB_ID": job, "WEFT_EPOCH": "0", "WEFT_GPUS": "", "WEFT_RANK": "0", "WEFT_WORLD_SIZE": "1"}
    element = {"WEFT_ARRAY_ID": array, "WEFT_ARRAY_INDEX": "4"} if array else {}
    env = {"PATH": os.environ["PATH"], **run, **element}
    done = subprocess.run([shell, "-c", script], env=env, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == printed
    own = {"SLURM_JOB_ID": printed[0], "WEFT_JOB_ID": job}
    assert reference_of(printed[0], own).job == job


@pytest.mark.parametrize("text", ["", "j-1", "1_", "1_x", "-1", "1_[9-1]", "1" * 30])
def test_what_is_no_number_of_a_job_is_named(text: str) -> None:
    with pytest.raises(CliError, match="Invalid job id specified"):
        reference_of(text, {})


# sbatch


async def test_sbatch_prints_the_number_as_slurm_does(gateway: ToldGateway, slurm: Typed, capsys: Said) -> None:
    assert await slurm("sbatch", *WRAPPED) == 0
    assert await slurm("sbatch", "--parsable", *WRAPPED) == 0
    assert await slurm("sbatch", "-Q", *WRAPPED) == 0
    assert capsys.readouterr() == (f"Submitted batch job {J_NUMBER}\n{J_NUMBER}\n", "")


async def test_options_of_the_command_line_come_before_those_of_the_script(
    gateway: ToldGateway, slurm: Typed, tmp_path: Path
) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/bash -eu\n#SBATCH -c 2 --mem=1G -J theirs\necho $1\n")
    assert await slurm("sbatch", "-c4", "-p", "default", "-D", "/work", str(tmp_path / "run.sh"), "-c", "9") == 0
    spec = submitted(gateway)
    assert spec["roles"] == {"worker": {"replicas": {"want": 1}, "cpus": 4, "memory": "1GiB"}}
    command = spec["command"]
    assert isinstance(command, list)
    assert (command[:3], command[4:]) == (["bash", "-eu", "-c"], [str(tmp_path / "run.sh"), "-c", "9"])
    assert (spec["name"], spec["workdir"], spec["pool"]) == ("theirs", "/work", "default")
    assert spec["labels"] == {"slurm-user": "ada"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--fast",), "unrecognized option '--fast'"),
        (("-Z",), "unrecognized option '-Z'"),
        (("-n",), "option '-n' requires an argument"),
        (("--begin=now+1hour", *WRAPPED), "--begin: nothing delays a job; submit it when it may start"),
        (("--exclusive", *WRAPPED), "--exclusive: a node is not taken whole; ask for all of its GPUs"),
        (("--mem=lots", *WRAPPED), "command line, --mem: expected a size such as 16G, not 'lots'"),
        (("--signal=KILL@9", *WRAPPED), "command line, --signal: expected a signal and seconds such as USR1@60"),
        (("-o", "%q", *WRAPPED), "command line, --output: expected a file name with"),
        (("--array=5-1", *WRAPPED), "command line, --array: 5-1 goes down"),
        (("--dependency=afterok:1?afterok:2", *WRAPPED), "--dependency: expected after:JOB"),
        (("--dependency=afterok:1", *WRAPPED), "--dependency: there is no job 1"),
        ((*WRAPPED, "x.sh"), "script arguments not permitted with --wrap option"),
        (("/none/x.sh",), "Unable to open file /none/x.sh: No such file or directory"),
    ],
)
async def test_what_cannot_be_meant_here_is_one_error_and_nothing_is_submitted(
    gateway: ToldGateway, slurm: Typed, capsys: Said, words: tuple[str, ...], told: str
) -> None:
    assert await slurm("sbatch", *words) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), asked(gateway)) == ("", 1, [])
    assert err.startswith(f"sbatch: error: {told}")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("true\n", "This does not look like a batch script"),
        ("#!/usr/bin/env python3\nprint()\n", "line 1: python3: expected a script of bash, sh or zsh"),
        ("#!/bin/sh\n#SBATCH --bogus=1\ntrue\n", "unrecognized option '--bogus'"),
    ],
)
async def test_a_script_that_would_not_run_as_under_slurm_is_refused(
    gateway: ToldGateway, slurm: Typed, capsys: Said, tmp_path: Path, text: str, told: str
) -> None:
    (tmp_path / "run").write_text(text)
    assert await slurm("sbatch", str(tmp_path / "run")) == 1
    assert capsys.readouterr().err.startswith(f"sbatch: error: {told}")
    assert asked(gateway) == []


async def test_the_shell_s_variables_go_along_but_for_secrets_that_are_not_named(
    gateway: ToldGateway, slurm: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"CONDA_PREFIX": "/c", "HF_TOKEN": "x", "SLURM_JOB_ID": "1", "MASTER_ADDR": "h"}.items():
        monkeypatch.setenv(name, value)
    await slurm("sbatch", *WRAPPED)
    env = submitted(gateway)["env"]
    assert isinstance(env, dict)
    assert (env["CONDA_PREFIX"], "PATH" in env) == ("/c", True)
    assert not {"HF_TOKEN", "SLURM_JOB_ID", "MASTER_ADDR", "WEFT_TOKEN", "WEFT_URL"} & env.keys()
    await slurm("sbatch", "--export=NONE,HF_TOKEN,A=1", *WRAPPED)
    assert submitted(gateway)["env"] == {"HF_TOKEN": "x", "A": "1"}
    await slurm("sbatch", "--container-image=torch", *WRAPPED)
    assert "env" not in submitted(gateway)


async def test_a_dependency_names_a_job_an_array_or_an_element(gateway: ToldGateway, slurm: Typed) -> None:
    gateway.answers[f"GET /v1/jobs/{J}"] = job_view(J)
    assert await slurm("sbatch", "-d", f"afterok:{J_NUMBER},afterany:72_3,singleton", *WRAPPED) == 0
    spec = submitted(gateway)
    after = [{"job": J, "when": "ok"}, {"job": "a-0000000020_3", "when": "any"}]
    assert (spec["after"], spec["singleton"]) == (after, True)


def test_output_goes_to_the_files_of_slurm_s_patterns(tmp_path: Path) -> None:
    from weftd.cli.migration.slurm import Submission, from_slurm

    script = '#!/bin/bash\n#SBATCH -o a"b/%j/%j_%t.out -e %x-%3A-%u.err\necho out; echo err >&2\n'.replace('"', "$")
    spec = from_slurm(script, path="run.sh", folder=str(tmp_path), submission=Submission(user="ada")).spec
    run = {"WEFT_JOB_ID": J, "WEFT_EPOCH": "0", "WEFT_GPUS": "", "WEFT_RANK": "0", "WEFT_WORLD_SIZE": "1"}
    env = {"PATH": os.environ["PATH"], **run}
    done = subprocess.run(
        spec["command"], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True
    )
    assert (done.stdout, done.stderr) == ("output: a$b/71/71_0.out\n", "")
    assert (tmp_path / "a$b/71/71_0.out").read_text() == "out\n"
    assert (tmp_path / "run-071-ada.err").read_text() == "err\n"


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_signal_reaches_what_srun_runs_and_the_script_goes_on(shell: str) -> None:
    child = "import signal, sys; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3)); print('up', flush=True)\n"
    script = prelude(name="x", cpus=1, gpus=0, of_array=False, signal="USR1") + f"srun -n1 {sys.executable} -c '\n"
    script += child.replace("'", '"') + "while True: signal.pause()\n'\necho ended $?\n"
    run = {"WEFT_JOB_ID": J, "WEFT_EPOCH": "0", "WEFT_GPUS": "", "WEFT_RANK": "0", "WEFT_WORLD_SIZE": "1"}
    env = {"PATH": os.environ["PATH"], **run}
    with subprocess.Popen([shell, "-c", script], env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(10)
        assert process.stdout.readline() == "ended 3\n"
    assert process.returncode == 0


# squeue, sacct


def failed(job_id: str, code: CauseCode) -> JobView:
    ended = Cause(code=code, sentence="it ended")
    return job_view(job_id, JobState.FAILED, ended_for=ended, started_at=0.0, ended_at=3661.0, exit_code=137)


async def test_squeue_shows_states_and_reasons_in_slurm_s_words(
    gateway: ToldGateway, slurm: Typed, capsys: Said
) -> None:
    waits = job_view(OTHER, JobState.QUEUED, waiting_for=Cause(code=CauseCode.NO_ROOM, sentence="-"), seq=2)
    element = job_view(f"{J}-4", JobState.RUNNING, name="parts-4", nodes=("node-1",), started_at=time.time() - 3700)
    own = job_view("j-0000000099", tenant="weft")
    gateway.answers["GET /v1/jobs"] = JobsView(jobs=(waits, element, own))
    gateway.answers["GET /v1/arrays"] = ArraysView(arrays=())
    assert await slurm("squeue", "-h", "-o", "%i|%.3t|%T|%j|%-4P|%R") == 0
    out = capsys.readouterr().out
    assert out == "71_4|  R|RUNNING|parts|%-4P|node-1\n72| PD|PENDING|train|%-4P|(Resources)\n"
    assert await slurm("squeue") == 0
    assert capsys.readouterr().out.splitlines()[0].split() == [
        "JOBID",
        "PARTITION",
        "NAME",
        "USER",
        "ST",
        "TIME",
        "NODES",
        "NODELIST(REASON)",
    ]
    assert await slurm("squeue", "-o", "%C") == 1
    assert "%C is unknown" in capsys.readouterr().err


@pytest.mark.parametrize(("highest", "ids"), [("3", ["71_[2-3%1]", "72"]), ("9", ["71_2", "71_9", "72"])])
async def test_plain_squeue_shows_an_array_that_waits_as_one_row(
    gateway: ToldGateway, slurm: Typed, capsys: Said, highest: str, ids: list[str]
) -> None:
    """Where the indices have gaps, each element has a row."""
    env = {"WEFT_ARRAY_MIN": "2", "WEFT_ARRAY_MAX": highest}
    spec = JobSpec(name="parts", command=("true",), env=env)
    first, last = (job_view(f"{J}-{index}", JobState.QUEUED, name=f"parts-{index}") for index in ("2", highest))
    array = structs.replace(array_view("parts", queued=2), id=ARRAY, at_once=1)
    gateway.answers["GET /v1/arrays"] = ArraysView(arrays=(array,))
    gateway.answers[f"GET /v1/arrays/{ARRAY}/elements"] = JobsView(jobs=(first, last))
    gateway.answers[f"GET /v1/jobs/{J}-2"] = structs.replace(first, spec=spec)
    gateway.answers["GET /v1/jobs"] = JobsView(jobs=(job_view(OTHER, seq=9),))
    assert await slurm("squeue", "-h") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ([row[0] for row in rows], rows[0][2]) == (ids, "parts")
    assert "elements=0" in next(each for each in gateway.asked if each.startswith("GET /v1/jobs?"))


async def test_squeue_asks_for_what_it_shows_alone(gateway: ToldGateway, slurm: Typed) -> None:
    gateway.answers["GET /v1/jobs"] = JobsView(jobs=())
    assert await slurm("squeue", "--me", "-t", "R", "--name", "My Run") == 0
    assert all("state=running" in each and "label=slurm-user%3Dada" in each for each in gateway.asked)
    assert ["name=my-run&" in gateway.asked[0], "name=my-run-*&" in gateway.asked[1]] == [True, True]


async def test_sacct_answers_as_programs_read_it(gateway: ToldGateway, slurm: Typed, capsys: Said) -> None:
    gateway.answers[f"GET /v1/jobs/{J}"] = failed(J, CauseCode.TIME_LIMIT)
    elements = JobsView(
        jobs=(job_view("j-0000000020-0", JobState.SUCCEEDED), failed("j-0000000020-1", CauseCode.EXITED))
    )
    gateway.answers["GET /v1/arrays/a-0000000020/elements"] = elements
    fields = "JobID,State,ExitCode,Elapsed"
    assert await slurm("sacct", "-X", "-o", fields, "--parsable2", "-j", J_NUMBER, "-j", "72", "-j", "73") == 0
    assert capsys.readouterr().out.splitlines() == [
        "JobID|State|ExitCode|Elapsed",
        "71|TIMEOUT|0:9|01:01:01",
        "72_0|COMPLETED|0:0|00:00:00",
        "72_1|FAILED|0:9|01:01:01",
    ]
    assert await slurm("sacct", "-j", "71.batch", "-n", "--format=Reason") == 0
    assert capsys.readouterr().out == ""
    assert await slurm("sacct", "-o", "Nonsense") == 1
    assert "Invalid field requested: 'Nonsense'" in capsys.readouterr().err


async def test_pages_are_read_to_the_end_and_no_further_than_the_start_time(
    gateway: ToldGateway, slurm: Typed, capsys: Said
) -> None:
    now = time.time()
    newest, older = (job_view(each, JobState.SUCCEEDED, submitted_at=now - 60) for each in (OTHER, J))
    gateway.answers["GET /v1/jobs?state=succeeded"] = JobsView(jobs=(newest,), before=9)
    assert await slurm("sacct", "-n", "-X", "-P", "-s", "CD", "-o", "JobID", "-S", "now-10seconds") == 0
    assert capsys.readouterr().out == ""
    assert len(gateway.asked) == 1, "the first page is older than that"
    gateway.answers["GET /v1/jobs?state=succeeded"] = deque(
        [JobsView(jobs=(newest,), before=9), JobsView(jobs=(older,))]
    )
    assert await slurm("sacct", "-n", "-X", "-P", "-s", "CD", "-o", "JobID", "-S", "now-1hour") == 0
    assert sorted(capsys.readouterr().out.split()) == ["71", "72"]


# scancel, sinfo, scontrol, srun


async def test_scancel_ends_jobs_arrays_and_elements(gateway: ToldGateway, slurm: Typed, capsys: Said) -> None:
    asks = ArrayAsked(id=ARRAY, ask=AskKind.CANCEL, elements=2)
    gateway.answers["POST /v1/jobs/j-0000000020/cancel"] = Accepted(id=OTHER, ask=AskKind.CANCEL, state="running")
    gateway.answers[f"POST /v1/arrays/{ARRAY}/cancel"] = asks
    assert await slurm("scancel", "72", J_NUMBER, "--clusters=all", "71_[1-2]") == 0
    assert json.loads(gateway.bodies[-1]) == {"indices": "1-2", "failed": False}
    assert await slurm("scancel", "99") == 1
    assert "Kill job error on job id 99: Invalid job id specified" in capsys.readouterr().err
    gateway.refuse("POST /v1/jobs/j-0000000020/cancel", 409, "job", "is over already")
    assert await slurm("scancel", "72") == 0


@pytest.mark.parametrize("words", [(), ("72", "--signal", "TERM"), ("72.batch",), ("-t", "XX")])
async def test_scancel_that_is_not_clear_ends_nothing(
    gateway: ToldGateway, slurm: Typed, words: tuple[str, ...]
) -> None:
    assert await slurm("scancel", *words) == 1
    assert gateway.asked == []


async def test_scancel_of_a_user_ends_what_that_user_submitted(gateway: ToldGateway, slurm: Typed) -> None:
    gateway.answers["GET /v1/jobs"] = JobsView(jobs=(job_view(OTHER),))
    gateway.answers[f"POST /v1/jobs/{OTHER}/cancel"] = Accepted(id=OTHER, ask=AskKind.CANCEL, state="running")
    assert await slurm("scancel", "-u", "bob") == 0
    assert "label=slurm-user%3Dbob" in gateway.asked[0]
    assert asked(gateway) == [f"POST /v1/jobs/{OTHER}/cancel"]


async def test_sinfo_shows_pools_as_partitions(gateway: ToldGateway, slurm: Typed, capsys: Said) -> None:
    nodes = (node_view("node-2", drained=True), node_view("node-1"), node_view("big-1", pool="big", cpus_allocated=0.0))
    gateway.answers["GET /v1/nodes"] = NodesView(nodes=nodes)
    assert await slurm("sinfo", "-h", "-o", "%P %D %t %N") == 0
    assert capsys.readouterr().out.splitlines() == [
        "big 1 idle big-1",
        "default* 1 drain node-2",
        "default* 1 mix node-1",
    ]
    assert await slurm("sinfo", "-o", "%P") == 0
    assert capsys.readouterr().out == "PARTITION\nbig\ndefault*\n"


async def test_a_job_that_requeues_itself_asks_nothing(
    gateway: ToldGateway, slurm: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.answers[f"POST /v1/jobs/{OTHER}/requeue"] = Accepted(id=OTHER, ask=AskKind.REQUEUE, state="failed")
    assert await slurm("scontrol", "requeue", "72") == 0
    assert len(gateway.asked) == 1
    monkeypatch.setenv("WEFT_JOB_ID", OTHER)
    assert await slurm("scontrol", "requeue", "72") == 0
    assert len(gateway.asked) == 1
    assert await slurm("scontrol", "update", "node=x") == 1


def test_srun_in_a_job_replaces_itself_by_the_command(tmp_path: Path) -> None:
    assert weft_main(["slurm", "install", str(tmp_path)]) == 0
    env = {**os.environ, "WEFT_JOB_ID": J, "WEFT_RANK": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    words = ["-n1", "--cpu-bind=q", "--output", "x", "sh", "-c", "echo $0; exit 5"]
    done = subprocess.run([tmp_path / "srun", *words], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("sh\n", "", 5)


# weft slurm install


def test_install_writes_the_commands_and_replaces_no_other_program(tmp_path: Path, capsys: Said) -> None:
    for _ in range(2):
        assert weft_main(["slurm", "install", str(tmp_path / "bin")]) == 0
    assert sorted(each.name for each in (tmp_path / "bin").iterdir()) == sorted(NAMES)
    assert all(os.access(each, os.X_OK) for each in (tmp_path / "bin").iterdir())
    (tmp_path / "bin/sinfo").write_text("#!/bin/sh\n")
    capsys.readouterr()
    assert weft_main(["slurm", "install", str(tmp_path / "bin")]) == 1
    assert "sinfo is another program" in capsys.readouterr().err
