"""A stacked chart of the allocations of each job over time, for the resource that is used most."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from weft.simulator.outcome import Outcome
from weft.simulator.report.gantt import job_colours
from weft.simulator.report.look import INK, Shown, axis_unit, time_axis, title
from weft.simulator.sized import each_of, sizes_over_time

RESOURCES = ("GPUs", "CPU cores", "memory")
HEIGHT = 3.4  # inches
POINTS_MAX = 4000  # moments that are drawn
GIB = 1 << 30


def stacked(axes: Axes, run: Shown, *, span_s: float) -> None:
    """`span_s`: how much time the axis has, from the first arrival on."""
    outcome = run.outcome
    k = fullest(outcome)
    unit_of_it = GIB if RESOURCES[k] == "memory" else 1
    begin = min(job.arrival_s for job in outcome.jobs)
    unit = axis_unit(span_s)
    times, held = amounts(outcome, k)
    held /= unit_of_it
    resizes = sum(job.resizes for job in outcome.jobs)
    says = f"{resizes:,} changes of size" if outcome.partitions else "each job has the size that it asks for"
    name = "memory in GiB" if unit_of_it > 1 else RESOURCES[k]
    title(
        axes, f"{run.label}: {says}", f"{name} that each job holds; a colour is a job, the line is all that there are"
    )
    colours = job_colours(outcome)
    at = (np.repeat(times, 2)[1:] - begin) / unit.size
    below = np.zeros(len(at))
    whole = outcome.amounts[k] / unit_of_it or float(held.sum(axis=0).max(initial=1.0))
    for number in sorted({spell.job for spell in outcome.spells}, key=lambda number: _first(outcome, number)):
        there = np.repeat(held[number], 2)[:-1]
        shown = there > 0
        if shown.any():
            axes.fill_between(
                at, below, below + there, where=_wider(shown), color=colours[number], linewidth=0.3, edgecolor="white"
            )
        below = below + there
    axes.axhline(whole, color=INK, linewidth=0.9)
    axes.set_ylim(0, whole * 1.04)
    axes.set_ylabel(name)
    time_axis(axes, begin, begin + span_s, unit)


def fullest(outcome: Outcome) -> int:
    """The resource of which jobs hold the largest part, over all of the time."""
    parts = []
    for k, whole in enumerate(outcome.amounts):
        held = sum(
            (spell.end_s - spell.begin_s) * spell.replicas * each_of(outcome.jobs[spell.job])[k]
            for spell in outcome.spells
        )
        parts.append(held / whole if whole else 0.0)
    return parts.index(max(parts))


def amounts(outcome: Outcome, k: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The times of changes, and for each job its amount of the resource from each time on."""
    steps = _thinned(sizes_over_time(outcome))
    held = np.zeros((len(outcome.jobs), len(steps)))
    for column, (_, sizes) in enumerate(steps):
        for number, size in sizes.items():
            held[number, column] = size * each_of(outcome.jobs[number])[k]
    return np.array([at for at, _ in steps]), held


def _thinned(steps: Sequence[tuple[float, Mapping[int, int]]]) -> Sequence[tuple[float, Mapping[int, int]]]:
    if len(steps) <= POINTS_MAX:
        return steps
    return [steps[at] for at in np.linspace(0, len(steps) - 1, POINTS_MAX).round().astype(int)]


def _first(outcome: Outcome, number: int) -> float:
    return outcome.jobs[number].started_s


def _wider(shown: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Points with their neighbours outside the visible range, so that the sides of a band are drawn."""
    return shown | np.roll(shown, 1) | np.roll(shown, -1)
