"""The results, as JSON and as a table. Pure: the same runs, the same text."""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct
from rich.console import Group, RenderableType
from rich.text import Text

from weft.domain.text import plural
from weft.simulator.counted import Counted
from weft.simulator.metrics import Metrics, metrics
from weft.simulator.outcome import JobOutcome, Outcome
from weft.simulator.report.compared import (
    COLUMNS,
    Contender,
    best_of,
    cell,
    labels_of,
    ratio,
    ratio_text,
    runs_of,
    settings_text,
    significant,
    span_text,
    subject,
    time_unit,
    unit_of,
)
from weft.simulator.report.sizes import HEADER, is_elastic, size_rows
from weft.simulator.sized import SizeMetrics, size_metrics
from weftd.cli.rendering.context import RenderContext, plain, table

# The columns for a terminal of 80 characters, with their names there.
NARROW = {
    "waiting mean": "WAITING",
    "slowdown p99": "SLOWDOWN",
    "JCT p50": "JCT",
    "GPUs held": "HELD",
    "moves": "MOVES",
}
WIDE = 170  # columns of a terminal that has room for all
HEADS = ("RUN", "SERVICE", "REQUESTS", "KEPT %", "BAD", "BAD WINDOWS", "P50 ms", "P99 ms", "COLD", "COLD MAX s")
MORE = ("GPU h", "STARTS", "REVERSALS", "LOANS", "BORROWED h")


# JSON


class JobResult(Struct, frozen=True, kw_only=True):
    arrival_s: float
    completed_s: float
    started_s: float
    gpus: int
    job_class: str = msgspec.field(name="class")
    tenant: str
    work_s: float
    moves: int
    evictions: int
    lost_s: float


class RunTold(Struct, frozen=True, kw_only=True):
    """`jobs` by id, in the order of the trace."""

    workload: str
    policy: str
    nodes: int
    gpus_per_node: int
    emulated: bool
    settings: Mapping[str, str]
    notes: tuple[str, ...]
    metrics: Metrics | msgspec.UnsetType = msgspec.UNSET  # where there are jobs
    sizes: SizeMetrics | msgspec.UnsetType = msgspec.UNSET  # where jobs are elastic
    decisions: int
    placements: int
    jobs: Mapping[str, JobResult]
    services: Mapping[str, Counted] | msgspec.UnsetType = msgspec.UNSET  # by name, where there are services


class RunsTold(Struct, frozen=True):
    runs: list[RunTold]


def document(outcomes: Sequence[Outcome]) -> bytes:
    """One run as an object, several as a list."""
    told = [run_told(outcome) for outcome in outcomes]
    return msgspec.json.encode(told[0] if len(told) == 1 else RunsTold(told)) + b"\n"


def run_told(outcome: Outcome) -> RunTold:
    return RunTold(
        workload=outcome.workload,
        policy=outcome.policy,
        nodes=outcome.nodes,
        gpus_per_node=outcome.gpus_per_node,
        emulated=outcome.emulated,
        settings=dict(sorted(outcome.settings.items())),
        notes=outcome.notes,
        metrics=metrics(outcome) if outcome.jobs else msgspec.UNSET,
        sizes=size_metrics(outcome) if is_elastic(outcome) else msgspec.UNSET,
        decisions=outcome.decisions,
        placements=outcome.placements,
        jobs={job.id: _job_told(job) for job in outcome.jobs},
        services={service.name: service for service in outcome.services} or msgspec.UNSET,
    )


def _job_told(job: JobOutcome) -> JobResult:
    return JobResult(
        arrival_s=job.arrival_s,
        completed_s=job.completed_s,
        started_s=job.started_s,
        gpus=job.gpus,
        job_class=job.job_class,
        tenant=job.tenant,
        work_s=job.work_s,
        moves=job.moves,
        evictions=job.evictions,
        lost_s=job.lost_s,
    )


# for a person


def drawing(outcomes: Sequence[Outcome], context: RenderContext) -> RenderableType:
    parts: list[RenderableType] = [plain(subject(outcomes[0]), "bold")]
    if outcomes[0].jobs:
        parts += _jobs(outcomes, context)
    services = services_table(outcomes, context)
    if services is not None:
        parts += [Text(), services]
    notes = list(dict.fromkeys(note for outcome in outcomes for note in outcome.notes))
    if notes:
        parts += [Text(), *(plain(f"note: {note}", "dim") for note in notes)]
    return Group(*parts)


def _jobs(outcomes: Sequence[Outcome], context: RenderContext) -> list[RenderableType]:
    runs = runs_of(outcomes)
    parts: list[RenderableType] = []
    if told := settings_text(runs):
        parts.append(plain(told, "dim"))
    parts += [Text(), _one(runs[0]) if len(runs) == 1 else _several(runs, context)]
    if rows := size_rows(runs):
        parts += [Text(), _sizes(rows, context)]
    return parts


