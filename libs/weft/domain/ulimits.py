"""The resource limits of one process that a job may set: a few of the kernel's RLIMIT_…, soft and hard the same."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from weft.domain.quantity import SIZE_PATTERN, size_bytes, size_text

UNLIMITED = "unlimited"
NO_LIMIT = -1
"""`unlimited`, as a number."""

COUNT_MAX = 10**9
BYTES_MAX = 10**15
COUNT_PATTERN = rf"^{UNLIMITED}$(?!\n)"
BYTES_PATTERN = rf"^{UNLIMITED}$(?!\n)|{SIZE_PATTERN}"
PATTERN_WORDS = {
    COUNT_PATTERN: f"expected a whole number or {UNLIMITED}",
    BYTES_PATTERN: f"expected a size such as 64MiB, 0 or {UNLIMITED}",
}

Count = Annotated[int, Meta(ge=1, le=COUNT_MAX)] | Annotated[str, Meta(pattern=COUNT_PATTERN)]
Files = Annotated[int, Meta(ge=64, le=COUNT_MAX)] | Annotated[str, Meta(pattern=COUNT_PATTERN)]
Bytes = Annotated[int, Meta(ge=0, le=BYTES_MAX)] | Annotated[str, Meta(pattern=BYTES_PATTERN)]


class Ulimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits of each process of a run, as `ulimit` has them, soft and hard; what is not set is as the node has it."""

    core: Bytes | None = None
    memlock: Bytes | None = None
    nofile: Files | None = None
    nproc: Count | None = None
    stack: Bytes | None = None

    def __post_init__(self) -> None:
        for name, number in self.numbers.items():
            if number > BYTES_MAX:
                raise ValueError(f"{name} {getattr(self, name)} is more than {BYTES_MAX}: use {UNLIMITED}")

    @property
    def numbers(self) -> dict[str, int]:
        """Those that are set, in bytes or as a count; NO_LIMIT for `unlimited`."""
        said = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: _number(value) for name, value in said.items() if value is not None}


def ulimits_of(said: Mapping[str, int | str]) -> dict[str, int]:
    """The numbers of limits that an operator has written. Raises ValueError, which names the limit."""
    try:
        return msgspec.convert(dict(said), Ulimits).numbers
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def ulimit_text(name: str, number: int) -> str:
    """A limit as a person writes it."""
    if number == NO_LIMIT:
        return UNLIMITED
    return str(number) if name in ("nofile", "nproc") else size_text(number)


def is_beyond(number: int, bound: int) -> bool:
    """True if a limit is more than a bound; either may be NO_LIMIT."""
    return bound != NO_LIMIT and (number == NO_LIMIT or number > bound)


def _number(value: int | str) -> int:
    if isinstance(value, int):
        return value
    return NO_LIMIT if value == UNLIMITED else size_bytes(value)
