"""The job on each GPU over time: a row for each GPU, or, of a large cluster, how full each node was."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from msgspec import Struct
from numpy.typing import NDArray

from weft.domain.text import plural
from weft.simulator.metrics import makespan_s
from weft.simulator.outcome import Gpu, Outcome, Spell
from weft.simulator.report.compared import significant, span_text
from weft.simulator.report.look import (
    ALARM,
    BUSY,
    IDLE,
    INK,
    JOBS,
    SLOW,
    Shown,
    above,
    axis_unit,
    time_axis,
    title,
)
from weft.simulator.workload import MOST_SENSITIVE

ROWS_MAX = 256  # GPUs with a row each
COLUMNS = 700  # of the heat map
MARKS_MAX = 1500  # more of them would hide what they mark
SLOW_FROM = 1.15  # a score from which on a GPU is pointed at
POINTED_AT_MAX = 8

Scores = Mapping[str, tuple[float, ...]]


class Mark(Struct, frozen=True):
    """The time and the GPU at which a job was moved, or lost its GPUs and waited."""

    at_s: float
    gpu: Gpu


def inches(outcome: Outcome) -> float:
    """How high the chart should be."""
    gpus = outcome.nodes * outcome.gpus_per_node
    rows = gpus if gpus <= ROWS_MAX else outcome.nodes
    return min(9.0, max(1.6, 0.085 * rows)) if gpus <= ROWS_MAX else min(7.0, max(3.5, 0.02 * rows))


def gantt(axes: Axes, run: Shown, scores: Scores, *, span_s: float) -> None:
    """`span_s`: how much time the axis has, from the first arrival on."""
    outcome = run.outcome
    if not outcome.spells:
        title(axes, run.label, "this run kept no spells, so there is nothing to draw")
        axes.axis("off")
        return
    found = run.metrics
    says = f"{run.label}: {span_text(found.makespan_s)} until the last completion, "
    title(axes, says + f"{plural(found.moves, 'move')}, {plural(found.evictions, 'eviction')}", _legend_line(outcome))
    begin = min(job.arrival_s for job in outcome.jobs)
    end = begin + span_s
    if outcome.nodes * outcome.gpus_per_node <= ROWS_MAX:
        _rows(axes, outcome, begin, end)
        per_row, row_scores = 1, _scores(scores, outcome)
    else:
        _heat(axes, outcome, begin, end)
        per_row = outcome.gpus_per_node
        row_scores = _by_node(_scores(scores, outcome), per_row)
    time_axis(axes, begin, end, axis_unit(end - begin), until=begin + found.makespan_s)
    if row_scores is not None:
        _strip(axes, row_scores, outcome, per_row, _class_of(scores))


# a row for each GPU


def _rows(axes: Axes, outcome: Outcome, begin: float, end: float) -> None:
    unit = axis_unit(end - begin).size
    gpus = outcome.nodes * outcome.gpus_per_node
    axes.axvspan(0, makespan_s(outcome) / unit, color=IDLE, linewidth=0, zorder=0)
    boxes, colours, pauses = [], [], []
    colour_of = job_colours(outcome)
    for spell in outcome.spells:
        left, right = (spell.begin_s - begin) / unit, (spell.end_s - begin) / unit
        paused = left + min(spell.paused_s, spell.end_s - spell.begin_s) / unit
        for top, bottom in _blocks(spell.gpus, outcome.gpus_per_node):
            boxes.append(_box(left, right, top, bottom))
            colours.append(colour_of[spell.job])
            if spell.paused_s > 0:
                pauses.append(_box(left, paused, top, bottom))
    edge = {"edgecolors": "white", "linewidths": 0.35} if len(boxes) < 6000 else {"edgecolors": "none"}
    axes.add_collection(PolyCollection(boxes, facecolors=colours, zorder=2, **edge), autolim=False)
    if pauses:
        axes.add_collection(PolyCollection(pauses, facecolors="#4A4A4A", edgecolors="none", zorder=3), autolim=False)
    moved, evicted = changes(outcome)
    if len(moved) + len(evicted) <= MARKS_MAX:
        size = 16 if len(moved) + len(evicted) <= 300 else 7
        for marks, shape, width in ((moved, "D", 0.0), (evicted, "x", 1.1)):
            xs = [(mark.at_s - begin) / unit for mark in marks]
            ys = [mark.gpu[0] * outcome.gpus_per_node + mark.gpu[1] + 0.5 for mark in marks]
            axes.scatter(xs, ys, s=size, c=INK, marker=shape, linewidths=width, zorder=5)
    for node in range(1, outcome.nodes):
        axes.axhline(node * outcome.gpus_per_node, color="white", linewidth=1.2, zorder=4)
    axes.set_ylim(gpus, 0)
    _node_ticks(axes, outcome, outcome.gpus_per_node)
    _legend(axes, moved=bool(moved), evicted=bool(evicted), paused=bool(pauses))


def job_colours(outcome: Outcome) -> dict[int, str]:
    """Each job gets the colour whose jobs end first, so that neighbours differ, if possible."""
    over = dict.fromkeys(JOBS, -math.inf)
    colours: dict[int, str] = {}
    for spell in outcome.spells:
        if spell.job not in colours:
            colour = min(JOBS, key=lambda each: over[each])
            colours[spell.job] = colour
            over[colour] = max(over[colour], outcome.jobs[spell.job].completed_s)
    return colours


def _blocks(gpus: Sequence[Gpu], per_node: int) -> Iterator[tuple[float, float]]:
    """Merge GPUs that lie side by side in one node."""
    rows = sorted(node * per_node + index for node, index in gpus)
    together = groupby(enumerate(rows), key=lambda each: (each[1] - each[0], each[1] // per_node))
    for _, group in together:
        block = [row for _, row in group]
        yield block[0] + 0.06, block[-1] + 0.94


def _box(left: float, right: float, top: float, bottom: float) -> list[tuple[float, float]]:
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def changes(outcome: Outcome) -> tuple[list[Mark], list[Mark]]:
    """The places to which jobs moved, and the places from which they were evicted."""
    moved: list[Mark] = []
    evicted: list[Mark] = []
    last: dict[int, Spell] = {}
    for spell in outcome.spells:
        before = last.get(spell.job)
        if before is not None and spell.begin_s > before.end_s:
            evicted += [Mark(before.end_s, gpu) for gpu in sorted(before.gpus)[:1]]
        elif before is not None and spell.gpus != before.gpus and spell.replicas == before.replicas:
            moved += [Mark(spell.begin_s, gpu) for gpu in sorted(spell.gpus)[:1]]
        last[spell.job] = spell
    return moved, evicted


def _legend_line(outcome: Outcome) -> str:
    if outcome.nodes * outcome.gpus_per_node > ROWS_MAX:
        return "how many GPUs of each node are held, over time; a row is a node"
    return "a row is a GPU, a colour a job, grey an idle GPU"


def _legend(axes: Axes, *, moved: bool, evicted: bool, paused: bool) -> None:
    marks = [
        (moved, Line2D([], [], color=INK, marker="D", markersize=4, linestyle="none", label="moved here")),
        (evicted, Line2D([], [], color=INK, marker="x", markersize=5, linestyle="none", label="evicted")),
        (paused, Patch(facecolor="#4A4A4A", label="starts or moves: no work done")),
    ]
    handles = [handle for there, handle in marks if there]
    if handles:
        axes.legend(
            handles=handles, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(handles), frameon=False,
            fontsize=8.5, handletextpad=0.3, borderaxespad=0.2, columnspacing=1.2,
        )  # fmt: skip


# a row for each node


def _heat(axes: Axes, outcome: Outcome, begin: float, end: float) -> None:
    until = begin + makespan_s(outcome)
    columns = max(1, round(COLUMNS * (until - begin) / max(end - begin, 1e-9)))
    unit = axis_unit(end - begin).size
    image = axes.imshow(
        occupancy(outcome, begin, until, columns), aspect="auto", cmap=BUSY, vmin=0, vmax=1, interpolation="nearest",
        extent=(0, (until - begin) / unit, outcome.nodes, 0),
    )  # fmt: skip
    _node_ticks(axes, outcome, 1)
    high = inches(outcome)
    beside = axes.inset_axes((0.82, 1 + 0.1 / high, 0.16, 0.1 / high))
    figure = axes.get_figure()
    assert figure is not None
    bar = figure.colorbar(image, cax=beside, orientation="horizontal", ticks=[0, 0.5, 1])
    bar.ax.set_xticklabels(["none held", "half", "all held"])
    bar.ax.tick_params(labelsize=7.5, length=0, pad=2)
    bar.ax.xaxis.set_ticks_position("top")
    bar.outline.set_visible(False)


def occupancy(outcome: Outcome, begin: float, end: float, columns: int) -> NDArray[np.float64]:
    """The part of each node's GPUs that is held, in the mean over each of equal parts of the time."""
    width = max((end - begin) / columns, 1e-12)
    rows = np.array([node for spell in outcome.spells for node, _ in spell.gpus], dtype=np.int64)
    counts = [len(spell.gpus) for spell in outcome.spells]
    held = np.zeros((outcome.nodes, columns + 2))
    for sign, times in ((1.0, [s.begin_s for s in outcome.spells]), (-1.0, [s.end_s for s in outcome.spells])):
        at = np.clip((np.repeat(np.array(times), counts) - begin) / width, 0, columns)
        first = at.astype(np.int64)
        # From within its first column on: the rest of that one, and all of those after it.
        np.add.at(held, (rows, first), sign * (first + 1 - at))
        np.add.at(held, (rows, first + 1), sign * (at - first))
    filled: NDArray[np.float64] = np.cumsum(held, axis=1)[:, :columns] / outcome.gpus_per_node
    return np.clip(filled, 0, 1)