def _one(run: Contender) -> RenderableType:
    found = run.metrics
    times = {"p50": found.jct_p50_s, "p90": found.jct_p90_s, "p99": found.jct_p99_s, "max": found.jct_max_s}
    times |= {"mean": found.jct_mean_s, "geomean": found.jct_geomean_s}
    lines = {
        "policy": run.outcome.policy,
        "waiting": _waiting(found),
        "slowdown": f"p50 {significant(found.slowdown_p50)}   p99 {significant(found.slowdown_p99)}"
        f"   max {significant(found.slowdown_max)}   mean {significant(found.slowdown_mean)}",
        "JCT": _times(times),
        "makespan": span_text(found.makespan_s),
        "GPUs": f"held {_percent(found.utilisation_allocated)}   used {_percent(found.utilisation_used)}",
        "fairness": f"loss {significant(found.fairness_loss)}   worst rho {significant(found.fairness_rho_max)}"
        f"   unfair jobs {_percent(found.unfair_part)}",
        "changes": f"{plural(found.moves, 'move')}   {plural(found.evictions, 'eviction')}"
        f"   {significant(found.lost_gpu_s / 3600)} GPU h lost",
    }
    return Group(*(Text.assemble((f"{name:<10}", "dim"), plain(text)) for name, text in lines.items()))


def _waiting(found: Metrics) -> str:
    if found.queueing_mean_s is None or found.queueing_p99_s is None:
        return "not known"
    return _times({"mean": found.queueing_mean_s, "p99": found.queueing_p99_s})


def _times(times: Mapping[str, float]) -> str:
    """`mean 7.03   p50 1.16 h`: all in one unit."""
    unit = time_unit(times.values())
    return "   ".join(f"{name} {significant(seconds / unit.size)}" for name, seconds in times.items()) + f" {unit.name}"


def _percent(part: float | None) -> str:
    return "not known" if part is None else f"{significant(part * 100)} %"


def _sizes(rows: Sequence[Sequence[str]], context: RenderContext) -> RenderableType:
    heads = [title.upper() for title in HEADER]
    made = table(*heads, context=context, right=tuple(heads[1:]), flexible=heads[0])
    for row in rows:
        made.add_row(*(plain(text) for text in row))
    return made


def _several(runs: Sequence[Contender], context: RenderContext) -> RenderableType:
    """A run is a row; the ratio is that of the mean waiting time to the first run's."""
    narrow = context.bars and context.width < WIDE
    columns = [column for column in COLUMNS if not narrow or column.title in NARROW]
    units = {column.title: unit_of(column, runs) for column in columns}
    names = {column.title: NARROW[column.title] if narrow else column.title.upper() for column in columns}
    between = "\n" if narrow else " "
    heads = [between.join(word for word in (names[title], unit.name) if word) for title, unit in units.items()]
    made = table("RUN", heads[0], "RATIO", *heads[1:], context=context, right=(*heads, "RATIO"), flexible="RUN")
    best = best_of(runs)
    for run in runs:
        cells = [cell(column, run, units[column.title]) for column in columns]
        against = ratio(columns[0], run, runs[0])
        said = "" if run is runs[0] or against is None else ratio_text(against)
        style = "bold" if run is best else ""
        made.add_row(plain(run.label, style), Text(cells[0], style), Text(said, style), *cells[1:])
    return made


def services_table(outcomes: Sequence[Outcome], context: RenderContext) -> RenderableType | None:
    """A row for each service of each run; None if there are no services."""
    if not any(outcome.services for outcome in outcomes):
        return None
    heads = (*HEADS, *MORE)
    made = table(*heads, context=context, right=heads[2:], flexible="RUN")
    for label, outcome in zip(labels_of(outcomes), outcomes, strict=True):
        for place, service in enumerate(outcome.services):
            made.add_row(plain("" if place else label), *(plain(text) for text in _row(service)))
    return made


def _row(service: Counted) -> list[str]:
    return [
        service.name,
        f"{service.arrived:,}",
        f"{service.attainment * 100:.3f}",
        f"{service.bad:,}",
        f"{service.bad_windows:,}",
        _milliseconds(service.latency_p50_s),
        _milliseconds(service.latency_p99_s),
        f"{service.cold_waits:,}",
        significant(service.cold_wait_most_s),
        significant(service.gpu_s / 3600),
        f"{service.starts:,}",
        f"{service.reversals:,}",
        f"{service.loans:,}",
        significant(service.borrowed_gpu_s / 3600),
    ]


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else significant(seconds * 1000)
