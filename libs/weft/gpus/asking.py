"""Reads many values of one GPU, of which any may be missing or fail, and sums up the problem at the end."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from weft.gpus.nvml import (
    INSUFFICIENT_SIZE,
    NvmlError,
    available,
    code_of,
    means_gone,
    means_missing,
)

T = TypeVar("T")

GONE_MAX: Final = 3
"""After this many functions that say that the GPU is gone, the driver is asked no more: each call may take long."""


class Asker:
    """One reading of one GPU. `errors`: the error of each function that failed, by its name."""

    def __init__(self) -> None:
        self.errors: dict[str, str] = {}
        self._gone: dict[str, str] = {}
        self._strange: dict[str, str] = {}

    @property
    def problem(self) -> str:
        """Empty: the GPU is well. An unexpected error of one function is that function's quirk; two are a problem."""
        if self._gone:
            return next(iter(self._gone.values()))
        return next(iter(self._strange.values())) if len(self._strange) > 1 else ""

    def ask(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """The driver's answer; None if it has no such value, or failed."""
        if len(self._gone) >= GONE_MAX:
            return None
        try:
            return function(*arguments)
        except (NvmlError, UnicodeDecodeError) as error:
            self._note(function, error)
            return None

    def number(self, function: Callable[..., int], *arguments: Any) -> int | None:
        return available(self.ask(function, *arguments))

    def ask_list(
        self, function: Callable[..., Sequence[T]], *arguments: Any, empty: frozenset[int] = frozenset()
    ) -> Sequence[T] | None:
        """As `ask`; the errors `empty` mean an empty list, and a list that grew meanwhile is read once more."""
        if len(self._gone) >= GONE_MAX:
            return None
        for last in (False, True):
            try:
                return function(*arguments)
            except NvmlError as error:
                if code_of(error) in empty:
                    return ()
                if code_of(error) != INSUFFICIENT_SIZE or last:
                    self._note(function, error)
                    return None
        return None

    def _note(self, function: Callable[..., object], error: Exception) -> None:
        name, said = function.__name__, str(error)
        self.errors[name] = said
        if means_gone(error):
            self._gone.setdefault(name, said)
        elif not means_missing(error):
            self._strange[name] = said
