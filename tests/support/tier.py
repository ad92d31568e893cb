"""The two tiers of the suite: `make test`, and `make nightly` with all of every test."""

import os
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import pytest

T = TypeVar("T")

NIGHTLY: Final = os.environ.get("WEFT_TESTS") == "nightly"
EXAMPLES_MAX: Final = 30


def examples(nightly: int) -> int:
    """The number of examples of a property: `nightly` in `make nightly`, at most 30 in `make test`."""
    return nightly if NIGHTLY else min(nightly, EXAMPLES_MAX)


def of_tier(test: T, nightly: T) -> T:
    """The first in `make test`, the second in `make nightly`."""
    return nightly if NIGHTLY else test


def some(count: int, values: Sequence[Any]) -> list[Any]:
    """Parameters of a test: `count` of them, spread over all, in `make test` too; the others in `make nightly` only."""
    size = len(values)
    kept = {index * size // count for index in range(min(count, size))}
    return [value if index in kept else _nightly(value) for index, value in enumerate(values)]


def _nightly(value: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.nightly)
