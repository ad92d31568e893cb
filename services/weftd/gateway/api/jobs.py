"""Jobs: submit, list, show one, explain it, and store asks about it."""

import asyncio
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta, structs

from weft.domain.job import FINAL, Job, JobState
from weft.domain.selection import is_pattern
from weft.domain.spec import JobSpec
from weft.messages.accounts import OWN_TENANT
from weft.messages.asks import AskKind, Reshare, Scale, Update
from weft.messages.http import (
    PRIORITY_MAX,
    Accepted,
    Checked,
    JobsView,
    JobView,
    PriorityWanted,
    ShareWanted,
    SizeWanted,
    Submitted,
)
from weft.messages.http.explanation import Explanation
from weft.messages.http.services import EndpointsView, UpdateWanted
from weft.store import LargeAskWaitsError, TenantFullError, may_go_on
from weftd.gateway.allowances import NoRoomError, check
from weftd.gateway.api.selected import JobsSelected, selection_of, states_of, tenant_of
from weftd.gateway.errors import RejectedError
from weftd.gateway.http.revalidation import next_page, tags_of
from weftd.gateway.http.route import (
    ACCEPTED,
    JSON,
    LARGE_BYTES,
    Call,
    Header,
    NoQuery,
    RouteAnswer,
    answer,
    body_of,
    decoded,
    json_of,
    operation,
)
from weftd.gateway.limits.cpu_budget import ASK_SECONDS, RECEIVED_SECONDS_PER_BYTE, STORED_SECONDS_PER_BYTE
from weftd.gateway.readmodel.endings import TOLD, EventCause, endings
from weftd.gateway.readmodel.event_history import job_at
from weftd.gateway.readmodel.explanations import explanation
from weftd.gateway.readmodel.past import PastQuery, moment_of
from weftd.gateway.readmodel.service_views import endpoints_view, whole_service
from weftd.gateway.readmodel.views import job_view
from weftd.gateway.registry.pinning import pinned_image
from weftd.gateway.thinking.updating import check_share, check_size, check_update

LIMIT_MAX = 1000