# how fast each GPU is


def _scores(scores: Scores, outcome: Outcome) -> NDArray[np.float64] | None:
    gpus = outcome.nodes * outcome.gpus_per_node
    if not scores or len(scores[_class_of(scores)]) < gpus:
        return None
    return np.array(scores[_class_of(scores)][:gpus])


def _class_of(scores: Scores) -> str:
    return MOST_SENSITIVE if MOST_SENSITIVE in scores else min(scores, default="")


def _by_node(scores: NDArray[np.float64] | None, per_node: int) -> NDArray[np.float64] | None:
    """A node is as slow as its slowest GPU."""
    return None if scores is None else scores.reshape(-1, per_node).max(axis=1)


def _strip(axes: Axes, scores: NDArray[np.float64], outcome: Outcome, per_row: int, job_class: str) -> None:
    """A bar at the right with a colour for each row's score, and the slowest named beside it."""
    beside = axes.inset_axes((1.006, 0, 0.012, 1))
    low, high = min(0.9, float(scores.min())), max(1.3, float(np.median(scores)) * 1.3)
    colours = ScalarMappable(Normalize(low, high, clip=True), SLOW).to_rgba(scores)
    beside.imshow(colours[:, None, :3], aspect="auto", interpolation="nearest", extent=(0, 1, len(scores), 0))
    beside.axis("off")
    above(axes, 1.006, f"score, class {job_class}", fontsize=7.5)
    taken: list[float] = []
    apart = len(scores) * 0.028 * max(1.0, 2.6 / inches(outcome) * 1.6)
    for row in np.argsort(-scores, kind="stable")[:POINTED_AT_MAX]:
        if scores[row] < SLOW_FROM or any(abs(row - other) < apart for other in taken):
            continue
        taken.append(float(row))
        where = (
            f"node {row}" if per_row > 1 else f"node {row // outcome.gpus_per_node}, GPU {row % outcome.gpus_per_node}"
        )
        beside.text(
            1.6, row + 0.5, f"×{significant(float(scores[row]))}  {where}",
            fontsize=8, color=ALARM, weight="bold", va="center", clip_on=False,
        )  # fmt: skip


def _node_ticks(axes: Axes, outcome: Outcome, rows_per_node: int) -> None:
    every = next(step for step in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if outcome.nodes / step <= 16.5)
    nodes = range(0, outcome.nodes, every)
    axes.set_yticks([(node + 0.5) * rows_per_node for node in nodes], [f"node {node}" for node in nodes])
    axes.tick_params(axis="y", labelsize=8)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
