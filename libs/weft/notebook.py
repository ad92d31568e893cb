"""Jobs and sweeps in a notebook: tables in HTML, and a display that changes while a call waits.

Nothing imports IPython: in a notebook its kernel has done that. A terminal, a script and IPython without a kernel show
nothing that changes.
"""

import html
import importlib
import sys
from collections.abc import Callable
from typing import Any, Protocol

from weft.messages.http import JobView
from weft.messages.sweeps import SweepRow, SweepView

SPARK_WIDTH, SPARK_HEIGHT = 120, 24
ROWS_MAX = 100


class Shown(Protocol):
    """An object that a notebook shows."""

    def _repr_html_(self) -> str: ...


class Live:
    """A display of one object, drawn again as it changes. `refresh` asks for its present state, and may fail."""

    def __init__(self, what: Shown, refresh: Callable[[], object], handle: Any, *, seconds: float) -> None:
        self.seconds = seconds
        self._what, self._refresh, self._handle = what, refresh, handle
        self._drawn = what._repr_html_()

    def again(self, *, failures: tuple[type[Exception], ...]) -> None:
        """Ask, and draw what has changed. The call that waits reports a failure itself."""
        try:
            self._refresh()
        except failures:
            return
        self.draw()

    def draw(self) -> None:
        drawn = self._what._repr_html_()
        if drawn != self._drawn:
            self._drawn = drawn
            self._handle.update(self._what)


def live(what: Shown, refresh: Callable[[], object], *, seconds: float) -> Live | None:
    """Show the object in the notebook whose cell runs; None where no notebook runs."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    display = importlib.import_module("IPython.display").display  # the kernel has loaded it
    return Live(what, refresh, display(what, display_id=True), seconds=seconds)


def job_html(name: str, job_id: str, state: str, view: JobView | None) -> str:
    """A job as a row, with a bar if it reports how many steps it has."""
    progress = {} if view is None else dict(view.progress)
    numbers = ", ".join(f"{one} {value:g}" for one, value in progress.items())
    cells = {
        "job": html.escape(name),
        "id": html.escape(job_id),
        "state": html.escape(state),
        "nodes": html.escape("" if view is None else ", ".join(view.nodes)),
        "progress": f"{_bar(progress)}{html.escape(numbers)}",
    }
    return _table(list(cells), [list(cells.values())])


def study_html(name: str, study_id: str, view: SweepView | None) -> str:
    """A sweep as a table: each element with its values, its best and last metric, and its curve. The best is bold."""
    title = f"<p><b>{html.escape(name)}</b> <code>{html.escape(study_id)}</code></p>"
    if view is None:
        return title
    best, metric = view.best(), view.metric or "metric"
    names = list(dict.fromkeys(one for row in view.rows for one in row.values))
    heads = [html.escape(one) for one in ("#", *names, "state", f"best {metric}", f"last {metric}", "curve")]
    rows = [_row(row, names, bold=best is not None and row.index == best.index) for row in view.rows[:ROWS_MAX]]
    over = sum(row.state.final for row in view.rows)
    more = f"<p>{over} of {len(view.rows)} over{', and there are more' if view.next else ''}</p>"
    return title + _table(heads, rows) + more


def _row(row: SweepRow, names: list[str], *, bold: bool) -> list[str]:
    texts = [str(row.index), *(row.values.get(name, "") for name in names), str(row.state), _number(row.best)]
    cells = [html.escape(text) for text in (*texts, _number(row.last))]
    return [*(f"<b>{cell}</b>" if bold else cell for cell in cells), _spark(row.curve)]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _bar(progress: dict[str, float]) -> str:
    step, steps = progress.get("step"), progress.get("steps")
    if step is None or not steps or not 0 <= step <= steps:
        return ""
    return f'<progress value="{step:g}" max="{steps:g}"></progress> '


def _spark(curve: tuple[float, ...]) -> str:
    if len(curve) < 2:
        return ""
    low, high = min(curve), max(curve)
    scale, wide = (SPARK_HEIGHT - 2) / (high - low or 1.0), SPARK_WIDTH / (len(curve) - 1)
    places = [(place * wide, SPARK_HEIGHT - 1 - (value - low) * scale) for place, value in enumerate(curve)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return (
        f'<svg width="{SPARK_WIDTH}" height="{SPARK_HEIGHT}" role="img" aria-label="{low:g} to {high:g}">'
        f'<polyline points="{points}" fill="none" stroke="currentColor"/></svg>'
    )


def _table(heads: list[str], rows: list[list[str]]) -> str:
    """A table of cells that are HTML already."""
    head = "".join(f"<th>{one}</th>" for one in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
