"""Every operation of the API, in one table: the server serves it, and the documentation is generated from it."""

from typing import Any

from libs.domain.spec import JobSpec
from libs.messages.http import (
    Accepted,
    ClusterView,
    EventView,
    GpusView,
    Health,
    HistoryView,
    JobsView,
    JobView,
    NodesView,
    PriorityWanted,
    ShareWanted,
    SizeWanted,
    SpecificationsView,
    Submitted,
    TenantsView,
    TenantView,
    TenantWanted,
    TokenMade,
    TokensRevoked,
    TokensView,
    TokenWanted,
)
from libs.messages.http_services import EndpointsView, UpdateWanted
from libs.messages.live import LiveDelta, LiveSnapshot, QueueView
from libs.messages.series import SeriesView, UsageView
from libs.messages.whatif import WhatIfView, WhatIfWanted
from libs.planning.explain import Explanation
from services.gateway import (
    documents,
    events,
    gpus,
    history,
    jobs,
    live,
    logs,
    nodes,
    queue,
    samples,
    services,
    tenants,
    tokens,
    trace,
    usage,
    whatif,
)
from services.gateway.events import SSE, EventsQuery, StoryQuery
from services.gateway.gpus import GpusQuery
from services.gateway.history import HistoryQuery, SpecificationsQuery
from services.gateway.jobs import JobsQuery
from services.gateway.live import LiveQuery
from services.gateway.logs import LogQuery
from services.gateway.past import PastQuery
from services.gateway.queue_lines import QueueQuery
from services.gateway.route import JSON, Header, NoQuery, Route, RouteAnswer, Who
from services.gateway.samples import SamplesQuery
from services.gateway.tokens import TokensQuery
from services.gateway.trace import CSV, TraceQuery
from services.gateway.usage import UsageQuery

SPEC_MEDIA = (JSON, "application/yaml", "text/yaml", "application/x-yaml")
LAST_EVENT = Header(name="Last-Event-ID", description="The `id` of the last event received: go on behind it.")
LOG_HEADERS = (
    Header(name="Range", description="`bytes=a-b`, `bytes=a-` or `bytes=-n`; not while following."),
    Header(name="X-Weft-Epoch", description="The epoch whose log this is.", of_answer=True),
    Header(name="X-Weft-Rank", description="The rank whose log this is.", of_answer=True),
    Header(name="X-Weft-Node", description="The node that has it, once it is placed.", of_answer=True),
    Header(name="X-Weft-Offset", description="The byte of the log that this begins with.", of_answer=True),
    Header(
        name="X-Weft-Begins",
        description="How many bytes at the head of the log its node has dropped, by its limits.",
        of_answer=True,
    ),
)
ACCEPTED = {202: RouteAnswer(description="Stored; the scheduler does it.", type=Accepted)}
EVENTS = {200: RouteAnswer(description="CloudEvents.", type=list[EventView], media=(JSON, SSE))}

