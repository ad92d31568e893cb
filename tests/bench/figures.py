"""Figures as they are collected, and how they are printed."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

TITLE = "Weft on this machine"


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which `part` of them lie; nan for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


def milliseconds(values: Sequence[float]) -> str:
    return f"p50 {quantile(values, 0.5) * 1000:.1f} ms, p99 {quantile(values, 0.99) * 1000:.1f} ms"


class Figures:
    """One row for each thing measured: what, how much, and what was aimed at."""

    def __init__(self) -> None:
        self._table = Table(title=TITLE, title_justify="left")
        for column in ("what", "measured", "aim"):
            self._table.add_column(column, overflow="fold")
        self._console = Console(width=None)

    def add(self, what: str, measured: str, aim: str = "") -> None:
        self._table.add_row(what, measured, aim)
        self._console.print(f"{what}: {measured}" + (f"   (aim: {aim})" if aim else ""))

    def show(self) -> None:
        self._console.print(self._table)
