"""One mutant as data."""

from msgspec import Struct


class Mutant(Struct, frozen=True, kw_only=True):
    """`old` occurs once in the file at `path` and is replaced by `new`.

    `breaks`: the promise that the change breaks, as a sentence about the mutated product. `tests`: the test files or
    test ids of which at least one must fail then.
    """

    path: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]
