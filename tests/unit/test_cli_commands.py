"""Each command, from what is typed to what is printed and its exit status; the gateway is told what to answer."""

import argparse
import importlib
import io
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from libs.domain.job import JobState
from libs.domain.sizes import RoleSize
from libs.messages.accounts import AccountRow, By, CapacityView
from libs.messages.asks import AskKind
from libs.messages.http import (
    Accepted,
    JobsView,
    Submitted,
    TenantsView,
    TenantView,
    TokenMade,
    TokensRevoked,
    TokensView,
    TokenView,
)
from libs.messages.series import UsageView
from libs.messages.webhooks import WebhookMade, WebhooksView, WebhookView
from services.cli import page
from services.cli.__main__ import main, parse
from services.cli.commands import COMMANDS, FAMILIES
from services.cli.parsing import Parser
from services.cli.top import ended_lately
from services.cli.wait import seconds
from tests.support.told_gateway import ToldGateway, weft
from tests.support.views import NOW, array_view, job_view

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
    (tmp_path / "job.yaml").write_bytes(b"name: train\ncommand: [x]\n")
    assert await weft(gateway, "submit", str(tmp_path / "job.yaml"), "--json") == 0
    assert gateway.bodies == [b"name: train\ncommand: [x]\n"]
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


@pytest.mark.parametrize(
    "words",
    [
        ("cancel", ""),
        ("cancel", "j-1", ""),
        ("requeue", ""),
        ("priority", "", "3"),
        ("exec", "", "--", "true"),
        ("describe", ""),
        ("ps", ""),
        ("drain", ""),
        ("secret", "set", ""),
        ("webhook", "add", ""),
        ("quota", "set", "", "--weight", "1"),
        ("migrate-from", "slurm", ""),
    ],
)
async def test_an_empty_word_such_as_a_variable_without_a_value_means_no_job_at_all(
    gateway: ToldGateway, capsys: Said, words: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code == 2
    assert capsys.readouterr().err.rstrip().endswith(" is empty")
    assert gateway.asked == []


def test_a_command_of_a_job_may_have_empty_words() -> None:
    assert parse("run", ["run", "--", "echo", ""]).command == ["echo", ""]


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_or_word_of_a_command_takes_the_place_of_another(name: str) -> None:
    parser = Parser(prog="weft")
    commands = parser.add_subparsers(parser_class=Parser)
    importlib.import_module(COMMANDS[name].module).add(commands)
    for verb in _verbs(commands.choices[name]):
        places = [action.dest for action in verb._actions]
        assert len(set(places)) == len(places), verb.prog


def _verbs(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        for verb in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
            yield from _verbs(verb)


async def test_a_refusal_without_a_subject_has_the_option_or_the_word_for_one(
    gateway: ToldGateway, capsys: Said
) -> None:
    for field, reason, told in (
        ("events", "Expected `array`", "--events: Expected `array`"),
        ("address", "is no address", "URL: is no address"),
        ("url", "is an address that may not be reached from here", "is an address that may not be reached from here"),
        ("events", "no event is named odd", "no event is named odd"),
    ):
        gateway.refuse("POST /v1/webhooks", 400, field, reason)
        assert await weft(gateway, "webhook", "add", "https://example.org/") == 1
        assert capsys.readouterr().err == f"weft: {told}\n"


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
    said = "j-1 should have a request of 0.5 and a limit of 0.8 of a GPU, as far as there is room (it is running)\n"
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


async def test_a_token_is_made_and_printed_alone(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["POST /v1/tokens"] = TokenMade(token="weft_x", tenant="bob", label="ci")
    assert await weft(gateway, "token", "make", "bob", "--label", "ci") == 0
    assert capsys.readouterr().out == "weft_x\n"
    gateway.answers["DELETE /v1/tokens/bob/ci"] = TokensRevoked(revoked=1)
    assert await weft(gateway, "token", "revoke", "bob", "--label", "ci") == 0
    assert capsys.readouterr().out == "1 token revoked\n"


def alices(**fields: Any) -> TenantView:
    usual: dict[str, Any] = {
        "id": "alice",
        "created_at": time.time() - 120,
        "jobs_open": 3,
        "jobs_open_max": 1000,
        "spec_bytes": 1536,
        "spec_bytes_max": 64 << 20,
        "priority_max": 100,
        "may_be_unpreemptible": False,
        "chosen": ("jobs_open_max",),
    }
    return TenantView(**usual | fields)


async def test_tenants_are_listed_with_what_they_have_taken(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["GET /v1/tenants"] = TenantsView(tenants=(alices(),))
    assert await weft(gateway, "tenant", "list") == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split() == ["alice", "3", "of", "1000", "*", "1.5KiB", "of", "64MiB", "to", "100", "no", "2m", "ago"]


async def test_what_a_tenant_may_take_is_changed_by_what_was_given_alone(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["PATCH /v1/tenants/alice"] = alices()
    typed = ("--jobs-open", "1000", "--spec-bytes", "1MiB", "--priority", "default", "--unpreemptible", "yes")
    assert await weft(gateway, "tenant", "set", "alice", *typed) == 0
    assert json.loads(gateway.bodies[0]) == {
        "jobs_open_max": 1000,
        "spec_bytes_max": 1 << 20,
        "priority_max": None,
        "may_be_unpreemptible": True,
    }
    assert "alice" in capsys.readouterr().out
    for wrong in ((), ("--jobs-open", "many"), ("--spec-bytes", "4G"), ("--unpreemptible", "maybe")):
        assert await weft(gateway, "tenant", "set", "alice", *wrong) == 2
    assert len(gateway.bodies) == 1


async def test_what_a_job_should_know_of_itself_is_told_once_on_stderr(
    gateway: ToldGateway, capsys: Said, tmp_path: Path
) -> None:
    gateway.answers["POST /v1/jobs"] = Submitted(id="j-1", name="lab", created=True, notes=("it can be stopped",))
    (tmp_path / "job.yaml").write_bytes(b"name: lab\ncommand: [x]\n")
    for typed in (("run", "--", "x"), ("submit", str(tmp_path / "job.yaml"))):
        assert await weft(gateway, *typed) == 0
        assert capsys.readouterr() == ("j-1\n", "note: it can be stopped\n")


async def test_a_token_may_end_by_itself(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["POST /v1/tokens"] = TokenMade(token="weft_x", tenant="bob", label="ci", expires_at=NOW)
    assert await weft(gateway, "token", "create", "bob", "--label", "ci", "--expires", "30d") == 0
    assert capsys.readouterr().out == "weft_x\n"
    assert json.loads(gateway.bodies[-1]) == {"tenant": "bob", "label": "ci", "admin": False, "expires_in": 2592000}
    asked = len(gateway.asked)
    for wrong in ("soon", "0s", "11000d"):
        with pytest.raises(SystemExit):
            await weft(gateway, "token", "create", "bob", "--expires", wrong)
        assert "--expires" in capsys.readouterr().err
    assert len(gateway.asked) == asked


async def test_tokens_are_listed_with_when_they_were_used_and_when_they_end(gateway: ToldGateway, capsys: Said) -> None:
    def token(label: str, **fields: Any) -> TokenView:
        return TokenView(**{"tenant": "bob", "label": label, "admin": False, "in_force": True, **fields})

    now = time.time()
    gateway.answers["GET /v1/tokens"] = TokensView(
        tokens=(
            token("ci", created_at=now - 120, used_at=now - 30, expires_at=now + 7200.9),
            token("boss", created_at=now - 120, admin=True),
            token("old", created_at=now - 9 * 86400, in_force=False, revoked_at=now - 60),
            token("short", created_at=now - 9 * 86400, in_force=False, expires_at=now - 61),
        )
    )
    assert await weft(gateway, "token", "list", "bob", "--all") == 0
    assert gateway.asked == ["GET /v1/tokens?tenant=bob&all=1"]
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells == [
        ["TENANT", "LABEL", "MAY", "STATE", "CREATED", "USED", "EXPIRES"],
        ["bob", "ci", "its own jobs", "in force", "2m ago", "30s ago", "in 2h0m"],
        ["bob", "boss", "everything", "in force", "2m ago", "never", "never"],
        ["bob", "old", "its own jobs", "revoked", "9d ago", "never", "never"],
        ["bob", "short", "its own jobs", "expired", "9d ago", "never", "1m ago"],
    ]
    assert await weft(gateway, "token", "list", "--json") == 0
    assert gateway.asked[-1] == "GET /v1/tokens"
    assert len(json.loads(capsys.readouterr().out)["tokens"]) == 4


async def test_who_asks_too_fast_waits_as_it_is_told_and_no_longer_than_a_person_does(
    gateway: ToldGateway, capsys: Said
) -> None:
    gateway.refuse("GET /v1/nodes", 429, "", "tenant bob may make 2 reads a second here", retry_after=30)
    began = time.monotonic()
    assert await weft(gateway, "nodes") == 1
    assert "may make 2 reads a second" in capsys.readouterr().err
    assert len(gateway.asked) == 1  # it would have been longer than is waited for
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(("state", "status"), [(JobState.SUCCEEDED, 0), (JobState.FAILED, 1), (JobState.CANCELLED, 1)])
async def test_wait_exits_as_the_job_ended(gateway: ToldGateway, capsys: Said, state: JobState, status: int) -> None:
    gateway.answers["GET /v1/jobs/train"] = gateway.answers["GET /v1/jobs/j-aaaaaaaaaa"] = job_view(state=state)
    assert await weft(gateway, "wait", "train") == status
    assert capsys.readouterr().out == f"train j-aaaaaaaaaa {state}\n"


async def test_wait_ends_in_time_and_names_who_is_late(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["GET /v1/jobs/train"] = gateway.answers["GET /v1/jobs/j-aaaaaaaaaa"] = job_view()
    gateway.refuse("GET /v1/jobs/j-aaaaaaaaaa/events", 503, "", "the store is away for a moment")
    assert await weft(gateway, "wait", "train", "--timeout", "0.2") == 124
    assert capsys.readouterr().err == "weft: not over after 0.2 s: train\n"


def test_a_timeout_is_seconds_or_a_duration() -> None:
    assert (seconds("90"), seconds("1h30m"), seconds("0.5")) == (90.0, 5400.0, 0.5)
    with pytest.raises(argparse.ArgumentTypeError, match="expected a duration"):
        seconds("soon")


def test_what_ended_lately_is_shown_the_newest_end_first() -> None:
    jobs = (
        job_view("j-1", JobState.SUCCEEDED, ended_at=NOW - 50),
        job_view("j-2", JobState.FAILED, ended_at=NOW - 5),
        job_view("j-3", JobState.FAILED, ended_at=NOW - 5000),
    )
    assert [job.id for job in ended_lately(jobs, now=NOW)] == ["j-2", "j-1"]


# what goes wrong


async def test_a_refusal_is_one_line_without_words_of_the_api(gateway: ToldGateway, capsys: Said) -> None:
    gateway.refuse("GET /v1/jobs/nope", 404, "job", "no job has the id or the name nope")
    assert await weft(gateway, "describe", "nope") == 1
    assert capsys.readouterr() == ("", "weft: no job has the id or the name nope\n")


async def test_a_token_that_is_refused_is_told_with_where_it_is_from(gateway: ToldGateway, capsys: Said) -> None:
    gateway.refuse("GET /v1/nodes", 401, "Authorization", "this token is not known or was revoked")
    assert await weft(gateway, "nodes") == 1
    assert capsys.readouterr().err == "weft: this token is not known or was revoked (the token is from --token)\n"


async def test_who_answers_and_is_no_gateway_is_told_so(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["GET /v1/nodes"] = b"<html>"
    assert await weft(gateway, "nodes") == 1
    assert "did not answer as a Weft gateway does" in capsys.readouterr().err


def test_a_gateway_that_is_not_there_is_told_soon(capsys: Said) -> None:
    assert main(["ps", "--url", "http://127.0.0.1:9", "--token", "t"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("weft: no answer from http://127.0.0.1:9: ")
    assert error.endswith("is the cluster up? `weft up` starts one here\n")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("typed", "error"),
    [
        (["pss"], "weft: no such command: pss; did you mean `weft ps`?\n"),
        (["xyzzy"], "weft: no such command: xyzzy; `weft --help` lists them\n"),
        (["--bogus"], "weft: no such option: --bogus; `weft --help` lists them\n"),
        (["run"], "weft: what to run is missing: weft run [options] -- command, or --image\n"),
        (["run", "-f", "--json", "--", "x"], "weft: a log is no JSON: say --json or --follow\n"),
        (["logs", "-f", "-n", "3", "x"], "weft: --tail and --follow do not go together\n"),
    ],
)
def test_a_command_line_that_makes_no_sense_exits_with_2(typed: list[str], error: str, capsys: Said) -> None:
    assert main(typed) == 2
    assert capsys.readouterr() == ("", error)


@pytest.mark.parametrize(
    ("typed", "error"),
    [
        (["ps", "--bogus"], "weft: ps knows no --bogus; `weft ps --help` lists what it knows\n"),
        (["ps", "--", "x"], "weft: ps takes no command after --\n"),
        (["run", "--gpus", "two", "--", "x"], "weft: --gpus: expected a whole number, not 'two'\n"),
        (["explain"], "weft: JOB is missing\n"),
        (
            ["ps", "--nodes", "x"],
            "weft: ps knows no --nodes; did you mean --node? `weft ps --help` lists what it knows\n",
        ),
        (
            ["ps", "--state", "runing"],
            "weft: --state: there is no runing; did you mean running? there is queued, placed, starting, running,"
            " stopping, succeeded, failed, cancelled\n",
        ),
        (["ps", "--limit", "0"], "weft: --limit: expected a number of jobs such as 100, got '0'\n"),
        (["ps", "--state", "\x1b]0;x\x07"], "succeeded, failed, cancelled\n"),
        (["run", "--kind"], "weft: --kind: its value is missing\n"),
    ],
)
def test_an_option_that_makes_no_sense_exits_with_2_after_the_usage(typed: list[str], error: str, capsys: Said) -> None:
    with pytest.raises(SystemExit) as ended:
        main(typed)
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert said.err.startswith("usage: weft")
    assert said.err.endswith(error)
    assert "\x1b" not in said.err


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


def test_a_terminal_that_cannot_spell_a_bar_gets_one_in_ascii() -> None:
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, encoding="ascii")
    screen = page.console(stream)
    screen.print("━━╸── · ▐train▌ größer")
    stream.flush()
    assert written.getvalue() == b"##=-- . [train] gr??er\n"


async def test_wait_any_returns_with_the_first_that_has_ended(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["GET /v1/jobs/long"] = gateway.answers["GET /v1/jobs/j-2"] = job_view("j-2", name="long")
    gateway.refuse("GET /v1/jobs/j-2/events", 503, "", "the store is away for a moment")
    over = job_view("j-1", JobState.FAILED, name="short", ended_at=NOW, exit_code=1)
    gateway.answers["GET /v1/jobs/short"] = gateway.answers["GET /v1/jobs/j-1"] = over
    assert await weft(gateway, "wait", "long", "short", "--any", "--timeout", "20") == 1
    assert "short" in capsys.readouterr().out


def told_array(gateway: ToldGateway, **states: int) -> None:
    """An array of the name parts, and no job that is called so."""
    gateway.refuse("GET /v1/jobs/parts", 404, "job", "no job has the id or the name parts; a job is kept for 90 days")
    gateway.answers["GET /v1/arrays/parts"] = gateway.answers["GET /v1/arrays/a-parts"] = array_view("parts", **states)


async def test_wait_for_an_array_is_done_when_all_its_elements_have_succeeded(
    gateway: ToldGateway, capsys: Said
) -> None:
    told_array(gateway, succeeded=3)
    assert await weft(gateway, "wait", "parts") == 0
    assert capsys.readouterr().out == "parts a-parts 3 succeeded\n"


async def test_wait_for_an_array_exits_with_the_highest_status_of_its_elements(
    gateway: ToldGateway, capsys: Said
) -> None:
    told_array(gateway, succeeded=2, failed=2)
    gateway.answers["GET /v1/arrays/a-parts/elements"] = JobsView(
        jobs=(job_view("j-parts-1", JobState.SUCCEEDED), job_view("j-parts-2", JobState.FAILED, exit_code=9))
    )
    assert await weft(gateway, "wait", "parts") == 9
    told_array(gateway, succeeded=2, cancelled=1)
    gateway.answers["GET /v1/arrays/a-parts/elements"] = JobsView(jobs=(job_view(state=JobState.CANCELLED),))
    assert await weft(gateway, "wait", "parts", "--json") == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["states"] == {"succeeded": 2, "cancelled": 1}


async def test_wait_for_an_array_that_is_not_over_ends_in_time(gateway: ToldGateway, capsys: Said) -> None:
    told_array(gateway, succeeded=2, running=1)
    assert await weft(gateway, "wait", "parts", "--timeout", "0.2") == 124
    assert capsys.readouterr().err == "weft: not over after 0.2 s: parts\n"


async def test_wait_for_what_is_neither_job_nor_array_says_that_there_is_no_such_job(
    gateway: ToldGateway, capsys: Said
) -> None:
    gateway.refuse("GET /v1/jobs/parts", 404, "job", "no job has the id or the name parts")
    assert await weft(gateway, "wait", "parts") == 1
    assert capsys.readouterr().err == "weft: no job has the id or the name parts\n"


ACCOUNT = UsageView(
    begins=NOW - 3600,
    ends=NOW,
    step_seconds=3600.0,
    gpu_seconds=28_800.0,
    gpu_seconds_idle=21_600.0,
    by=By.TENANT,
    total=AccountRow(key="total", gpu_seconds_held=7200.0, cost="4.980000", jobs=2),
    rows=(AccountRow(key="alice", gpu_seconds_held=7200.0, gpu_seconds_used=3600.0, lost_moved=360.0, jobs=2),),
    capacity=(
        CapacityView(capacity=28_800.0, held=7200.0, idle=21_600.0, planned=0.0, drained=0.0, down=0.0),
        CapacityView(pool="default", capacity=28_800.0, held=7200.0, idle=21_600.0, planned=0.0, drained=0.0, down=0.0),
    ),
    currency="EUR",
)


async def test_usage_is_shown_in_hours_with_what_is_not_known(gateway: ToldGateway, capsys: Said) -> None:
    gateway.answers["GET /v1/usage"] = ACCOUNT
    assert await weft(gateway, "usage", "--since", "1h") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[:3] == [
        ["TENANT", "GPU", "HOURS", "USED", "LOST", "EUR", "JOBS"],
        ["alice", "2.000", "1.000", "0.100", "unknown", "2"],
        ["total", "2.000", "unknown", "0.000", "4.980000", "2"],
    ]
    assert lines[-1] == ["default", "2.000", "6.000", "0.000", "0.000", "0.000", "8.000"]


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        (["--by", "user"], "--by"),
        (["--by", "label"], "--by"),
        (["--by", "job:x"], "--by"),
        (["--since", "soon"], "--since"),
        (["--since", "1h", "--until", "2h"], "--until"),
        (["--csv", "--json"], "one of"),
    ],
)
async def test_a_usage_that_makes_no_sense_is_refused(
    gateway: ToldGateway, capsys: Said, typed: list[str], field: str
) -> None:
    assert await weft(gateway, "usage", *typed) == 2
    assert field in capsys.readouterr().err
    assert gateway.asked == []


async def test_a_webhook_is_made_with_its_secret_and_listed_without(gateway: ToldGateway, capsys: Said) -> None:
    view = WebhookView(
        id="w-1", tenant="alice", url="https://example.org/", events=("failed",), all_tenants=False, created_at=NOW
    )
    gateway.answers["POST /v1/webhooks"] = WebhookMade(webhook=view, secret="whsec_eA==")
    gateway.answers["GET /v1/webhooks"] = WebhooksView(webhooks=(view,))
    assert await weft(gateway, "webhook", "add", "https://example.org/", "--events", "fail, begin") == 0
    assert json.loads(gateway.bodies[0])["url"] == "https://example.org/"
    assert capsys.readouterr().out == "w-1\nwhsec_eA==\n"
    assert json.loads(gateway.bodies[0])["events"] == ["fail", "begin"]
    assert await weft(gateway, "webhook", "list") == 0
    assert "whsec" not in capsys.readouterr().out
