"""Arrays: listed and shown as one, and what is asked of all their elements or of some. Sweeps: the elements of an array
as a table of their values and of what they reported."""

import asyncio
import re
from collections.abc import Sequence
from typing import Annotated, Any

from aiohttp import web
from msgspec import Meta, Struct

from weft.domain.arrays import IndicesError, element_id, indices_of
from weft.domain.job import FINAL, Job, JobState
from weft.domain.spec import TOKEN_PATTERN, JobSpec, MetricGoal
from weft.messages.asks import AskKind
from weft.messages.http import ArrayAsked, ArraysView, ArrayView, ElementsWanted, JobsView
from weft.messages.metrics import POINTS_MAX
from weft.messages.sweeps import CURVE_POINTS, SweepRow, SweepView
from weft.planning.resource_request import gpus_least, resource_request_of
from weft.store import TenantFullError
from weft.store.arrays import ArrayKept
from weftd.gateway.allowances import NoRoomError, check
from weftd.gateway.api.jobs import audit_if_of_another
from weftd.gateway.api.metrics import stored_metrics, view_of
from weftd.gateway.api.selected import OPEN, STATES, states_of
from weftd.gateway.dependencies import array_id
from weftd.gateway.errors import TOKEN_WORDS, RejectedError
from weftd.gateway.gateway import Gateway
from weftd.gateway.http.revalidation import next_page
from weftd.gateway.http.route import Call, NoQuery, RouteAnswer, answer, json_of, operation
from weftd.gateway.readmodel.endings import endings
from weftd.gateway.readmodel.views import job_view, progress_shown
from weftd.gateway.readmodel.visibility import may_see

LIMIT_MAX = 100  # arrays in one answer: each may have very many elements to count
ELEMENTS_SHOWN_MAX = 1000
ROWS_MAX = 100
PREFIX = "WEFT_SWEEP_"
NOT_METRICS = frozenset({"step", "steps", "epoch", "samples"})
_matches_token = re.compile(TOKEN_PATTERN).fullmatch


class ArraysQuery(Struct, frozen=True, forbid_unknown_fields=True):
    tenant: (
        Annotated[str, Meta(pattern=TOKEN_PATTERN, description="Only arrays of this tenant; for administrators.")]
        | None
    ) = None
    open: Annotated[bool, Meta(description="1: only arrays with an element that waits or runs.")] = False
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = LIMIT_MAX


class ElementsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    state: Annotated[str, Meta(description=f"One or several of these, separated by commas: {STATES}.")] = ""
    limit: Annotated[int, Meta(ge=1, le=ELEMENTS_SHOWN_MAX, description="Maximum number of elements to search.")] = 100
    after: Annotated[int, Meta(ge=0, lt=2**62, description="`before` of the previous page.")] = 0


@operation(
    "GET /v1/arrays",
    "jobs",
    "List arrays, the newest first",
    description="Each array as one row, with the number of its elements in each state.",
    answers={200: RouteAnswer(description="At most `limit` arrays.", type=ArraysView)},
    example="?open=1",
)
async def arrays(call: Call[ArraysQuery]) -> web.StreamResponse:
    query = call.query
    tenant = query.tenant if call.who.admin else call.who.tenant
    if query.tenant is not None and query.tenant != tenant:
        raise RejectedError(403, "tenant", "a tenant sees its own arrays only")
    async with call.gateway.reading.one(call.who.tenant):
        found = await call.gateway.store.arrays(tenant=tenant, opened=query.open, limit=query.limit)
    return answer(ArraysView(arrays=tuple(array_view(each) for each in found)))


@operation(
    "GET /v1/arrays/{array}",
    "jobs",
    "Look at an array",
    answers={200: RouteAnswer(description="The array.", type=ArrayView)},
)
async def array(call: Call[NoQuery]) -> web.StreamResponse:
    return answer(array_view(await the_array(call)))


@operation(
    "GET /v1/arrays/{array}/elements",
    "jobs",
    "List the elements of an array",
    description="Elements in the order of their indices. Send `before` of an answer as `after` of the next request.",
    answers={200: RouteAnswer(description="A page of elements.", type=JobsView)},
    example="?state=failed&limit=1000",
)
async def elements(call: Call[ElementsQuery]) -> web.StreamResponse:
    query = call.query
    states = states_of(query.state)
    found = await the_array(call)
    gateway = call.gateway
    async with gateway.reading.one(call.who.tenant):
        jobs = await gateway.store.array_jobs(found.id, states=states, limit=query.limit, after=query.after)
        ends = await endings(gateway.store, jobs)
    shown = await gateway.reasons.fresh(jobs)
    views = tuple(job_view(job, gateway.cluster, ended_for=ends.get(job.id)) for job in shown)
    before = jobs[-1].seq if not states and len(jobs) == query.limit else None
    return answer(JobsView(jobs=views, before=before), headers=next_page(call.request, after=before))


