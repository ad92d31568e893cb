"""Figures as they are collected, and how they are printed."""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table

TITLE = "Weft on this machine"


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which `part` of them lie; nan for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


def milliseconds(values: Sequence[float]) -> str:
    return f"p50 {quantile(values, 0.5) * 1000:.1f} ms, p99 {quantile(values, 0.99) * 1000:.1f} ms"


class Aim(Struct, frozen=True, kw_only=True):
    """A measured value and its bound: the most that it may be, or with `at_least` the least."""

    value: float
    aim: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.aim if self.at_least else self.value <= self.aim

    def shown(self) -> dict[str, float | bool]:
        return {"value": self.value, "aim": self.aim, "met": self.met}


def line_of(aims: Mapping[str, Aim], *, seed: int) -> str:
    """The last line of a run, for programs."""
    return msgspec.json.encode({"aims": {name: aim.shown() for name, aim in aims.items()}, "seed": seed}).decode()


class Figures:
    """One row for each thing measured: what, how much, and what was aimed at."""

    def __init__(self) -> None:
        self._table = Table(title=TITLE, title_justify="left")
        for column in ("what", "measured", "aim"):
            self._table.add_column(column, overflow="fold")
        self._console = Console(width=None)
        self._aims: dict[str, Aim] = {}

    def add(self, what: str, measured: str, aim: str = "") -> None:
        self._table.add_row(what, measured, aim)
        self._console.print(f"{what}: {measured}" + (f"   (aim: {aim})" if aim else ""))

    def aim(self, name: str, value: float, aim: float, *, at_least: bool = False) -> None:
        self._aims[name] = Aim(value=round(value, 2), aim=aim, at_least=at_least)

    def show(self) -> None:
        """The table; and where values were held against aims, those as a last line of JSON."""
        self._console.print(self._table)
        if self._aims:
            print(line_of(self._aims, seed=0))  # nothing here is drawn