class JobsQuery(JobsSelected, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[
        int, Meta(ge=1, le=LIMIT_MAX, description="Maximum number of jobs; a page of large jobs has fewer.")
    ] = 100
    before: Annotated[int, Meta(ge=0, lt=2**62, description="`before` of the previous page.")] = 0

    @property
    def is_plain(self) -> bool:
        """True if it selects by what the store has an index for: tenant, state and one name."""
        named = self.name is None or not is_pattern(self.name)
        others = (self.id, self.label or None, self.kind or None, self.node, self.since)
        return named and self.benchmarks and all(each is None for each in others)


SPEC_MEDIA = (JSON, "application/yaml", "text/yaml", "application/x-yaml")


@operation(
    "POST /v1/jobs",
    "jobs",
    "Submit a job",
    description="The gateway answers when the job is stored durably, so an acknowledged job is not lost. A request with"
    " an `Idempotency-Key` can be repeated: the same key returns the same job. A tenant at its limit of open jobs"
    " gets a 429. A job with `schedule` is stored as a schedule, which submits a job each time that one is due.",
    body=JobSpec,
    body_media=SPEC_MEDIA,
    headers=(
        Header(name="Idempotency-Key", description="1 to 255 printable characters; kept with the job."),
        Header(name="Location", description="URL of the job.", of_answer=True),
    ),
    answers={
        201: RouteAnswer(description="The job is stored.", type=Submitted),
        200: RouteAnswer(description="This key submitted this job earlier.", type=Submitted),
    },
    example="""-d '{"name": "hello", "command": ["python3", "-c", "print(42)"]}'""",
)
async def submit(call: Call[NoQuery]) -> web.StreamResponse:
    request = call.request
    submitted = await call.gateway.submissions.submit(
        call.who,
        await body_of(request),
        content_type=request.headers.get("Content-Type", ""),
        key=request.headers.get("Idempotency-Key"),
    )
    status = 201 if submitted.created else 200
    of = "jobs" if submitted.next_run_at is None else "schedules"
    return answer(submitted, status=status, headers={"Location": f"/v1/{of}/{submitted.id}"})


@operation(
    "POST /v1/jobs/check",
    "jobs",
    "Check a specification",
    description="Refuses what a submission refuses, with every mistake and its field, and stores nothing. Room in the"
    " tenant's quota is not looked at.",
    body=JobSpec,
    body_media=SPEC_MEDIA,
    answers={200: RouteAnswer(description="The specification is valid; this is how Weft reads it.", type=Checked)},
    example="""-d '{"name": "hello", "command": ["true"]}'""",
)
async def check_only(call: Call[NoQuery]) -> web.StreamResponse:
    request = call.request
    checked = await call.gateway.submissions.check(
        call.who, await body_of(request), content_type=request.headers.get("Content-Type", "")
    )
    return answer(checked)


@operation(
    "GET /v1/jobs",
    "jobs",
    "List jobs, the newest first",
    answers={200: RouteAnswer(description="A page of jobs.", type=JobsView)},
    example="?state=queued,running&limit=20",
)
async def jobs(call: Call[JobsQuery]) -> web.StreamResponse:
    query = call.query
    tenant = tenant_of(call)
    states = states_of(query.state)
    selection = selection_of(query)
    store, page = call.gateway.store, {"limit": query.limit, "before": query.before}
    async with call.gateway.reading.one(call.who.tenant):
        if query.is_plain:
            name, elements = query.name or "", query.elements
            found = await store.jobs(tenant=tenant, states=states, name=name, elements=elements, **page)
        else:
            found = await store.jobs_selected(selection, tenant=tenant, states=states, **page)
        ends = await endings(call.gateway.store, found)
    shown = await call.gateway.reasons.fresh(found)
    views = tuple(job_view(job, call.gateway.cluster, ended_for=ends.get(job.id)) for job in shown)
    before = found[-1].seq if may_go_on(found, limit=query.limit) else None
    return answer(JobsView(jobs=views, before=before), headers=next_page(call.request, before=before))


@operation(
    "GET /v1/jobs/{job}",
    "jobs",
    "Look at a job",
    description="The job with its specification and placement; for each rank its resources, requested and granted, and"
    " their use; its speed, its bottleneck, and its speed at other sizes.",
    answers={200: RouteAnswer(description="The job.", type=JobView)},
    example="?at=2026-01-31T12:00:00Z",
)
async def job(call: Call[PastQuery]) -> web.StreamResponse:
    """The job now, or as it was at a moment; of the past, live data such as progress is left out."""
    found = await call.gateway.job(call.who, call.path("job"))
    if call.query.at:
        moment = moment_of(call.query.at, now=call.gateway.now())
        async with call.gateway.reading.one(call.who.tenant):
            told = await job_at(call.gateway.store, found, moment)
        if told is None:
            raise RejectedError(404, "at", f"{found.name} ({found.id}) had not been submitted by then")
        then, last = told
        ended_for = msgspec.json.decode(last.data, type=EventCause).cause if then.state in TOLD else None
        return answer(job_view(then, call.gateway.unheard, whole=True, ended_for=ended_for))
    curves = await call.gateway.store.curves(pool=found.pool, subjects=[f"job:{found.id}"])
    points = tuple(point for curve in curves for point in curve.points)
    ends = await endings(call.gateway.store, [found])
    (shown,) = await call.gateway.reasons.fresh([found])
    service = await whole_service(call.gateway.store, call.gateway.cluster, shown, call.who)
    return answer(
        job_view(shown, call.gateway.cluster, whole=True, curve=points, ended_for=ends.get(found.id), service=service)
    )


@operation(
    "GET /v1/jobs/{job}/explain",
    "jobs",
    "Why a job waits, or why it runs where it runs",
    description="A stable code, a sentence, the numbers, the holders of the resources that it needs, and an estimate."
    " Jobs of other tenants appear only as an id.",
    answers={200: RouteAnswer(description="The explanation.", type=Explanation)},
)
async def explain(call: Call[NoQuery]) -> web.StreamResponse:
    found = await call.gateway.job(call.who, call.path("job"))
    gateway, allowance = call.gateway, call.gateway.allowances.of(call.who)
    async with gateway.explaining.one(call.who.tenant):
        explained = await explanation(
            gateway.store,
            gateway.snapshots,
            gateway.cluster,
            gateway.estimates,
            found,
            call.who,
            now=gateway.now(),
            priority_max=PRIORITY_MAX if allowance is None else allowance.priority_max,
        )
    return answer(explained)


@operation("POST /v1/jobs/{job}/cancel", "jobs", "Cancel a job", answers=ACCEPTED)
async def cancel(call: Call[NoQuery]) -> web.StreamResponse:
    found = await call.gateway.job(call.who, call.path("job"))
    if found.state in FINAL:
        raise RejectedError(409, "job", f"{found.id} is over already: {found.state}")
    return await ask(call, AskKind.CANCEL, found)


@operation(
    "POST /v1/jobs/{job}/requeue",
    "jobs",
    "Put a job back into the queue",
    description="A job that has ended is queued, too: it runs again in its next epoch.",
    answers=ACCEPTED,
)
async def requeue(call: Call[NoQuery]) -> web.StreamResponse:
    found = await call.gateway.job(call.who, call.path("job"))
    if found.state is JobState.QUEUED:
        raise RejectedError(409, "job", f"{found.id} is in the queue already")
    allowance = call.gateway.allowances.of(call.who)
    check(found.spec, allowance, priority=found.priority)
    if allowance is None or found.state not in FINAL:
        return await ask(call, AskKind.REQUEUE, found)
    gateway = call.gateway
    try:
        await gateway.store.ask_requeue(
            job_id=found.id,
            pool=found.pool,
            tenant=call.who.tenant,
            at=gateway.now(),
            allowance=allowance,
            who=call.who.named,
        )
    except TenantFullError as error:
        raise NoRoomError(str(error)) from None
    return _asked(call, AskKind.REQUEUE, found)


@operation(
    "POST /v1/jobs/{job}/priority",
    "jobs",
    "Change a job's priority",
    body=PriorityWanted,
    answers=ACCEPTED,
    example="""-d '{"priority": 10}'""",
)
async def prioritise(call: Call[NoQuery]) -> web.StreamResponse:
    wanted = await json_of(call.request, PriorityWanted)
    found = await call.gateway.job(call.who, call.path("job"))
    if found.state in FINAL:
        raise RejectedError(409, "job", f"{found.id} is over already: {found.state}")
    if wanted.priority > found.priority:
        check(found.spec, call.gateway.allowances.of(call.who), priority=wanted.priority)
    return await ask(call, AskKind.PRIORITISE, found, priority=wanted.priority)


@operation(
    "POST /v1/jobs/{job}/scale",
    "jobs",
    "Change a job's size",
    description="Number of replicas by role, each between the role's `min` and `max`; other roles keep theirs. A"
    " waiting job starts with the new size. A running job changes live, or by a restart from its checkpoint; a job"
    " that allows neither gets a 409. A job grows as soon as GPUs are free.",
    body=SizeWanted,
    answers=ACCEPTED,
    example="""-d '{"size": {"worker": 4}}'""",
)
async def scale(call: Call[NoQuery]) -> web.StreamResponse:
    wanted = await json_of(call.request, SizeWanted)
    found = await call.gateway.job(call.who, call.path("job"))
    if call.who.tenant == OWN_TENANT:  # the store has one size command of it at a time: that of the partition planner
        raise RejectedError(403, "job", f"the sizes that tenant {OWN_TENANT} asks for are the partition planner's")
    check_size(found, wanted.size)
    return await ask(call, AskKind.SCALE, found, scale=Scale(size=wanted.size), field="size")


@operation(
    "POST /v1/jobs/{job}/share",
    "jobs",
    "Change a running job's share of a GPU",
    description="`request` and `limit` of each rank of one role, as fractions of a GPU; a missing one stays unchanged."
    " The request grows only as far as the GPU has free capacity; the job's event `tuned` has the result. A job that"
    " starts again gets the share of its specification.",
    body=ShareWanted,
    answers=ACCEPTED,
    example="""-d '{"request": 0.5, "limit": 0.8}'""",
)
async def share(call: Call[NoQuery]) -> web.StreamResponse:
    wanted = await json_of(call.request, ShareWanted)
    found = await call.gateway.job(call.who, call.path("job"))
    return await ask(call, AskKind.SHARE, found, share=check_share(found, wanted), field="share")


async def ask(
    call: Call[NoQuery],
    kind: AskKind,
    job: Job,
    *,
    priority: int = 0,
    scale: Scale | None = None,
    share: Reshare | None = None,
    update: Update | None = None,
    adds_bytes: int = 0,
    field: str = "",
) -> web.StreamResponse:
    """Store a command about a job for its scheduler. `adds_bytes`: bytes that the command adds to the job; `field`: the
    part of the request to name if these exceed the tenant's limit. Raises RejectedError."""
    gateway = call.gateway
    await audit_if_of_another(call, kind, job.id, job.tenant)
    try:
        await gateway.store.ask(
            kind,
            subject_id=job.id,
            pool=job.pool,
            tenant=call.who.tenant,
            at=gateway.now(),
            priority=priority,
            scale=scale,
            share=share,
            update=update,
            who=call.who.named,
            adds_bytes=adds_bytes,
            allowance=gateway.allowances.of(call.who),
        )
    except TenantFullError as error:
        raise NoRoomError(str(error), field=field) from None
    except LargeAskWaitsError as error:
        raise RejectedError(429, field, str(error)) from None
    return _asked(call, kind, job, size=adds_bytes)


async def audit_if_of_another(call: Call[NoQuery], kind: AskKind, subject: str, tenant: str) -> None:
    """Write an administrator's command for another tenant's job or array to the audit log."""
    if tenant != call.who.tenant:
        auditing = call.gateway.auditing
        await auditing.asked(auditing.actor(call.request, call.who), f"{kind} {subject}", f"of {tenant}")


def _asked(call: Call[NoQuery], kind: AskKind, job: Job, *, size: int = 0) -> web.StreamResponse:
    call.gateway.cpu_budgets.charge(call.who.tenant, ASK_SECONDS + STORED_SECONDS_PER_BYTE * size)
    call.gateway.wakeups.asked(job.pool)
    return answer(Accepted(id=job.id, ask=kind, state=job.state.value), status=202)


@operation(
    "GET /v1/jobs/{job}/endpoints",
    "services",
    "Where a service's replicas are",
    description="Every replica that listens, with its address, and the URL of the service at the router. A load"
    " balancer of your own can poll this with `If-None-Match`, or subscribe to `weft.endpoints.*` on NATS.",
    headers=(
        Header(name="If-None-Match", description="The `ETag` of an earlier answer."),
        Header(name="ETag", description="Changes whenever the answer changes.", of_answer=True),
    ),
    answers={
        200: RouteAnswer(description="The endpoints, by rank.", type=EndpointsView),
        304: RouteAnswer(description="The answer has not changed."),
    },
)
async def endpoints(call: Call[NoQuery]) -> web.StreamResponse:
    gateway = call.gateway
    found = await gateway.service(call.who, call.path("job"))
    if found.spec.service is None:
        raise RejectedError(409, "job", f"{found.id} serves no requests: its specification has no `service`")
    nodes = await gateway.snapshots.nodes.get()
    view = endpoints_view(found, {node.id: node for node in nodes.all}, gateway.cluster)
    headers = {"ETag": f'"{view.digest}"', "Cache-Control": "no-cache"}
    if view.digest in tags_of(call.request.headers.get("If-None-Match", "")):
        return web.Response(status=304, headers=headers)
    return answer(view, headers=headers)


@operation(
    "POST /v1/jobs/{job}/update",
    "services",
    "Update a service",
    description="Set another image, command or environment; missing fields stay unchanged. Replicas are replaced one by"
    " one: each new replica must be ready before an old one stops. If no new replica becomes ready, the previous"
    " revision returns, and the job's event `updated` says so.",
    body=UpdateWanted,
    answers=ACCEPTED,
    example="""-d '{"image": "ghcr.io/ada/model:2"}'""",
)
async def update(call: Call[NoQuery]) -> web.StreamResponse:
    body = await body_of(call.request)
    call.gateway.cpu_budgets.charge(call.who.tenant, RECEIVED_SECONDS_PER_BYTE * len(body))
    if len(body) <= LARGE_BYTES:
        return await _update(call, body)
    async with call.gateway.submissions.large.one(call.who.tenant, patient=True):
        no_room = call.gateway.submissions.no_room
        await no_room.check(call.who, len(body))
        try:
            return await _update(call, body)
        except NoRoomError as error:
            await no_room.note(call.who, len(body), error)
            raise


async def _update(call: Call[NoQuery], body: bytes) -> web.StreamResponse:
    gateway = call.gateway
    wanted = await decoded(body, UpdateWanted)
    found = await gateway.job(call.who, call.path("job"))
    if wanted.image is not None:
        image = await pinned_image(gateway.registry, found.tenant, wanted.image, "image")
        wanted = structs.replace(wanted, image=image)
    admission = (await gateway.snapshots.nodes.get()).admission
    checked = await asyncio.to_thread(check_update, found, wanted, admission)
    return await ask(
        call, AskKind.UPDATE, found, update=checked.update, adds_bytes=checked.bytes_after, field=checked.largest
    )
