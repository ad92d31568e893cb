"""`--at` as people write it."""

from datetime import UTC, datetime

import pytest

from weftd.cli.__main__ import parse
from weftd.cli.cli_error import CliError
from weftd.cli.jobs.moments import moment

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("10m", NOW - 600),
        ("-10m", NOW - 600),
        ("1h30m ago", NOW - 5400),
        ("@1699999000.5", 1_699_999_000.5),
        ("2023-11-14T22:13:20Z", NOW),
        ("2023-11-14T23:13:20+01:00", NOW),
    ],
)
def test_a_time_is_asked_for_in_seconds(text: str, asked: float) -> None:
    assert float(moment(text, now=NOW)) == asked


def test_a_time_without_a_zone_is_a_time_of_this_machine() -> None:
    here = datetime.fromtimestamp(NOW, UTC).astimezone().replace(tzinfo=None)
    assert float(moment(here.isoformat(), now=NOW)) == NOW


@pytest.mark.parametrize("text", ["14:57", "14:57:00", "9:05"])
def test_a_time_of_day_is_the_last_time_that_it_was(text: str) -> None:
    then = float(moment(text, now=NOW))
    hour, minute = (int(part) for part in text.split(":")[:2])
    shown = datetime.fromtimestamp(then, UTC).astimezone()
    assert (shown.hour, shown.minute, shown.second) == (hour, minute, 0)
    assert NOW - 25 * 3600 < then <= NOW


def test_the_cursor_of_an_event_is_left_as_it_is() -> None:
    assert moment("712-45", now=NOW) == "712-45"


@pytest.mark.parametrize("text", ["yesterday", "10", "12-", "-", "10 m"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(CliError, match="expected a time"):
        moment(text, now=NOW)


@pytest.mark.parametrize("typed", [["--at", "-10m"], ["--at=-10m"]])
def test_a_time_ago_is_no_option(typed: list[str]) -> None:
    args = parse("describe", ["describe", "train", *typed, "--json"])
    assert (args.job, args.at, args.json) == ("train", "-10m", True)