ASKED = {202: RouteAnswer(description="The command is stored; the scheduler will execute it.", type=ArrayAsked)}


@operation(
    "POST /v1/arrays/{array}/cancel",
    "jobs",
    "Cancel an array, or some of its elements",
    body=ElementsWanted,
    answers=ASKED,
    example="""-d '{"indices": "0-9,12"}'""",
)
async def cancel(call: Call[NoQuery]) -> web.StreamResponse:
    """Store a command that cancels the open elements."""
    wanted = await json_of(call.request, ElementsWanted)
    if wanted.failed:
        raise RejectedError(400, "failed", "works only for a requeue: failed elements have ended already")
    return await _ask(call, AskKind.CANCEL, wanted, OPEN, "each of them is over already")


@operation(
    "POST /v1/arrays/{array}/requeue",
    "jobs",
    "Run ended elements again",
    description="All elements, some indices, or the failed ones. If one cannot be queued, none is.",
    body=ElementsWanted,
    answers=ASKED,
    example="""-d '{"failed": true}'""",
)
async def requeue(call: Call[NoQuery]) -> web.StreamResponse:
    """Store a command that runs ended elements again; with `failed`, only failed ones."""
    wanted = await json_of(call.request, ElementsWanted)
    states = (JobState.FAILED,) if wanted.failed else tuple(FINAL)
    none = "none of them has failed" if wanted.failed else "none of them is over"
    return await _ask(call, AskKind.REQUEUE, wanted, states, none)


async def _ask(
    call: Call[NoQuery], kind: AskKind, wanted: ElementsWanted, states: tuple[JobState, ...], none: str
) -> web.StreamResponse:
    found = await the_array(call)
    gateway, allowance = call.gateway, call.gateway.allowances.of(call.who)
    if kind is AskKind.REQUEUE:
        check(found.spec, allowance)
    else:
        allowance = None
    await audit_if_of_another(call, kind, found.id, found.tenant)
    try:
        asked = await gateway.store.ask_elements(
            kind,
            array=found.id,
            states=states,
            job_ids=_ids(found, wanted),
            tenant=call.who.tenant,
            at=gateway.now(),
            allowance=allowance,
            who=call.who.named,
        )
    except TenantFullError as error:
        raise NoRoomError(str(error)) from None
    if not asked:
        raise RejectedError(409, "indices" if wanted.indices else "array", f"nothing is left to {kind}: {none}")
    gateway.wakeups.asked(found.pool)
    return answer(ArrayAsked(id=found.id, ask=kind, elements=asked), status=202)


def _ids(found: ArrayKept, wanted: ElementsWanted) -> tuple[str, ...]:
    if wanted.indices is None:
        return ()
    try:
        indices, at_once = indices_of(wanted.indices)
    except IndicesError as error:
        raise RejectedError(400, "indices", str(error)) from None
    if at_once is not None or not indices:
        raise RejectedError(400, "indices", "expected indices such as 0-9,12")
    return tuple(element_id(found.id, index) for index in indices)


async def the_array(call: Call[Any]) -> ArrayKept:
    """The array by its id, or the newest of that name. Another tenant's counts as missing. Raises RejectedError."""
    wanted, who, store = call.path("array"), call.who, call.gateway.store
    if not _matches_token(wanted):
        raise RejectedError(400, "array", TOKEN_WORDS)
    found = await array_id(store, None if who.admin else who.tenant, wanted)
    kept = await store.arrays(ids=[found]) if found is not None else []
    if not kept or not may_see(who, kept[0].tenant):
        raise RejectedError(404, "array", f"no array has the id or the name {wanted}")
    return kept[0]


def array_view(kept: ArrayKept) -> ArrayView:
    spec = kept.spec
    assert spec.element is not None, "it is an element"
    return ArrayView(
        id=kept.id,
        name=kept.name,
        tenant=kept.tenant,
        kind=spec.kind,
        pool=kept.pool,
        elements=kept.total,
        states={state.value: kept.states[state] for state in JobState if state in kept.states},
        at_once=spec.element.at_once,
        gpus=gpus_least(resource_request_of(spec)),
        priority=spec.priority,
        seq=kept.seq,
        submitted_at=kept.submitted_at,
        submitter=kept.submitter,
        started_at=kept.started_at,
        ended_at=kept.ended_at if kept.over else None,
        waiting_for=kept.waiting_for,
        after=spec.after,
    )


# sweeps


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
