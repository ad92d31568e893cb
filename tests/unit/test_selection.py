"""Patterns of names, labels as a query has them, and the jobs that a selection holds."""

import time
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import job
from weft.domain.selection import LABELS_MAX, Selection, labels_of, names_match, simplified


@given(st.text("ab*?-", max_size=12), st.text("ab-", max_size=12))
def test_a_pattern_matches_what_a_shell_would_match(pattern: str, name: str) -> None:
    assert names_match(pattern, name) == fnmatchcase(name, pattern) == names_match(simplified(pattern), name)


def test_the_costliest_pattern_is_answered_at_once() -> None:
    name, pattern = "a" * 63, "*a" * 31 + "b"
    began = time.process_time()
    assert not any(names_match(pattern, name) for _ in range(100))
    assert not any(names_match("*" * 62 + "b", name) for _ in range(100))
    assert time.process_time() - began < 20  # a matcher that tries every split would need years


def test_labels_are_pairs_or_names_alone() -> None:
    assert labels_of("") == ()
    assert labels_of("team=vision,urgent,a/b=x=y,empty=") == (
        ("team", "vision"),
        ("urgent", None),
        ("a/b", "x=y"),
        ("empty", ""),
    )


NO_LABELS = ["=", "=x", ",", "a,", "-a=1", "a b=1", "a\0=1", "a=\0", "x" * 64, "a=" + "v" * 254, ",".join("a" * 17)]


@pytest.mark.parametrize("text", [*NO_LABELS, ",".join(["a"] * (LABELS_MAX + 1))])
def test_what_is_no_label_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 -- any sentence will do
        labels_of(text)


def test_a_selection_by_time_holds_the_jobs_submitted_then_or_later() -> None:
    made = job("j-1")
    assert made.submitted_at == 0.0
    assert [Selection(since=since).holds(made) for since in (None, -1.0, 0.0, 1.0)] == [True, True, True, False]
