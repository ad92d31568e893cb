"""Contexts: which cluster a command uses, how `weft login` keeps one, and who else may read the file."""

import argparse
import io
import json
import os
import stat
import tomllib
from pathlib import Path

import pytest

from tests.support.told_gateway import ToldGateway, told_gateway
from weft.client import ClientError
from weft.client.contexts import CONTEXTS_MAX, Context, Contexts, read_contexts, write_contexts
from weft.client.place import Place
from weft.messages.http.sign_ins import IdentityView
from weftd.cli.__main__ import main
from weftd.cli.cli_error import CliError
from weftd.cli.connection import find_place

Said = pytest.CaptureFixture[str]
PROD = Context(url="https://prod.example.org", token="weft_prod", ca_file="/etc/ca.pem")
TEST = Context(url="http://test:1", token="weft_test")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "weft" / "config.toml"
    for name in ("WEFT_URL", "WEFT_TOKEN", "WEFT_CONTEXT", "WEFT_HOME", "WEFT_CONFIG", "WEFT_CA_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return path


def keep(current: str = "prod") -> None:
    write_contexts(os.environ, Contexts(current=current, contexts={"prod": PROD, "test": TEST}))


def place(context: str = "", *, url: str = "", token: str = "", **environment: str) -> Place:
    typed = argparse.Namespace(url=url, token=token, cluster_context=context)
    return find_place(typed, {**os.environ, **environment})


def test_a_command_uses_the_current_context_unless_it_is_told_another(config: Path, tmp_path: Path) -> None:
    keep()
    assert (place().url, place().token, place().ca_file) == (PROD.url, PROD.token, PROD.ca_file)
    assert place("test").token == TEST.token
    assert place(WEFT_CONTEXT="test").token == TEST.token
    assert place("prod", WEFT_CONTEXT="test").token == PROD.token
    assert place(url=TEST.url).token == TEST.token, "each address has its own token"
    assert place(WEFT_URL=TEST.url + "/").token == TEST.token
    assert place(WEFT_URL="http://x:1", WEFT_TOKEN="x").url == "http://x:1"
    assert place("test", WEFT_URL="http://x:1", WEFT_TOKEN="x").url == TEST.url
    assert place("test", token="mine").token == "mine"
    home = tmp_path / "data" / "weft"
    home.mkdir(parents=True)
    (home / "client.json").write_text('{"url": "http://left:1", "token": "left"}')
    assert place("local").token == "left"
    assert place(WEFT_HOME=str(home)).token == "left"
    keep("")
    assert place().token == "left"


def test_a_token_is_sent_to_no_other_cluster_than_its_own(config: Path) -> None:
    keep()
    assert place(WEFT_TOKEN="of-another").token == PROD.token
    assert place("prod", WEFT_TOKEN="of-another").token == PROD.token
    with pytest.raises(CliError, match="no token: give --token"):
        place(url="http://elsewhere:1")
    with pytest.raises(CliError, match="no token: give --token"):
        place(url="https://prod.example.org.evil.org")
    home = config.parent.parent / "data" / "weft"
    home.mkdir(parents=True)
    (home / "client.json").write_text('{"url": "http://left:1", "token": "left"}')
    with pytest.raises(CliError, match=r"no token for https://prod\.example\.org\.evil\.org"):
        place(url="https://prod.example.org.evil.org")
    with pytest.raises(CliError, match="give --url or --context, not both"):
        place("prod", url="http://elsewhere:1")


def test_a_context_that_is_not_there_is_told_with_those_that_are(config: Path) -> None:
    keep()
    with pytest.raises(CliError, match="there is no context prdo; there is local, prod, test"):
        place("prdo")


def test_only_the_person_may_read_the_file(config: Path) -> None:
    keep()
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert stat.S_IMODE(config.parent.stat().st_mode) == 0o700
    config.chmod(0o644)
    with pytest.raises(CliError, match=f"others can read .*chmod 600 {config}"):
        place()
    assert place(WEFT_URL="http://x:1", WEFT_TOKEN="x").token == "x", "where nothing of it is needed, all goes on"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("current = 1", "current"),
        ('[contexts.a]\nurl = "http://x:1"\nuser = "x"', "user"),
        ("[contexts.a]\ntoken = 'x'", "url"),
        ("[[[", "config.toml: "),
        ("a = " + "[" * 100_000, "config.toml: "),
        ("\ufeff\x00", "config.toml: "),
    ],
)
def test_a_file_that_is_none_is_named(config: Path, text: str, told: str) -> None:
    config.parent.mkdir()
    config.write_text(text)
    config.chmod(0o600)
    with pytest.raises(CliError) as error:
        place()
    assert told in str(error.value)
    assert str(config) in str(error.value)


