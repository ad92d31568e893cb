"""What is typed wrongly, or refused: one line that says what would be right."""

import argparse
import importlib
import time
from collections.abc import Iterator

import pytest

from tests.support.told_gateway import ToldGateway, weft
from tests.support.views import job_view
from weft.messages.http import JobsView
from weftd.cli.__main__ import main, parse
from weftd.cli.commands import COMMANDS
from weftd.cli.parsing import Parser

Said = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    "words",
    [
        ("cancel", ""),
        ("cancel", "j-1", ""),
        ("requeue", ""),
        ("priority", "", "3"),
        ("exec", "", "--", "true"),
        ("describe", ""),
        ("cp", "", "j-1:x"),
        ("cp", "j-1:x", ""),
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
        ("url", "is an address that webhooks may not use", "is an address that webhooks may not use"),
        ("events", "no event is named odd", "no event is named odd"),
    ):
        gateway.refuse("POST /v1/webhooks", 400, field, reason)
        assert await weft(gateway, "webhook", "add", "https://example.org/") == 1
        assert capsys.readouterr().err == f"weft: {told}\n"


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
    assert "did not answer like a Weft gateway" in capsys.readouterr().err


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
        (["--help-me", "ps"], "weft: no such option: --help-me; `weft --help` lists them\n"),
        (["--bogus", "ps"], "weft: no such option: --bogus; `weft --help` lists them\n"),
        (["--url", "http://x", "ps"], "weft: --url belongs after the command: `weft ps --url …`, or set WEFT_URL\n"),
        (["--token=secret", "ps"], "weft: --token belongs after the command: `weft ps --token …`, or set WEFT_TOKEN\n"),
        (["--json", "quota", "list"], "weft: --json belongs after the command: `weft quota list --json`\n"),
        (["--json", "ps", "-a"], "weft: --json belongs after the command: `weft ps --json`\n"),
        (["--gpus", "1", "run", "--", "ps"], "weft: --gpus belongs after the command: `weft run --gpus …`\n"),
        (["-f", "logs", "x"], "weft: -f belongs after the command: `weft logs -f`\n"),
        (["--url", "http://x"], "weft: --url belongs after a command: `weft ps --url …`, or set WEFT_URL\n"),
        (["run"], "weft: the command is missing: weft run [options] -- command, or --image\n"),
        (["run", "-f", "--json", "--", "x"], "weft: a log is no JSON: choose --json or --follow\n"),
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
    assert said.err.startswith(f"usage: weft {typed[0]} ")  # of the command, and not `usage: weft [-h] {ps} ...`
    assert "{" + typed[0] + "}" not in said.err
    assert said.err.endswith(error)
    assert "\x1b" not in said.err


async def test_who_asks_too_fast_waits_as_it_is_told_and_no_longer_than_a_person_does(
    gateway: ToldGateway, capsys: Said
) -> None:
    gateway.refuse("GET /v1/nodes", 429, "", "tenant bob may make 2 reads a second here", retry_after=30)
    began = time.monotonic()
    assert await weft(gateway, "nodes") == 1
    assert "may make 2 reads a second" in capsys.readouterr().err
    assert len(gateway.asked) == 1  # it would have been longer than is waited for
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "words",
    [
        ("cancel", "\udcff"),
        ("cancel", "\udcfftrain"),
        ("cancel", "a-1\udcff"),
        ("requeue", "\udcff"),
        ("priority", "\udcff", "5"),
        ("exec", "\udcff", "--", "ls"),
        ("cp", "\udcff:a", "b"),
        ("port-forward", "\udcff", "8080"),
        ("logs", "\udcff"),
        ("describe", "\udcff"),
        ("ps", "--tenant", "\udcff"),
        ("usage", "--by", "label:\udcff"),
        ("usage", "--tenant", "\udcff"),
        ("secret", "delete", "\udcff"),
        ("quota", "delete", "\udcff"),
        ("webhook", "add", "\udcff"),
        ("webhook", "remove", "\udcff"),
        ("drain", "\udcff"),
        ("run", "--", "\udcff"),
        ("run", "--name", "\udcff", "--", "x"),
        ("run", "--array", "\udcff", "--", "x"),
        ("run", "--after", "\udcff", "--", "x"),
        ("run", "--secret", "A=\udcff", "--", "x"),
        ("run", "--volume", "\udcff", "--", "x"),
        ("run", "--key", "\udcff", "--", "x"),
    ],
)
async def test_a_word_that_is_no_text_asks_nothing_and_least_of_all_for_another_job(
    gateway: ToldGateway, capsys: Said, words: tuple[str, ...]
) -> None:
    gateway.answers["GET /v1/jobs"] = JobsView(jobs=(job_view(),))
    assert await weft(gateway, *words) in (1, 2)
    said = capsys.readouterr().err
    assert (said[:6], said.count("\n")) == ("weft: ", 1)
    assert "no text in UTF-8" in said or "printable" in said
    assert gateway.asked == []


@pytest.mark.parametrize(
    "time", ["@nan", "@inf", "@-inf", "@1e400", "@-1e300", "@1e15", "@", "0001-01-01", "\u0663h", ""]
)
@pytest.mark.parametrize("option", ["--since", "--until"])
async def test_a_time_that_is_none_is_refused_with_its_option(
    gateway: ToldGateway, capsys: Said, option: str, time: str
) -> None:
    try:
        status = await weft(gateway, "usage", f"{option}={time}")
    except SystemExit as left:
        status = int(left.code or 0)
    assert (status, gateway.asked) == (2, [])
    assert option in capsys.readouterr().err


@pytest.mark.parametrize("noun", ["token", "quota", "tenant", "webhook", "secret", "image"])
def test_a_noun_without_a_verb_is_its_list(noun: str) -> None:
    assert parse(noun, [noun]).verb == "list"
    assert parse(noun, [noun, "--json"]).verb == "list"
