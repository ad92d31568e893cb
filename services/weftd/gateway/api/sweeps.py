"""Sweeps: the elements of an array as a table of their values and of what they reported."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from weft.domain.job import Job
from weft.domain.spec import JobSpec, MetricGoal
from weft.messages.metrics import POINTS_MAX
from weft.messages.sweeps import CURVE_POINTS, SweepRow, SweepView
from weftd.gateway.api.arrays import the_array
from weftd.gateway.api.metrics import stored_metrics, view_of
from weftd.gateway.gateway import Gateway
from weftd.gateway.http.route import Call, RouteAnswer, answer, operation
from weftd.gateway.readmodel.endings import endings
from weftd.gateway.readmodel.views import progress_shown

ROWS_MAX = 100
PREFIX = "WEFT_SWEEP_"
NOT_METRICS = frozenset({"step", "steps", "epoch", "samples"})


class SweepQuery(Struct, frozen=True, forbid_unknown_fields=True):
    metric: Annotated[str, Meta(max_length=64, description="Metric (default: that of `early_stop`, or the first).")] = (
        ""
    )
    goal: Annotated[MetricGoal | None, Meta(description="Goal (default: that of `early_stop`, or `min`).")] = None
    limit: Annotated[int, Meta(ge=1, le=ROWS_MAX)] = ROWS_MAX
    after: Annotated[int, Meta(ge=0, lt=2**62, description="`next` of the previous page.")] = 0


@operation(
    "GET /v1/arrays/{array}/sweep",
    "jobs",
    "The table of a sweep",
    description="Each element of an array with its values and with the last and the best of a metric that it reported.",
    answers={200: RouteAnswer(description="A page of rows.", type=SweepView)},
    example="?metric=loss",
)
async def sweep(call: Call[SweepQuery]) -> web.StreamResponse:
    query, gateway = call.query, call.gateway
    found = await the_array(call)
    async with gateway.reading.one(call.who.tenant):
        jobs = await gateway.store.array_jobs(found.id, states=(), limit=query.limit, after=query.after)
        ends = await endings(gateway.store, jobs)
    told = {job.id: progress_shown(job, {} if job.state.final else gateway.cluster.progress(job)) for job in jobs}
    metric, goal = _compared(found.spec, query, list(told.values()))

    async def row(job: Job) -> SweepRow:
        async with gateway.metrics.one(call.who.tenant, patient=True):
            curve = await _curve(gateway, job, metric) if metric else ()
        last = told[job.id].get(metric)
        values = [*curve, *([] if last is None else [last])]
        return SweepRow(
            index=job.spec.element.index if job.spec.element is not None else 0,
            id=job.id,
            state=job.state,
            values=_values(job.spec),
            last=last if last is not None else (curve[-1] if curve else None),
            best=(min if goal is MetricGoal.MIN else max)(values, default=None),
            curve=_thin(curve),
            ended_for=ends.get(job.id),
        )

    rows = await asyncio.gather(*(row(job) for job in jobs))
    following = jobs[-1].seq if len(jobs) == query.limit else 0
    view = SweepView(id=found.id, name=found.name, metric=metric, goal=goal, rows=tuple(rows), next=following)
    return answer(view)


def _compared(spec: JobSpec, query: SweepQuery, told: Sequence[dict[str, float]]) -> tuple[str, MetricGoal]:
    """The metric that is compared, and whether less of it is better."""
    stops = spec.early_stop
    first = next((name for progress in told for name in progress if name not in NOT_METRICS), "")
    metric = query.metric or (stops.metric if stops is not None else first)
    return metric, query.goal or (stops.goal if stops is not None else MetricGoal.MIN)


async def _curve(gateway: Gateway, job: Job, metric: str) -> tuple[float, ...]:
    """Every value of the metric that a node still has."""
    if job.placement is None and not job.attempts and not job.epoch:
        return ()
    parts, _ = await stored_metrics(gateway, job, 0)
    view = await asyncio.to_thread(view_of, parts, rank=0, points=POINTS_MAX)
    return tuple(value for value in view.series.get(metric, ()) if value is not None)


def _thin(curve: Sequence[float]) -> tuple[float, ...]:
    count = len(curve)
    if count <= CURVE_POINTS:
        return tuple(curve)
    return tuple(curve[(place + 1) * count // CURVE_POINTS - 1] for place in range(CURVE_POINTS))


def _values(spec: JobSpec) -> dict[str, str]:
    return {name.removeprefix(PREFIX).lower(): text for name, text in spec.env.items() if name.startswith(PREFIX)}