def test_whatever_a_file_can_say_is_read_again(config: Path) -> None:
    odd = {"a.b": Context(url="http://x:1", token='"\\\x7f\t\x01é😀', ca_file="/a b")}
    write_contexts(os.environ, Contexts(current="a.b", contexts=odd))
    assert read_contexts(os.environ).contexts == odd
    assert tomllib.loads(config.read_text())["current"] == "a.b"
    for name in ("", "local", "../x", "a b", "x" * 64, "-a"):
        with pytest.raises(ClientError, match="is no name for a context"):
            Contexts().with_context(name, TEST)
    with pytest.raises(ClientError, match="contexts already"):
        Contexts(contexts=dict.fromkeys(map(str, range(CONTEXTS_MAX)), TEST)).with_context("more", TEST)


async def weft(*typed: str) -> int:
    import asyncio

    return await asyncio.to_thread(main, list(typed))


async def signs_in(
    gateway: ToldGateway, monkeypatch: pytest.MonkeyPatch, *typed: str, token: str = "weft_mine\n"
) -> int:
    gateway.answers["GET /v1/whoami"] = IdentityView(tenant="vision", admin=False, label="laptop")
    monkeypatch.setattr("sys.stdin", io.StringIO("weft_mine\n"))
    return await weft("login", gateway.url, "--token", "-", *typed)


async def test_login_keeps_a_context_once_the_gateway_knows_the_token(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    async with told_gateway() as gateway:
        assert await signs_in(gateway, monkeypatch, "--name", "here") == 0
        assert f"signed in to {gateway.url} as tenant vision, token laptop" in capsys.readouterr().out
        assert read_contexts(os.environ) == Contexts(
            current="here", contexts={"here": Context(url=gateway.url, token="weft_mine")}
        )
        assert await weft("whoami") == 0
        said = capsys.readouterr().out
        assert said == f"tenant vision, token laptop at {gateway.url} (the token is from {config})\n"
        gateway.refuse("GET /v1/whoami", 401, "Authorization", "this token is not known")
        monkeypatch.setattr("sys.stdin", io.StringIO("weft_other\n"))
        assert await weft("login", gateway.url, "--token", "-", "--name", "here") == 1
        assert "this token is not known" in capsys.readouterr().err
        assert read_contexts(os.environ).contexts["here"].token == "weft_mine", "what was kept stays"
        assert await weft("logout") == 0
        assert read_contexts(os.environ) == Contexts()


async def test_a_token_on_the_command_line_of_login_is_refused_and_not_repeated(config: Path, capsys: Said) -> None:
    assert await weft("login", "http://x:1", "--token", "weft_secret") == 2
    said = capsys.readouterr()
    assert "other users of this machine" in said.err
    assert "weft_secret" not in said.err + said.out
    for url in ("x", "ftp://x", "http://user:word@x:1", "http://x:1/?a=b"):
        assert await weft("login", url, "--token", "-") == 2
    assert read_contexts(os.environ) == Contexts()


async def test_contexts_are_listed_chosen_and_forgotten(config: Path, capsys: Said) -> None:
    keep()
    assert await weft("context") == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[:2] for row in rows] == [["*", "prod"], ["test", "http://test:1"]]
    assert await weft("context", "use", "test") == 0
    capsys.readouterr()
    assert await weft("context", "show") == 0
    assert capsys.readouterr().out == "test\n"
    assert await weft("context", "delete", "test") == 0
    assert await weft("context", "use", "test") == 1
    capsys.readouterr()
    assert await weft("context", "list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["current"]) for one in listed] == [("prod", False), ("local", True)]
    assert "weft_prod" not in json.dumps(listed)
