"""The whole report as one PNG."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from libs.simulator.outcome import Outcome
from libs.simulator.report import charts
from libs.simulator.report.compared import (
    COLUMNS,
    Contender,
    best_of,
    cell,
    finding,
    ratio,
    ratio_text,
    runs_of,
    settings_text,
    subject,
    unit_of,
    verdict,
    worth_showing,
)
from libs.simulator.report.gantt import gantt, inches, longest
from libs.simulator.report.look import ALARM, CONTENDERS, FAINT, INK, LINES, STYLE, Shown, shown
from libs.simulator.report.sizes import is_elastic
from libs.simulator.report.stacked import HEIGHT, stacked

WIDTH = 15.0  # inches, as everything here
DPI = 110
EDGE, RIGHT = 0.95, 2.0  # what axes leave free at their sides for labels
CHART, GAP = 3.1, 1.2
ROW = 0.36
CURVES_MAX, GANTTS_MAX, TABLE_MAX = 7, 2, 24
VERDICTS = {"better": CONTENDERS[1], "worse": ALARM, "same": FAINT}


def picture_bytes(outcomes: Sequence[Outcome], scores: Mapping[str, tuple[float, ...]]) -> bytes:
    runs = runs_of(outcomes)
    curves = shown(worth_showing(runs, CURVES_MAX))
    gantts = worth_showing(curves, GANTTS_MAX)
    listed = worth_showing(runs, TABLE_MAX)
    with style.context(STYLE, after_reset=True):
        heights = [inches(run.outcome) for run in gantts]
        elastic = [run for run in gantts if is_elastic(run.outcome)]
        wides = [*heights, *(HEIGHT for _ in elastic)]
        height = 1.25 + ROW * (len(listed) + 2) + 2 * (CHART + GAP) + sum(each + GAP for each in wides) + 0.25
        sheet = _Sheet(height)
        _head(sheet, runs, hidden=len(runs) - len(curves))
        _table(sheet, listed, curves)
        for row in ((charts.jct, charts.speed_up), (charts.queue, charts.utilisation)):
            left, right = sheet.pair()
            row[0](left, curves)
            row[1](right, curves)
        for run, wanted in zip(gantts, heights, strict=True):
            gantt(sheet.wide(wanted), run, scores, span_s=longest(gantts))
        for run in elastic:
            stacked(sheet.wide(HEIGHT), run, span_s=longest(gantts))
        drawn = io.BytesIO()
        sheet.figure.savefig(drawn, format="png", dpi=DPI, metadata={"Software": None})
    return drawn.getvalue()


class _Sheet:
    """A figure that is filled from its top, in inches."""

    def __init__(self, height: float) -> None:
        self.figure = Figure(figsize=(WIDTH, height))
        self.height = height
        self.at = 0.0

    def text(self, x: float, down: float, text: str, **look: Any) -> None:
        self.figure.text(x / WIDTH, 1 - (self.at + down) / self.height, text, va="baseline", **look)

    def line(self, down: float) -> None:
        y = 1 - (self.at + down) / self.height
        self.figure.add_artist(_rule(self.figure, y))

    def pair(self) -> tuple[Axes, Axes]:
        self.at += GAP * 0.62
        half = (WIDTH - 2 * EDGE - 1.1) / 2 + 0.2
        made = self._axes(EDGE, half, CHART), self._axes(WIDTH - 0.5 - half, half, CHART)
        self.at += CHART + GAP * 0.38
        return made

    def wide(self, height: float) -> Axes:
        self.at += GAP * 0.62
        made = self._axes(EDGE, WIDTH - EDGE - RIGHT, height)
        self.at += height + GAP * 0.38
        return made

    def _axes(self, left: float, width: float, height: float) -> Axes:
        bottom = self.height - self.at - height
        return self.figure.add_axes((left / WIDTH, bottom / self.height, width / WIDTH, height / self.height))


def _rule(figure: Figure, y: float) -> Line2D:
    return Line2D([0.4 / WIDTH, 1 - 0.4 / WIDTH], [y, y], color=LINES, linewidth=1, transform=figure.transFigure)


def _head(sheet: _Sheet, runs: Sequence[Contender], *, hidden: int) -> None:
    sheet.text(0.4, 0.52, finding(runs), fontsize=17, weight="bold", color=INK)
    told = settings_text(runs)
    sheet.text(0.4, 0.82, subject(runs[0].outcome) + (f"; {told}" if told else ""), fontsize=10.5, color=FAINT)
    if hidden:
        sheet.text(
            0.4,
            1.02,
            f"the curves leave out {hidden} of {len(runs)} runs: neither the first nor among the best",
            fontsize=9,
            color=FAINT,
        )
    sheet.at = 1.25


def _table(sheet: _Sheet, runs: Sequence[Contender], curves: Sequence[Shown]) -> None:
    """A run is a row; below each number, its ratio to the first run's."""
    colours = {run.label: run.colour for run in curves}
    first, name_width = runs[0], 2.75
    units = [unit_of(column, runs) for column in COLUMNS]
    step = (WIDTH - 0.8 - name_width) / len(COLUMNS)
    for place, (column, unit) in enumerate(zip(COLUMNS, units, strict=True)):
        right = 0.4 + name_width + step * (place + 1)
        name, _, detail = column.title.partition(" ")
        for line, text in enumerate((name, detail, unit.name)):
            sheet.text(right, 0.02 + 0.15 * line, text, ha="right", fontsize=8.5 if line < 2 else 8, color=FAINT)
    sheet.line(0.41)
    sheet.at += 0.41
    for run in runs:
        if run.label in colours:
            sheet.text(0.4, 0.235, "●", fontsize=10, color=colours[run.label])
        sheet.text(0.62, 0.235, _cut(run.label, 38), fontsize=9.5, weight="bold" if run is best_of(runs) else "normal")
        for place, (column, unit) in enumerate(zip(COLUMNS, units, strict=True)):
            right = 0.4 + name_width + step * (place + 1)
            against = None if run is first else ratio(column, run, first)
            sheet.text(right, 0.17 if against is not None else 0.235, cell(column, run, unit), ha="right", fontsize=9.5)
            if against is not None:
                sheet.text(
                    right,
                    0.3,
                    ratio_text(against),
                    ha="right",
                    fontsize=7.5,
                    color=VERDICTS[verdict(column.better, against)],
                )
        sheet.at += ROW
        sheet.line(0.0)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