OPERATIONS: tuple[Route[Any], ...] = (
    Route(
        method="POST",
        path="/v1/jobs",
        group="jobs",
        summary="Submit a job",
        description="Answered when it is durable: from then on it is not lost. With an `Idempotency-Key` it may be"
        " sent again without harm: the same key is the same job. A tenant that has as much open as it may gets a 429.",
        handler=jobs.submit,
        query=NoQuery,
        body=JobSpec,
        body_media=SPEC_MEDIA,
        headers=(
            Header(name="Idempotency-Key", description="1 to 255 printable characters; kept with the job."),
            Header(name="Location", description="Where the job is.", of_answer=True),
        ),
        answers={
            201: RouteAnswer(description="Stored.", type=Submitted),
            200: RouteAnswer(description="This key had submitted this job before.", type=Submitted),
        },
        example="""-d '{"name": "hello", "command": ["python3", "-c", "print(42)"]}'""",
    ),
    Route(
        method="GET",
        path="/v1/jobs",
        group="jobs",
        summary="List jobs, the newest first",
        handler=jobs.jobs,
        query=JobsQuery,
        answers={200: RouteAnswer(description="A page of them.", type=JobsView)},
        example="?state=queued,running&limit=20",
    ),
    Route(
        method="GET",
        path="/v1/jobs/{job}",
        group="jobs",
        summary="Look at a job",
        description="With its specification, its placement, what each rank has, against what it asked for, and does,"
        " how fast it goes on, what holds it back, and how fast it was at other sizes.",
        handler=jobs.job,
        query=PastQuery,
        answers={200: RouteAnswer(description="The job.", type=JobView)},
        example="?at=2026-01-31T12:00:00Z",
    ),
    Route(
        method="GET",
        path="/v1/jobs/{job}/explain",
        group="jobs",
        summary="Why it waits, or why it is where it is",
        description="A stable code, a sentence, the numbers, who holds what it needs, and an estimate. Of another"
        " tenant's job only the id is told.",
        handler=jobs.explain,
        query=NoQuery,
        answers={200: RouteAnswer(description="The explanation.", type=Explanation)},
    ),
    Route(
        method="GET",
        path="/v1/jobs/{job}/events",
        group="jobs",
        summary="A job's story",
        description="Every event with its cause. As a stream (`Accept: text/event-stream`, or `follow=1`) it goes on"
        " as things happen and ends after the job is over.",
        handler=events.job_events,
        query=StoryQuery,
        headers=(LAST_EVENT,),
        answers={**EVENTS, 204: RouteAnswer(description="The job is over and all was told: do not come back.")},
        example="?follow=1",
    ),
    Route(
        method="GET",
        path="/v1/jobs/{job}/logs",
        group="jobs",
        summary="A run's log",
        description="The bytes that one rank wrote to stdout and stderr. A stream that is cut off in the middle of"
        " following was not at its end: go on with `offset`.",
        handler=logs.logs,
        query=LogQuery,
        headers=LOG_HEADERS,
        answers={
            200: RouteAnswer(description="The bytes.", type=bytes, media=("text/plain",)),
            206: RouteAnswer(description="The part asked for.", type=bytes, media=("text/plain",)),
        },
        example="?follow=1",
    ),
    Route(
        method="POST",
        path="/v1/jobs/{job}/cancel",
        group="jobs",
        summary="Cancel a job",
        handler=jobs.cancel,
        query=NoQuery,
        answers=ACCEPTED,
    ),
    Route(
        method="POST",
        path="/v1/jobs/{job}/requeue",
        group="jobs",
        summary="Put a job back into the queue",
        description="Also one that is over: it runs again, in its next epoch.",
        handler=jobs.requeue,
        query=NoQuery,
        answers=ACCEPTED,
    ),
    Route(
        method="POST",
        path="/v1/jobs/{job}/priority",
        group="jobs",
        summary="Change a job's priority",
        handler=jobs.prioritise,
        query=NoQuery,
        body=PriorityWanted,
        answers=ACCEPTED,
        example="""-d '{"priority": 10}'""",
    ),
    Route(
        method="POST",
        path="/v1/jobs/{job}/scale",
        group="jobs",
        summary="Change a job's size",
        description="Replicas by role, each between `min` and `max` of that role; a role that is not named stays as it"
        " is. A job that waits starts with that size. One that runs takes it live, or by a restart from its checkpoint;"
        " one that can do neither gets a 409. It grows as soon as there is room.",
        handler=jobs.scale,
        query=NoQuery,
        body=SizeWanted,
        answers=ACCEPTED,
        example="""-d '{"size": {"worker": 4}}'""",
    ),
    Route(
        method="POST",
        path="/v1/jobs/{job}/share",
        group="jobs",
        summary="Change a running job's share of a GPU",
        description="`request` and `limit` of each rank of one role, as parts of a GPU; what is not given stays as it"
        " is. The request grows only as far as its GPU has room: the job's event `tuned` says how far. A job that"
        " begins anew has what its specification says.",
        handler=jobs.share,
        query=NoQuery,
        body=ShareWanted,
        answers=ACCEPTED,
        example="""-d '{"request": 0.5, "limit": 0.8}'""",
    ),
    Route(
        method="POST",
        path="/v1/jobs/{job}/update",
        group="services",
        summary="Change what a service runs",
        description="Another image, command or environment; what is not given stays as it is. Its replicas are replaced"
        " one by one, the new one first, as soon as each is ready. If no new one becomes ready, what ran before comes"
        " back: the job's event `updated` says so.",
        handler=services.update,
        query=NoQuery,
        body=UpdateWanted,
        answers=ACCEPTED,
        example="""-d '{"image": "ghcr.io/ada/model:2"}'""",
    ),
    Route(
        method="GET",
        path="/v1/jobs/{job}/endpoints",
        group="services",
        summary="Where a service's replicas are",
        description="Every replica that listens, with its address, and the URL of the service at the router. For those"
        " who bring their own balancer: ask again with `If-None-Match`, or take `weft.endpoints.*` from NATS.",
        handler=services.endpoints,
        query=NoQuery,
        headers=(
            Header(name="If-None-Match", description="The `ETag` of an earlier answer."),
            Header(name="ETag", description="Another one whenever the answer is different.", of_answer=True),
        ),
        answers={
            200: RouteAnswer(description="All of them, by rank.", type=EndpointsView),
            304: RouteAnswer(description="As it was."),
        },
    ),
    Route(
        method="GET",
        path="/v1/events",
        group="events",
        summary="What happens",
        description="The newest events, or those behind a cursor; as a stream, from now or from behind a cursor."
        " A tenant hears of its own jobs, an administrator of all jobs and of nodes.",
        handler=events.all_events,
        query=EventsQuery,
        headers=(LAST_EVENT,),
        answers=EVENTS,
        example="?follow=1",
    ),
    Route(
        method="GET",
        path="/v1/nodes",
        group="cluster",
        summary="List the nodes",
        description="What each has, what of it is given away and to whom, and its live use. An emulated GPU is"
        " called so.",
        handler=nodes.nodes,
        query=NoQuery,
        answers={200: RouteAnswer(description="All of them.", type=NodesView)},
    ),
    Route(
        method="GET",
        path="/v1/gpus",
        group="cluster",
        summary="List the GPUs",
        description="What each is and does now, who holds it, and how fast it is for each class of jobs: what is"
        " believed of that, from how many samples, how old, and from where. An emulated GPU is called so. Of another"
        " tenant's job only the id is told.",
        handler=gpus.gpus,
        query=GpusQuery,
        answers={200: RouteAnswer(description="All of them.", type=GpusView)},
        example="?node=node-1",
    ),
    Route(
        method="POST",
        path="/v1/nodes/{node}/drain",
        group="cluster",
        summary="Give a node no new work",
        handler=nodes.drain,
        query=NoQuery,
        who=Who.ADMIN,
        answers=ACCEPTED,
    ),
    Route(
        method="POST",
        path="/v1/nodes/{node}/resume",
        group="cluster",
        summary="Let a node take work again",
        handler=nodes.resume,
        query=NoQuery,
        who=Who.ADMIN,
        answers=ACCEPTED,
    ),
    Route(
        method="GET",
        path="/v1/cluster",
        group="cluster",
        summary="The cluster and its queue at a glance",
        handler=nodes.cluster,
        query=PastQuery,
        answers={200: RouteAnswer(description="All of it at one time.", type=ClusterView)},
    ),
    Route(
        method="GET",
        path="/v1/queue",
        group="cluster",
        summary="The queue, in the order in which it is served",
        description="Every job with its place, and why it waits. Jobs that the caller may not see are counted in the"
        " places, and not shown. A reply is at most 200 kB: where rows are long there are fewer than `limit`.",
        handler=queue.queue,
        query=QueueQuery,
        answers={200: RouteAnswer(description="A part of it.", type=QueueView)},
        example="?text=train&limit=20",
    ),
    Route(
        method="GET",
        path="/v1/live",
        group="cluster",
        summary="The cluster live, on one stream",
        description="First `event: snapshot`, whose data are a LiveSnapshot; then `event: delta`, at most each quarter"
        " of a second, with what changed (LiveDelta). Another snapshot comes in place of deltas that a slow reader did"
        " not take. Of another tenant's job only the id is told, and the GPUs that it holds.",
        handler=live.live,
        query=LiveQuery,
        answers={
            200: RouteAnswer(
                description="The stream; or the snapshot alone.",
                type=LiveSnapshot,
                streamed=(LiveSnapshot, LiveDelta),
                media=(SSE, JSON),
            )
        },
    ),
    Route(
        method="GET",
        path="/v1/samples",
        group="cluster",
        summary="Sampled figures of the last day",
        description="Of one job, of one node with its GPUs, or of the whole cluster: the last quarter of an hour in"
        " steps of 5 s, the last day in longer ones. This gateway sampled them; what it did not see is null.",
        handler=samples.samples,
        query=SamplesQuery,
        answers={200: RouteAnswer(description="The figures, by name.", type=SeriesView)},
        example="?node=node-1&seconds=900",
    ),
    Route(
        method="GET",
        path="/v1/usage",
        group="tenants",
        summary="GPU-seconds by tenant",
        description="What each tenant held, exactly, from the stored events; what it used, as far as that was sampled;"
        " and what would have been due to it. A tenant sees itself, an administrator all.",
        handler=usage.usage,
        query=UsageQuery,
        answers={200: RouteAnswer(description="The one that held most first.", type=UsageView)},
        example="?seconds=86400",
    ),
    Route(
        method="GET",
        path="/v1/history",
        group="cluster",
        summary="What the scheduler decided, and from what",
        description="Every record that is kept of a pool, in order and in parts: `weft replay` derives them anew.",
        handler=history.history,
        query=HistoryQuery,
        who=Who.ADMIN,
        answers={200: RouteAnswer(description="A part of it.", type=HistoryView)},
        example="?pool=default",
    ),
    Route(
        method="GET",
        path="/v1/history/specifications",
        group="cluster",
        summary="What jobs in the history were submitted as",
        description="The records of the history name jobs; their specifications are here, in parts.",
        handler=history.specifications,
        query=SpecificationsQuery,
        who=Who.ADMIN,
        answers={200: RouteAnswer(description="A part of them.", type=SpecificationsView)},
        example="?jobs=j-1,j-2",
    ),
    Route(
        method="GET",
        path="/v1/trace",
        group="cluster",
        summary="The queue and the history as a trace",
        description="One row for each job that was submitted in the last `seconds` or is open: `weft simulate --trace`"
        " reads it. Of a job that is not over, how long it will run is assumed, and `basis` says by what. Services that"
        " go on, jobs without a GPU, and those that were over before they ran are left out.",
        handler=trace.trace,
        query=TraceQuery,
        who=Who.ADMIN,
        answers={200: RouteAnswer(description="CSV, by arrival.", type=str, media=(CSV,))},
        example="?seconds=86400",
    ),
    Route(
        method="POST",
        path="/v1/what-if",
        group="cluster",
        summary="What would happen if something were different",
        description="From the present queue on, by the walk that the scheduler takes, with and without it: which jobs"
        " gain, which lose, by how much. Another policy, more nodes, drained nodes, jobs that are not there; nothing is"
        " changed. How long jobs last is assumed, alike on both sides. Of another tenant's job only the id is told.",
        handler=whatif.what_if,
        query=NoQuery,
        body=WhatIfWanted,
        answers={200: RouteAnswer(description="Both sides.", type=WhatIfView)},
        example="""-d '{"order": "las", "add_nodes": 2}'""",
    ),
    Route(
        method="POST",
        path="/v1/tokens",
        group="tokens",
        summary="Make a token",
        description="It is told this once. A tenant that is new is made, and may have several: to change one, make"
        " another, use it, and revoke the first by its label.",
        handler=tokens.make,
        query=NoQuery,
        who=Who.ADMIN,
        body=TokenWanted,
        answers={201: RouteAnswer(description="The token.", type=TokenMade)},
        example="""-d '{"tenant": "vision", "label": "ci", "expires_in": 2592000}'""",
    ),
    Route(
        method="GET",
        path="/v1/tokens",
        group="tokens",
        summary="List tokens",
        description="The newest 1,000, without their secret; those in force alone, or `all`.",
        handler=tokens.tokens,
        query=TokensQuery,
        who=Who.ADMIN,
        answers={200: RouteAnswer(description="Whose they are, and when each was used last.", type=TokensView)},
        example="?tenant=vision",
    ),
    Route(
        method="DELETE",
        path="/v1/tokens/{tenant}/{label}",
        group="tokens",
        summary="Revoke tokens",
        description="All of this tenant with this label. They are refused everywhere within two seconds, and streams"
        " that they opened end within five.",
        handler=tokens.revoke,
        query=NoQuery,
        who=Who.ADMIN,
        answers={200: RouteAnswer(description="How many were in force.", type=TokensRevoked)},
    ),
    Route(
        method="GET",
        path="/v1/tenants",
        group="tenants",
        summary="List tenants",
        description="What each may take, and what it has taken.",
        handler=tenants.tenants,
        query=NoQuery,
        who=Who.ADMIN,
        answers={200: RouteAnswer(description="All of them, by name.", type=TenantsView)},
    ),
    Route(
        method="PATCH",
        path="/v1/tenants/{tenant}",
        group="tenants",
        summary="Change what a tenant may take",
        description="What it has open already goes on; what is beyond its limits is refused from now on, by every"
        " gateway within two seconds.",
        handler=tenants.change,
        query=NoQuery,
        who=Who.ADMIN,
        body=TenantWanted,
        answers={200: RouteAnswer(description="The tenant as it is now.", type=TenantView)},
        example="""-d '{"jobs_open_max": 1000, "priority_max": null}'""",
    ),
    Route(
        method="GET",
        path="/v1/openapi.json",
        group="about",
        summary="This description",
        handler=documents.openapi,
        query=NoQuery,
        who=Who.ANYONE,
        answers={200: RouteAnswer(description="An OpenAPI 3.1 document.", type=dict[str, Any])},
    ),
    Route(
        method="GET",
        path="/",
        group="about",
        summary="The dashboard",
        description="A page for people; it reads this API with the token that is typed in.",
        handler=documents.dashboard,
        query=NoQuery,
        who=Who.ANYONE,
        answers={200: RouteAnswer(description="The page.", type=str, media=("text/html",))},
    ),
    Route(
        method="GET",
        path="/api",
        group="about",
        summary="This page",
        handler=documents.reference,
        query=NoQuery,
        who=Who.ANYONE,
        answers={200: RouteAnswer(description="The description, for people.", type=str, media=("text/html",))},
    ),
    Route(
        method="GET",
        path="/healthz",
        group="about",
        summary="Does the gateway run?",
        handler=documents.healthz,
        query=NoQuery,
        who=Who.ANYONE,
        answers={200: RouteAnswer(description="It does.", type=Health)},
    ),
    Route(
        method="GET",
        path="/readyz",
        group="about",
        summary="Can it take jobs?",
        handler=documents.readyz,
        query=NoQuery,
        who=Who.ANYONE,
        answers={
            200: RouteAnswer(description="It can.", type=Health),
            503: RouteAnswer(description="It cannot now: the store does not answer.", type=Health),
        },
    ),
)
