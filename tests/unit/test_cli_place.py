"""Which cluster a command speaks to, and by which token."""

import argparse
import os
from pathlib import Path

import pytest

from weft.client.place import QUICK_SECONDS, RESTART_SECONDS
from weftd.cli.cli_error import CliError
from weftd.cli.connection import find_place


def place(environment: dict[str, str], *, url: str = "", token: str = "") -> tuple[str, str]:
    found = find_place(argparse.Namespace(url=url, token=token), environment)
    return found.url, found.token


def test_the_options_go_before_the_environment_and_that_before_what_up_left(tmp_path: Path) -> None:
    (tmp_path / "client.json").write_text('{"url": "http://left:1", "token": "left"}')
    left = {"WEFT_HOME": str(tmp_path)}
    told = {**left, "WEFT_URL": "http://told:1", "WEFT_TOKEN": "told"}
    assert place(left) == ("http://left:1", "left")
    assert place(told) == ("http://told:1", "told")
    assert place(told, url="http://said:1", token="said") == ("http://said:1", "said")
    assert place(left, token="said") == ("http://left:1", "said")
    assert place(left, url="http://left:1/") == ("http://left:1", "left")


def test_a_token_is_told_to_no_other_cluster_than_its_own(tmp_path: Path) -> None:
    (tmp_path / "client.json").write_text('{"url": "http://left:1", "token": "left"}')
    with pytest.raises(CliError, match="no token for http://elsewhere:1"):
        place({"WEFT_HOME": str(tmp_path)}, url="http://elsewhere:1")


def test_the_home_is_where_the_system_wants_data(tmp_path: Path) -> None:
    (tmp_path / "weft").mkdir()
    (tmp_path / "weft" / "client.json").write_text('{"url": "http://left:1", "token": "left"}')
    assert place({"XDG_DATA_HOME": str(tmp_path)}) == ("http://left:1", "left")


@pytest.mark.parametrize(
    ("environment", "cli_error"),
    [
        ({}, "no cluster is known: start one with `weft up`, sign in to one with `weft login URL`"),
        ({"WEFT_URL": "http://x:1"}, "no token: give --token, or set WEFT_TOKEN"),
        ({"WEFT_TOKEN": "t"}, "no address: give --url, or set WEFT_URL"),
        ({"WEFT_URL": "x:1", "WEFT_TOKEN": "t"}, "WEFT_URL: expected an address such as"),
        ({"WEFT_URL": "http://x:1", "WEFT_TOKEN": "t\r\nX: y"}, "WEFT_TOKEN is not a token: "),
    ],
)
def test_what_is_missing_is_told_with_what_to_do(environment: dict[str, str], cli_error: str, tmp_path: Path) -> None:
    with pytest.raises(CliError) as missing:
        place({"WEFT_HOME": str(tmp_path), **environment})
    assert str(missing.value).startswith(cli_error)


def test_a_file_that_weft_did_not_write_is_named(tmp_path: Path) -> None:
    (tmp_path / "client.json").write_text("{}")
    with pytest.raises(CliError, match=r"client\.json is damaged, or was not written by `weft up`"):
        place({"WEFT_HOME": str(tmp_path)})


def first_seconds(environment: dict[str, str], *, url: str = "", token: str = "") -> float:
    return find_place(argparse.Namespace(url=url, token=token), environment).first_seconds


def test_a_known_gateway_that_starts_again_is_waited_for_and_one_that_was_typed_is_reported_soon(
    tmp_path: Path,
) -> None:
    (tmp_path / "client.json").write_text('{"url": "http://left:1", "token": "left"}')
    left, told = {"WEFT_HOME": str(tmp_path)}, {"WEFT_URL": "http://told:1", "WEFT_TOKEN": "told"}
    assert first_seconds(left) == QUICK_SECONDS, "nothing runs there any more"
    (tmp_path / "up.lock").write_text("no number")
    assert first_seconds(left) == QUICK_SECONDS
    (tmp_path / "up.lock").write_text(str(os.getpid()))
    assert first_seconds(left) == RESTART_SECONDS
    assert first_seconds(told) == RESTART_SECONDS
    assert first_seconds(told, url="http://typed:1") == QUICK_SECONDS
