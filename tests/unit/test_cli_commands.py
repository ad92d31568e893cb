"""Each command, from what is typed to what is printed and its exit status; the gateway is told what to answer."""

import argparse
import importlib
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.told_gateway import ToldGateway, weft
from tests.support.views import NOW, gpu_view, job_view, node_view
from weft.domain.job import JobState
from weft.domain.sizes import RoleSize
from weft.messages.asks import AskKind
from weft.messages.http import (
    Accepted,
    JobsView,
    NodesView,
    Submitted,
)
from weftd.cli import page
from weftd.cli.__main__ import main
from weftd.cli.cluster.top import ended_lately
from weftd.cli.commands import COMMANDS, FAMILIES

Said = pytest.CaptureFixture[str]


# submitting and acting


async def test_run_prints_the_id_and_nothing_else(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["POST /v1/jobs"] = Submitted(id="j-1", name="train", created=True)
    assert await weft(gateway, "run", "--gpus", "1", "--", "python", "train.py", "--json") == 0
    assert capsys.readouterr() == ("j-1\n", "")
    assert json.loads(gateway.bodies[0])["command"] == ["python", "train.py", "--json"]


async def test_what_the_gateway_refuses_of_a_run_is_told_by_option(gateway: ToldGateway, capsys: Said) -> None:
    gateway.refuse("POST /v1/jobs", 422, "roles.worker.gpus", "wants 9, the largest node has 8")
    assert await weft(gateway, "run", "--gpus", "9", "--", "x") == 1
    assert capsys.readouterr().err == "weft: --gpus: wants 9, the largest node has 8\n"


async def test_a_file_is_sent_as_it_is(gateway: ToldGateway, capsys: Said, tmp_path: Path) -> None:
    gateway.answers["POST /v1/jobs"] = Submitted(id="j-1", name="train", created=True)
    (tmp_path / "job.yaml").write_bytes(b"name: train\ncommand: [x]\nworkdir: /there\n")
    assert await weft(gateway, "submit", str(tmp_path / "job.yaml"), "--json") == 0
    assert gateway.bodies == [b"name: train\ncommand: [x]\nworkdir: /there\n"]
    assert json.loads(capsys.readouterr().out) == {"id": "j-1", "name": "train", "created": True}


async def test_a_file_that_is_not_there_or_too_large_is_refused_here(
    gateway: ToldGateway, capsys: Said, tmp_path: Path
) -> None:
    assert await weft(gateway, "submit", str(tmp_path / "none.yaml")) == 1
    assert "none.yaml: No such file or directory" in capsys.readouterr().err
    (tmp_path / "big.json").write_bytes(b"x" * (1 << 20) + b"x")
    assert await weft(gateway, "submit", str(tmp_path / "big.json")) == 1
    assert "big.json is larger than 1048576 bytes" in capsys.readouterr().err
    assert gateway.asked == []


async def test_jobs_are_cancelled_by_id_without_asking_first(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["POST /v1/jobs/j-1/cancel"] = Accepted(id="j-1", ask=AskKind.CANCEL, state="running")
    assert await weft(gateway, "cancel", "j-1") == 0
    assert gateway.asked == ["POST /v1/jobs/j-1/cancel"]
    assert capsys.readouterr().out == "j-1 will end (it is running)\n"


async def test_a_name_acts_on_the_one_open_job_that_has_it(gateway: ToldGateway) -> None:
    old = job_view("j-old", JobState.SUCCEEDED)
    gateway.answers["GET /v1/jobs"] = JobsView(jobs=(old, job_view("j-open")))
    gateway.answers["POST /v1/jobs/j-open/priority"] = Accepted(id="j-open", ask=AskKind.PRIORITISE, state="queued")
    assert await weft(gateway, "priority", "train", "5") == 0
    assert (gateway.asked[1], gateway.bodies[1]) == ("POST /v1/jobs/j-open/priority", b'{"priority":5}')


SCALED = Accepted(id="j-1", ask=AskKind.SCALE, state="running")


async def test_a_job_is_scaled_by_its_roles_without_a_look_at_it(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["POST /v1/jobs/j-1/scale"] = SCALED
    assert await weft(gateway, "scale", "j-1", "worker=4", "ps=2") == 0
    assert (gateway.asked, gateway.bodies) == (["POST /v1/jobs/j-1/scale"], [b'{"size":{"worker":4,"ps":2}}'])
    assert capsys.readouterr().out == "j-1 should have worker 4, ps 2 (it is running)\n"


async def test_a_number_alone_is_the_size_of_the_one_role(gateway: ToldGateway, capsys: Said) -> None:
    role = RoleSize(granted=2, wanted=2, least=1, most=4)
    gateway.answers |= {"GET /v1/jobs/j-1": job_view("j-1", size={"trainer": role}), "POST /v1/jobs/j-1/scale": SCALED}
    assert await weft(gateway, "scale", "j-1", "4") == 0
    assert gateway.bodies[-1] == b'{"size":{"trainer":4}}'
    gateway.answers["GET /v1/jobs/j-1"] = job_view("j-1", size={"worker": role, "ps": role})
    assert await weft(gateway, "scale", "j-1", "4") == 1
    assert "say which, such as worker=4 ps=4" in capsys.readouterr().err
    assert len(gateway.asked) == 3


NO_SIZES = [
    *(["worker=x"], ["worker="], ["=4"], ["worker=-1"], ["worker=1", "worker=2"], ["worker=1", "2"], ["1", "2"]),
    *(["worker=1.5"], ["worker=1e3"], ["worker=٤"], ["worker=" + "9" * 5000], ["x" * 5000], ["worker=4", "y" * 5000]),
]


@pytest.mark.parametrize("typed", NO_SIZES)
async def test_what_is_no_size_is_refused_before_anything_is_asked(
    gateway: ToldGateway, capsys: Said, typed: list[str]
) -> None:
    assert await weft(gateway, "scale", "j-1", *typed) == 2
    said = capsys.readouterr().err
    assert said.startswith("weft: ")
    assert len(said) < 300
    assert gateway.asked == []


async def test_a_size_that_is_refused_is_told_as_the_gateway_says(gateway: ToldGateway, capsys: Said) -> None:
    gateway.refuse("POST /v1/jobs/j-1/scale", 400, "size.worker", "9 is outside 1 to 4, the range of role worker")
    assert await weft(gateway, "scale", "j-1", "worker=9") == 1
    assert "9 is outside 1 to 4, the range of role worker" in capsys.readouterr().err


async def test_a_job_gets_another_share(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["POST /v1/jobs/j-1/share"] = Accepted(id="j-1", ask=AskKind.SHARE, state="running")
    assert await weft(gateway, "share", "j-1", "--request", "0.5", "--limit", "0.8") == 0
    assert gateway.bodies == [b'{"request":0.5,"limit":0.8}']
    wanted = "j-1 should have a request of 0.5 and a limit of 0.8 of a GPU"
    said = f"{wanted}, as far as there is room and its node can change it (it is running)\n"
    assert capsys.readouterr().out == said
    assert await weft(gateway, "share", "j-1", "--limit", "1", "--role", "eval") == 0
    assert gateway.bodies[-1] == b'{"limit":1.0,"role":"eval"}'


async def test_a_share_of_nothing_is_refused_before_anything_is_asked(gateway: ToldGateway, capsys: Said) -> None:
    assert await weft(gateway, "share", "j-1") == 2
    assert capsys.readouterr().err == "weft: say --request, --limit or both\n"
    assert gateway.asked == []


async def test_a_name_that_several_open_jobs_have_hits_none_of_them(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["GET /v1/jobs"] = JobsView(jobs=(job_view("j-one"), job_view("j-two")))
    assert await weft(gateway, "cancel", "train") == 1
    assert capsys.readouterr().err == "weft: 2 open jobs have the name train: j-one, j-two\n"
    assert len(gateway.asked) == 1


async def test_one_that_is_refused_does_not_keep_the_others_from_being_asked(
    gateway: ToldGateway, capsys: Said
) -> None:
    gateway.refuse("POST /v1/jobs/j-1/cancel", 409, "job", "j-1 is over already: failed")
    gateway.answers["POST /v1/jobs/j-2/cancel"] = Accepted(id="j-2", ask=AskKind.CANCEL, state="queued")
    assert await weft(gateway, "cancel", "j-1", "j-2") == 1
    said = capsys.readouterr()
    assert said.err == "weft: j-1: j-1 is over already: failed\n"
    assert said.out == "j-2 will end (it is queued)\n"


async def test_nodes_are_drained_and_resumed(gateway: ToldGateway, capsys: Said) -> None:
    for verb, ask in (("drain", AskKind.DRAIN), ("resume", AskKind.RESUME)):
        gateway.answers[f"POST /v1/nodes/node-1/{verb}"] = Accepted(id="node-1", ask=ask, state="ready")
        assert await weft(gateway, verb, "node-1") == 0
    assert capsys.readouterr().out == "node-1 takes no new jobs\nnode-1 takes jobs again\n"


async def test_emulate_without_the_home_of_the_cluster_says_what_to_set(
    gateway: ToldGateway, capsys: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.answers["GET /v1/nodes"] = NodesView(nodes=(node_view("node-3", gpu_view(4)),))
    monkeypatch.setenv("WEFT_HOME", str(tmp_path))
    assert await weft(gateway, "emulate", "node-3", "4", "1.5") == 1
    said = capsys.readouterr().err
    assert said.startswith(f"weft: there is no cluster in {tmp_path}: set WEFT_HOME to the home of the `weft up`")
    (tmp_path / "nodes" / "node-1").mkdir(parents=True)
    assert await weft(gateway, "emulate", "node-3", "4", "1.5") == 1
    said = capsys.readouterr().err
    assert said.startswith(f"weft: node-3 is no node of the cluster in {tmp_path}, which has node-1: set WEFT_HOME")
    assert "write 1.5 into emulated/4 in its EXECUTOR_HOME" in said


def test_version_is_a_word_too(capsys: Said) -> None:
    assert main(["version"]) == 0
    said = capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == said


def test_the_help_of_run_has_its_options_in_groups(capsys: Said) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    said = capsys.readouterr().out
    groups = (
        "what runs:",
        "resources of each replica:",
        "scheduling:",
        "arrays, and jobs that wait for others:",
        "a service (",
        "the cluster:",
    )
    places = [said.index(f"\n{group}") for group in groups]
    assert places == sorted(places)
    assert places[3] < said.index("  --array I") < places[4]


async def test_what_a_job_should_know_of_itself_is_told_once_on_stderr(
    gateway: ToldGateway, capsys: Said, tmp_path: Path
) -> None:
    gateway.answers["POST /v1/jobs"] = Submitted(id="j-1", name="lab", created=True, notes=("it can be stopped",))
    (tmp_path / "job.yaml").write_bytes(b"name: lab\ncommand: [x]\n")
    for typed in (("run", "--", "x"), ("submit", str(tmp_path / "job.yaml"))):
        assert await weft(gateway, *typed) == 0
        assert capsys.readouterr() == ("j-1\n", "note: it can be stopped\n")


async def test_the_notes_about_a_job_can_be_left_out(
    gateway: ToldGateway, capsys: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.answers["POST /v1/jobs"] = Submitted(id="j-1", name="lab", created=True, notes=("it can be stopped",))
    (tmp_path / "job.yaml").write_bytes(b"name: lab\ncommand: [x]\n")
    for typed in (("run", "--no-notes", "--", "x"), ("submit", "--no-notes", str(tmp_path / "job.yaml"))):
        assert await weft(gateway, *typed) == 0
        assert capsys.readouterr() == ("j-1\n", "")
    monkeypatch.setenv("WEFT_NO_NOTES", "1")
    assert await weft(gateway, "run", "--", "x") == 0
    assert capsys.readouterr() == ("j-1\n", "")


def test_what_ended_lately_is_shown_the_newest_end_first() -> None:
    jobs = (
        job_view("j-1", JobState.SUCCEEDED, ended_at=NOW - 50),
        job_view("j-2", JobState.FAILED, ended_at=NOW - 5),
        job_view("j-3", JobState.FAILED, ended_at=NOW - 5000),
    )
    assert [job.id for job in ended_lately(jobs, now=NOW)] == ["j-2", "j-1"]


# the list of commands


@pytest.mark.parametrize("typed", [[], ["--help"], ["help"]])
def test_help_lists_every_command(typed: list[str], capsys: Said) -> None:
    assert main(typed) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out and command.summary in out for name, command in COMMANDS.items())


def test_every_command_is_added_by_the_module_that_is_said_to_add_it() -> None:
    assert set(COMMANDS) == {name for names in FAMILIES.values() for name in names}
    for module in {command.module for command in COMMANDS.values()}:
        parser = argparse.ArgumentParser()
        commands = parser.add_subparsers()
        importlib.import_module(module).add(commands)
        assert set(commands.choices) == {name for name, command in COMMANDS.items() if command.module == module}


# what a command costs and where it can be read


def test_what_a_user_types_loads_nothing_that_only_a_service_needs() -> None:
    """`weft ps` must answer in the blink of an eye: what is slow to import is imported by `weft up` and its like."""
    users = sorted({COMMANDS[name].module for family in ("Run", "See", "Act") for name in FAMILIES[family]})
    slow = {"asyncpg", "docker", "nats", "prometheus_client", "pynvml", "uvloop", "aiohttp.web", "numpy"}
    program = f"import sys, {', '.join(users)}; print(*({slow!r} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == ""


HEAVY = {"rich", "aiohttp", "yaml", "pathspec", "shtab", "tempfile", "tomllib", "zipfile", "difflib"}
HEAVY |= {"weft.planning", "weft.messages.http.explanation", "weft.messages.webhooks", "weft.packing"}


def loaded_of(*modules: str) -> set[str]:
    """The modules of HEAVY that a program has once it has imported these."""
    code = f"import sys, {', '.join(modules)}; print(*({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("name", ["run", "ps", "logs", "explain", "completion"])
def test_a_command_imports_what_draws_and_what_few_need_when_it_needs_it(name: str) -> None:
    """These modules are more than half of what such a command would cost."""
    assert loaded_of("weftd.cli.__main__", COMMANDS[name].module) == set()


def test_drawing_an_explanation_imports_nothing_of_the_planning_that_made_it() -> None:
    drawing = loaded_of("weftd.cli.rendering.explanation")
    assert "weft.messages.http.explanation" in drawing
    assert "weft.planning" not in drawing


def test_a_terminal_that_cannot_spell_a_bar_gets_one_in_ascii() -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="ascii")
    screen = page.console(stream)
    screen.print("━━╸── · ▐train▌ größer")
    stream.flush()
    assert written.getvalue() == b"##=-- . [train] gr??er\n"
