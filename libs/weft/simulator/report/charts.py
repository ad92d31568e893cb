"""The four curves: durations of jobs, waiting jobs, held GPUs, and speed-up against the first run."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray

from weft.simulator.metrics import Steps, jct_cdf, makespan_s, mean_over_time, queue_over_time, utilisation_over_time
from weft.simulator.report.compared import best_of, change, same_jobs, significant, span_text
from weft.simulator.report.crop import span_shown
from weft.simulator.report.look import CONTENDERS, FAINT, INK, Shown, axis_unit, grid, log_time_axis, time_axis, title

POINTS_MAX = 1500  # of one curve: more than a screen can show
DOTS_MAX = 4000
BINS = 180  # of a curve that is drawn as means

Curve = tuple[NDArray[np.float64], NDArray[np.float64]]
NO_SPELLS = "this run kept no spells, so there is nothing to draw"


def jct(axes: Axes, runs: Sequence[Shown]) -> None:
    first, best = runs[0], _best(runs)
    found = first.metrics
    says = f"Half of the jobs complete within {change(found.jct_p50_s, best.metrics.jct_p50_s)}"
    if best is first:
        half, most = span_text(found.jct_p50_s), span_text(found.jct_p99_s)
        says = f"Half of the jobs complete within {half}, 99 % within {most}"
    title(axes, says, "part of the jobs by job completion time (JCT: arrival to completion); a dot: the mean")
    for run in runs:
        xs, ys = _thin(jct_cdf(run.outcome))
        axes.plot(np.maximum(xs, 1e-3), ys, drawstyle="steps-post", label=run.label, **run.line)
        mean = run.metrics.jct_mean_s
        axes.plot(
            [max(mean, 1e-3)], [_part_within(run, mean)], "o", color=run.colour, markersize=6, mec="white", zorder=6
        )
    every = [job.jct_s for run in runs for job in run.outcome.jobs]
    log_time_axis(axes, min(every), max(every) * 1.05)
    axes.set_xlabel("job completion time")
    axes.set_ylabel("jobs")
    axes.set_ylim(0, 1.005)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    grid(axes, "both")
    axes.legend(loc="best", frameon=True, framealpha=0.9, edgecolor="none", fontsize=8.5, handlelength=2.6)


def queue(axes: Axes, runs: Sequence[Shown]) -> None:
    curves = [(run, queue_over_time(run.outcome)) for run in runs]
    means = {run.label: mean_over_time(curve) for run, curve in curves if curve}
    title(axes, f"Jobs that wait: {_from_to(runs, means)} on average", "jobs that have arrived and hold no GPUs")
    _over_time(axes, [(run, curve) for run, curve in curves if curve])
    axes.set_ylabel("jobs waiting")
    axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))


def utilisation(axes: Axes, runs: Sequence[Shown]) -> None:
    means = {
        run.label: 100 * run.metrics.utilisation_allocated
        for run in runs
        if run.metrics.utilisation_allocated is not None
    }
    title(
        axes, f"GPUs held: {_from_to(runs, means, ' %')} until the last completion", "part of the GPUs that jobs hold"
    )
    _over_time(axes, [(run, curve) for run in runs if (curve := utilisation_over_time(run.outcome))], smooth=True)
    axes.set_ylabel("GPUs held")
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def speed_up(axes: Axes, runs: Sequence[Shown]) -> None:
    """Ratio of each job to the first run, sorted: the number of faster jobs, and the loss of the others.

    Where there is nothing to compare with, how much each job of the first run was slowed.
    """
    first = runs[0]
    others = [run for run in runs[1:] if same_jobs(first.outcome, run.outcome)]
    if not others:
        slowdown(axes, first)
        return
    ups = {run.label: speed_ups(first, run) for run in others}
    best = min(others, key=lambda run: run.metrics.jct_mean_s)
    sooner, later = int((ups[best.label] > 1.0).sum()), int((ups[best.label] < 1.0).sum())
    title(
        axes,
        f"{sooner:,} jobs sooner, {later:,} later, {len(ups[best.label]) - sooner - later:,} as before",
        "the first run's JCT over that of the other; above 1 is sooner; counted: the best run",
    )
    for run in others:
        values = ups[run.label]
        at = np.linspace(0, len(values) - 1, min(len(values), POINTS_MAX)).round().astype(int)
        axes.plot((at + 0.5) / len(values), values[at], label=run.label, **run.line)
    low, high = min(values.min() for values in ups.values()), max(values.max() for values in ups.values())
    low, high = min(low / 1.15, 0.8), max(high * 1.15, 1.25)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.axhline(1.0, color=INK, linewidth=0.9)
    _times_axis(axes, low, high)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("jobs, from the one that lost the most to the one that gained the most")
    axes.set_ylabel("speed-up of the JCT")
    grid(axes)


def slowdown(axes: Axes, run: Shown) -> None:
    """The slowdown of jobs, by their own work."""
    jobs = sorted((job.work_s, job.jct_s / job.work_s) for job in run.outcome.jobs if job.work_s > 0)
    xs, ys = np.array(jobs or [(1.0, 1.0)]).T
    half, most = significant(float(np.median(ys))), significant(run.metrics.slowdown_p99)
    title(axes, f"Half of the jobs take ×{half} of their own work or less, 99 % ×{most}", "slowdown: JCT over own work")
    at = np.unique(np.linspace(0, len(xs) - 1, min(len(xs), DOTS_MAX)).round().astype(int))
    axes.scatter(xs[at], ys[at], s=14 if len(at) < 1000 else 5, c=CONTENDERS[1], alpha=0.55, linewidths=0)
    axes.axhline(1.0, color=INK, linewidth=0.9)
    axes.set_yscale("log")
    low, high = min(0.8, float(ys.min()) / 1.1), max(2.0, float(ys.max()) * 1.3)
    axes.set_ylim(low, high)
    _times_axis(axes, low, high)
    log_time_axis(axes, float(xs.min()) / 1.1, float(xs.max()) * 1.1)
    axes.set_xlabel("own work: what the job takes alone on typical GPUs")
    axes.set_ylabel("slowdown")
    grid(axes, "both")


def speed_ups(first: Shown, other: Shown) -> NDArray[np.float64]:
    """Ascending. A job that took no time in either run gained nothing."""
    before = {job.id: job.jct_s for job in first.outcome.jobs}
    pairs = ((before[job.id], job.jct_s) for job in other.outcome.jobs)
    return np.sort(np.array([max(then, 1e-3) / max(now, 1e-3) for then, now in pairs]))


def means_in_bins(curve: Steps, begin: float, end: float, bins: int) -> Curve:
    """The mean of a curve of steps in each of equal parts of the time, at its middle."""
    times, values = np.array(curve).T
    edges = np.linspace(begin, end, bins + 1)
    areas = np.concatenate(([0.0], np.cumsum(np.diff(times) * values[:-1])))
    means = np.diff(np.interp(edges, times, areas)) / max((end - begin) / bins, 1e-12)
    return (edges[:-1] + edges[1:]) / 2, means


def _over_time(axes: Axes, curves: Sequence[tuple[Shown, Steps]], *, smooth: bool = False) -> None:
    if not curves:
        axes.text(0.5, 0.5, NO_SPELLS, transform=axes.transAxes, ha="center", color=FAINT)
        return
    begin = min(job.arrival_s for run, _ in curves for job in run.outcome.jobs)
    end = begin + span_shown([run for run, _ in curves])
    last = begin + max(makespan_s(run.outcome) for run, _ in curves)
    unit = axis_unit(end - begin)
    for run, steps in curves:
        until = begin + makespan_s(run.outcome)
        curve = [*steps, (max(until, steps[-1][0]), steps[-1][1])]
        if smooth or len(curve) > POINTS_MAX:
            bins = max(8, round((until - begin) / max(end - begin, 1e-9) * BINS))
            xs, ys = means_in_bins(curve, begin, until, bins)
            axes.plot((xs - begin) / unit.size, ys, **run.line)
        else:
            times, values = np.array(curve).T
            axes.plot((times - begin) / unit.size, values, drawstyle="steps-post", **run.line)
        if smooth:
            axes.plot([(until - begin) / unit.size], [0], "|", color=run.colour, markersize=11, mew=2.2, clip_on=False)
    time_axis(axes, begin, end, unit, until=last)
    if smooth:
        axes.set_xlabel(f"{axes.get_xlabel()} ")
    grid(axes)


def _from_to(runs: Sequence[Shown], means: dict[str, float], unit: str = "") -> str:
    first, best = runs[0], _best(runs)
    if first.label not in means or best.label not in means:
        return "not known"
    before, after = (f"{significant(means[run.label])}{unit}" for run in (first, best))
    return before if best is first else f"{before} → {after}"


def _best(runs: Sequence[Shown]) -> Shown:
    label = best_of(runs).label
    return next(run for run in runs if run.label == label)


def _part_within(run: Shown, seconds: float) -> float:
    return sum(job.jct_s <= seconds for job in run.outcome.jobs) / len(run.outcome.jobs)


def _thin(curve: Steps) -> Curve:
    xs, ys = np.array(curve).T
    if len(xs) > POINTS_MAX:
        at = np.unique(np.linspace(0, len(xs) - 1, POINTS_MAX).round().astype(int))
        xs, ys = xs[at], ys[at]
    return np.concatenate((xs[:1], xs)), np.concatenate(([0.0], ys))


def _times_axis(axes: Axes, low: float, high: float) -> None:
    subs = (1.0, 2.0, 5.0) if high / low < 300 else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(10, subs=subs))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"×{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="y", which="minor", length=0)
