"""Times, counts and other people's text, as a person reads them."""

from datetime import UTC
from zoneinfo import ZoneInfo

import pytest

from weftd.cli.formatting import ago, clean, clock, emulated_gpus, indexes, number, span
from weftd.cli.rendering.context import RenderContext


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "just now"),
        (0.9, "just now"),
        (12, "12s ago"),
        (61, "1m ago"),
        (3 * 3600, "3h ago"),
        (40 * 3600, "40h ago"),
    ],
)
def test_how_long_ago_is_told_in_one_unit(seconds: float, text: str) -> None:
    assert ago(seconds) == text


def test_days_are_days_from_the_second_on() -> None:
    assert ago(49 * 3600) == "2d ago"


@pytest.mark.parametrize(
    ("seconds", "text"), [(-3, "0s"), (0.7, "0s"), (59.9, "59s"), (192, "3m12s"), (7500, "2h5m"), (90000, "1d1h")]
)
def test_how_long_is_told_in_two_units(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_a_time_of_another_day_has_its_day() -> None:
    now = 1_700_000_000.0
    assert clock(now - 60, now=now, zone=UTC) == "22:12:20"
    assert clock(now - 86_400, now=now, zone=UTC) == "2023-11-13 22:13:20"


def test_a_time_is_shown_with_its_zone_where_it_stands_alone() -> None:
    context = RenderContext(now=1_700_000_000.0, zone=ZoneInfo("Europe/Berlin"))
    assert context.zoned(context.now) == "23:13:20 CET"
    assert RenderContext(now=context.now, zone=UTC).zoned(context.now) == "22:13:20 UTC"


@pytest.mark.parametrize(("value", "text"), [(3.0, "3"), (0.3123456, "0.3123"), (1e-5, "1e-05"), (1e20, "1e+20")])
def test_numbers_are_as_short_as_they_may_be(value: float, text: str) -> None:
    assert number(value) == text


def test_gpus_are_joined_where_they_are_neighbours() -> None:
    assert indexes((0, 1, 2, 5, 7, 6)) == "0-2,5-7"
    assert indexes((3,)) == "3"


def test_emulated_gpus_are_never_passed_off_as_hardware() -> None:
    assert emulated_gpus(8, 8) == "8 emulated GPUs"
    assert emulated_gpus(1, 1) == "1 emulated GPU"
    assert emulated_gpus(8, 4) == "8 GPUs, 4 of them emulated"
    assert emulated_gpus(8, 0) == "8 GPUs"


def test_somebody_elses_text_cannot_steer_the_terminal() -> None:
    assert clean("a\x1b[31mred\x07\nnext\x9b2J") == "a [31mred  next 2J"
    assert clean("größer · 日本") == "größer · 日本"
