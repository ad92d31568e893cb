"""Sweeps: a table of values, a row for each element of an array: every combination, or a sample of them from a seed."""

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from weft.domain.arrays import ELEMENTS_MAX

SWEPT_MAX = 32
VALUES_MAX = 10_000
VALUE_CHARACTERS_MAX = 1000
SWEEP_NAME_PATTERN = r"^[A-Za-z][A-Za-z0-9_]{0,62}$(?!\n)"
_NUMBERS = re.compile(r"(-?[0-9]{1,12})\.\.(-?[0-9]{1,12})(?::([0-9]{1,12}))?")

SweepName = Annotated[str, Meta(pattern=SWEEP_NAME_PATTERN)]


class Span(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Any number from `min` to `max`; `log`: as likely in each power of ten. For a sample only."""

    min: float
    max: float
    log: bool = False


Value: TypeAlias = bool | int | float | Annotated[str, Meta(max_length=VALUE_CHARACTERS_MAX)]
SweepValues: TypeAlias = (
    Annotated[tuple[Value, ...], Meta(min_length=1, max_length=VALUES_MAX, description="The values.")]
    | Annotated[str, Meta(max_length=40, description="Whole numbers, both ends among them: `1..5`, `0..100:10`.")]
    | Span
)


class Sample(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """So many rows drawn at random, each value by itself; the same seed draws the same."""

    count: Annotated[int, Meta(ge=1, le=ELEMENTS_MAX)]
    seed: Annotated[int, Meta(ge=0, lt=2**53)] = 0


class RungReached(Struct, frozen=True, kw_only=True):
    """What an element of an array reported at a rung: the step of a comparison, counted from 0. docs/arrays.md."""

    array: str
    job_id: str
    rung: int
    value: float


class SweepError(ValueError):
    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field, self.reason = field, reason


def check_sweep(sweep: Mapping[str, SweepValues], sample: Sample | None) -> None:
    """Raises SweepError. Whether the table has too many rows is known before it is made."""
    names: dict[str, str] = {}
    rows = 1
    for name, values in sweep.items():
        field = f"sweep.{name}"
        if (other := names.setdefault(name.upper(), name)) != name:
            raise SweepError(field, f"{other} has the same variable, WEFT_SWEEP_{name.upper()}")
        if isinstance(values, Span):
            _check_span(field, values, sample)
        else:
            rows *= len(_listed(field, values))
        if sample is None and rows > ELEMENTS_MAX:
            raise SweepError("sweep", f"has more than {ELEMENTS_MAX} combinations; set `sample` to draw some of them")


def _check_span(field: str, span: Span, sample: Sample | None) -> None:
    if sample is None:
        raise SweepError(field, "a range from min to max has infinitely many values: set `sample`, or list the values")
    if not (math.isfinite(span.min) and math.isfinite(span.max) and span.min < span.max):
        raise SweepError(field, f"expected min below max, not {span.min} and {span.max}")
    if span.log and span.min <= 0:
        raise SweepError(field, f"log needs a min above 0, not {span.min}")
    if not math.isfinite(span.max - span.min):
        raise SweepError(field, "is too wide")


def _listed(field: str, values: "tuple[Value, ...] | str") -> "tuple[Value, ...] | range":
    if not isinstance(values, str):
        if any(isinstance(value, float) and not math.isfinite(value) for value in values):
            raise SweepError(field, "expected finite numbers")
        return values
    matched = _NUMBERS.fullmatch(values)
    if matched is None:
        raise SweepError(field, f"expected a list, or whole numbers such as 1..5, not {values[:40]!r}")
    numbers = range(int(matched[1]), int(matched[2]) + 1, max(1, int(matched[3] or 1)))
    if matched[3] is not None and int(matched[3]) < 1:
        raise SweepError(field, f"{values}: the step must be 1 or more")
    if int(matched[2]) - int(matched[1]) >= 2**62 or not 1 <= len(numbers) <= VALUES_MAX:
        raise SweepError(field, f"{values} has {len(numbers)} values: expected 1 to {VALUES_MAX}")
    return numbers


def rows_of(sweep: Mapping[str, SweepValues], sample: Sample | None) -> list[dict[str, str]]:
    """The table: the text of each value by its name, for each element. Of all combinations the last name changes
    fastest. The sweep was checked."""
    if sample is not None:
        return [
            {name: text_of(_drawn(values, f"{sample.seed}/{index}/{name}")) for name, values in sweep.items()}
            for index in range(sample.count)
        ]
    rows: list[dict[str, str]] = [{}]
    for name, values in sweep.items():
        assert not isinstance(values, Span), "it was checked"
        rows = [{**row, name: text_of(value)} for row in rows for value in _listed(name, values)]
    return rows


def _drawn(values: SweepValues, key: str) -> Value:
    """A value by chance, which the key decides."""
    part = int.from_bytes(hashlib.sha256(key.encode()).digest()[:6]) / 2**48
    if not isinstance(values, Span):
        listed = _listed("", values)
        return listed[int(part * len(listed))]
    if values.log:
        return math.exp(math.log(values.min) + part * (math.log(values.max) - math.log(values.min)))
    return values.min + part * (values.max - values.min)


def text_of(value: Value) -> str:
    """A value as an argument of a command."""
    return str(value).lower() if isinstance(value, bool) else str(value)
