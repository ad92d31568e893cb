"""Compared runs: the label of each, the runs to show, and their numbers as a table. Pure."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from msgspec import Struct

from weft.domain.text import plural
from weft.simulator.metrics import Metrics, metrics
from weft.simulator.outcome import Outcome


class Contender(Struct, frozen=True):
    label: str
    outcome: Outcome
    metrics: Metrics


Kind = TypeVar("Kind", bound=Contender)


class Unit(Struct, frozen=True):
    name: str
    size: float = 1.0


class Column(Struct, frozen=True):
    """One number of each run. `better`: -1 if less is better, 1 if more is, 0 if neither is."""

    title: str
    value: Callable[[Metrics], float | None]
    kind: str = ""  # "time", "gpu time", "part" or nothing: a number
    better: int = -1


COLUMNS = (
    Column("waiting mean", lambda found: found.queueing_mean_s, "time"),
    Column("waiting p99", lambda found: found.queueing_p99_s, "time"),
    Column("slowdown p50", lambda found: found.slowdown_p50),
    Column("slowdown p99", lambda found: found.slowdown_p99),
    Column("unfair jobs", lambda found: found.unfair_part, "part"),
    Column("JCT p50", lambda found: found.jct_p50_s, "time"),
    Column("JCT p99", lambda found: found.jct_p99_s, "time"),
    Column("JCT mean", lambda found: found.jct_mean_s, "time"),
    Column("JCT geomean", lambda found: found.jct_geomean_s, "time"),
    Column("makespan", lambda found: found.makespan_s, "time"),
    Column("GPUs held", lambda found: found.utilisation_allocated, "part", 1),
    Column("GPUs used", lambda found: found.utilisation_used, "part", 1),
    Column("fairness loss", lambda found: found.fairness_loss),
    Column("moves", lambda found: found.moves, better=0),
    Column("evictions", lambda found: found.evictions, better=0),
    Column("lost", lambda found: found.lost_gpu_s, "gpu time"),
)

_TIMES = ((7200.0, Unit("h", 3600.0)), (600.0, Unit("min", 60.0)), (0.0, Unit("s")))


def runs_of(outcomes: Sequence[Outcome]) -> list[Contender]:
    labels = labels_of(outcomes)
    return [Contender(label, outcome, metrics(outcome)) for label, outcome in zip(labels, outcomes, strict=True)]


def labels_of(outcomes: Sequence[Outcome]) -> list[str]:
    """Labels by policy, with the settings in which runs of one policy differ."""
    several = len({outcome.workload for outcome in outcomes}) > 1
    told = sorted({name for outcome in outcomes for name in outcome.settings})
    differing = [name for name in told if len({outcome.settings.get(name) for outcome in outcomes}) > 1]
    policies = [outcome.policy for outcome in outcomes]
    labels: list[str] = []
    for outcome in outcomes:
        label = outcome.policy
        if several:
            label = f"{outcome.workload}: {label}"
        elif policies.count(outcome.policy) > 1:
            settings = [_setting(name, outcome.settings[name]) for name in differing if name in outcome.settings]
            label = ", ".join([label, *settings])
        labels.append(label)
    return [f"{label} ({labels[: place + 1].count(label)})" if label in labels[:place] else label
            for place, label in enumerate(labels)]  # fmt: skip


def best_of(runs: Sequence[Contender]) -> Contender:
    """The run with the shortest mean JCT; the first of equals."""
    return min(runs, key=lambda run: run.metrics.jct_mean_s)


def worth_showing(runs: Sequence[Kind], most: int) -> list[Kind]:
    """The first and the best of the others, in their own order."""
    best = sorted(runs[1:], key=lambda run: run.metrics.jct_mean_s)[: most - 1]
    return [run for run in runs if run is runs[0] or any(run is each for each in best)]


def same_jobs(one: Outcome, other: Outcome) -> bool:
    return {job.id for job in one.jobs} == {job.id for job in other.jobs}


# numbers


def time_unit(seconds: Iterable[float]) -> Unit:
    """The unit in which the largest of them reads well: a column has one unit. Hours stay hours, however many."""
    most = max(seconds, default=0.0)
    return next(unit for least, unit in _TIMES if most >= least)


def unit_of(column: Column, runs: Sequence[Contender]) -> Unit:
    values = [value for run in runs if (value := column.value(run.metrics)) is not None]
    match column.kind:
        case "time":
            return time_unit(values)
        case "gpu time":
            return Unit(f"GPU {time_unit(values).name}", time_unit(values).size)
        case "part":
            return Unit("%", 0.01)
        case _:
            return Unit("")


def cell(column: Column, run: Contender, unit: Unit) -> str:
    value = column.value(run.metrics)
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else significant(value / unit.size)


def ratio(column: Column, run: Contender, first: Contender) -> float | None:
    """The ratio to the first run; None if it has no meaning."""
    value, start = column.value(run.metrics), column.value(first.metrics)
    return None if value is None or not start or not column.better else value / start


def verdict(better: int, against: float) -> str:
    """The word for a ratio to the first run: `better`, `worse`, or `same` within half a percent."""
    gain = (against - 1.0) * better
    return "better" if gain > 0.005 else "worse" if gain < -0.005 else "same"


def ratio_text(value: float) -> str:
    return f"×{significant(value)}"


def significant(value: float) -> str:
    """Three digits, or all those before the point: `1,234`, `62.8`, `7.03`, `0.157`."""
    if value == 0:
        return "0"
    size = abs(value)
    digits = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    return f"{value:,.{digits}f}" if size >= 0.0005 else "<0.001"


def span_text(seconds: float) -> str:
    """`7.03 h`."""
    unit = time_unit([seconds])
    return f"{significant(seconds / unit.size)} {unit.name}"


# sentences


def finding(runs: Sequence[Contender]) -> str:
    """The result of the comparison, in one line."""
    first, best = runs[0], best_of(runs)
    slow, fast = significant(first.metrics.slowdown_p99), significant(best.metrics.slowdown_p99)
    before, after = first.metrics.queueing_mean_s, best.metrics.queueing_mean_s
    if best is first:
        waits = "" if before is None else f"jobs wait {span_text(before)} on average, "
        alone = f"{first.label}: {waits}99 % of them take ×{slow} of their own work or less"
        return alone if len(runs) == 1 else f"{alone}, and none of the other {len(runs) - 1} is better"
    waits = "" if before is None or after is None else f"Jobs wait {change(before, after)} on average, "
    return f"{waits}{'slowdown' if waits else 'Slowdown'} ×{slow} → ×{fast} (p99) with {best.label}"


def change(before_s: float, after_s: float) -> str:
    """`7.03 h → 1.05 h`, both in one unit."""
    unit = time_unit([before_s, after_s])
    return f"{significant(before_s / unit.size)} {unit.name} → {significant(after_s / unit.size)} {unit.name}"


def subject(outcome: Outcome) -> str:
    """The subject of the report: the workload, the cluster, and that it is a simulation."""
    where = f"{outcome.nodes} × {outcome.gpus_per_node} = {plural(outcome.gpus, 'GPU')}"
    if outcome.gpu_nodes is not None:
        where = f"{plural(outcome.nodes, 'node')} with {plural(outcome.gpus, 'GPU')}"
    kind = "simulated cluster, no hardware" if outcome.emulated else "cluster"
    return f"{outcome.workload}: {plural(len(outcome.jobs), 'job')} on {where} ({kind})"


def settings_text(runs: Sequence[Contender]) -> str:
    """The settings that all runs share."""
    first = runs[0].outcome.settings
    shared = {
        name: value for name, value in first.items() if all(run.outcome.settings.get(name) == value for run in runs)
    }
    return ", ".join(_setting(name, value) for name, value in shared.items())


def _setting(name: str, value: str) -> str:
    """`move_s` of 30 as `move 30 s`."""
    words = name.removesuffix("_s").replace("_", " ")
    return f"{words} {value}{' s' if name.endswith('_s') else ''}"
