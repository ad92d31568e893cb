"""Counts and lists in sentences."""

import pytest

from weft.domain.text import listed, plural


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 GPUs"), (1, "1 GPU"), (1.0, "1 GPU"), (2, "2 GPUs"), (0.5, "0.5 GPUs"), (1200, "1,200 GPUs")],
)
def test_a_number_is_followed_by_its_noun(count: float, text: str) -> None:
    assert plural(count, "GPU") == text


@pytest.mark.parametrize(
    ("names", "text"), [("", ""), ("a", "a"), ("ab", "a and b"), ("abc", "a, b and c"), ("abcde", "a, b, c and 2 more")]
)
def test_a_long_list_ends_with_how_many_are_left_out(names: str, text: str) -> None:
    assert listed(list(names), 3) == text
