"""Arrays: one specification as many jobs, its elements, each with an index; and sweeps, arrays with a table of values.

Indices are text such as `0-9,12,20-40:5%8`: numbers, ranges and ranges with a step, and after `%` how many elements may
hold resources at once.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated

from msgspec import Meta, Struct

ELEMENTS_MAX = 10_000
INDEX_MAX = 999_999
INDICES_PATTERN = r"^[0-9,:%-]{1,1000}$(?!\n)"
ARRAY_PREFIX, JOB_PREFIX = "a-", "j-"

_PART = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7})(?::([0-9]{1,7}))?)?")
_ELEMENT = re.compile(r"(.+)_(?:([0-9]{1,6})|\[([0-9,:-]{1,1000})\])")

Indices = Annotated[
    str,
    Meta(
        pattern=INDICES_PATTERN,
        description="Indices of the elements, such as `0-9,12,20-40:5`, and after `%` how many may hold resources at"
        " once. With `sweep`: `%8` alone.",
    ),
]


class Element(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What makes a job an element of an array. `name`: of the array. `at_once`: how many elements may hold resources
    at once; None: all. The gateway sets it; no user does."""

    array: str
    name: str
    index: int
    at_once: int | None = None


class IndicesError(ValueError):
    """The text names no set of indices; the message says why."""


def indices_of(text: str) -> tuple[tuple[int, ...], int | None]:
    """The indices, from the lowest, and how many at once. Raises IndicesError."""
    ranges, percent, at_once = text.partition("%")
    if percent and not (at_once.isascii() and at_once.isdecimal() and 1 <= len(at_once) <= 6 and int(at_once) > 0):
        raise IndicesError(f"expected a number of 1 or more after %, not {at_once[:20]!r}")
    found: set[int] = set()
    for part in ranges.split(",") if ranges else ():
        span = _range_of(part)
        if len(found) + len(span) > ELEMENTS_MAX:
            raise IndicesError(f"an array has at most {ELEMENTS_MAX} elements")
        if found.intersection(span):
            raise IndicesError(f"index {min(found.intersection(span))} is named twice")
        found.update(span)
    return tuple(sorted(found)), int(at_once) if percent else None


def _range_of(part: str) -> range:
    matched = _PART.fullmatch(part)
    if matched is None:
        raise IndicesError(f"expected indices such as 3, 0-9 or 0-9:2, not {part[:40]!r}")
    first = int(matched[1])
    last = first if matched[2] is None else int(matched[2])
    step = 1 if matched[3] is None else int(matched[3])
    if last > INDEX_MAX:
        raise IndicesError(f"index {last} is more than {INDEX_MAX}")
    if last < first:
        raise IndicesError(f"{part} goes down: expected {last}-{first}")
    if step < 1:
        raise IndicesError(f"{part}: the step must be 1 or more")
    return range(first, last + 1, step)


def indices_text(indices: Sequence[int]) -> str:
    """The indices, sorted, as short text: `0-9,12`."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in _runs(indices))


def _runs(indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    begin = 0
    for at in range(1, len(indices) + 1):
        if at == len(indices) or indices[at] != indices[at - 1] + 1:
            yield indices[begin], indices[at - 1]
            begin = at


def element_id(array: str, index: int) -> str:
    """The id of an element's job: `a-k3f9` has `j-k3f9-7`."""
    return f"{JOB_PREFIX}{array.removeprefix(ARRAY_PREFIX)}-{index}"


def split_elements(text: str) -> tuple[str, tuple[int, ...] | None]:
    """`A_3` and `A_[1-3]` as the array and its indices; any other text is returned whole, with None.

    Raises IndicesError.
    """
    matched = _ELEMENT.fullmatch(text)
    if matched is None:
        return text, None
    indices, _ = indices_of(matched[2] or matched[3])
    if not indices:
        raise IndicesError("expected indices such as A_[0-9,12]")
    return matched[1], indices
