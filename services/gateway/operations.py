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
    SpecificationsView,
    Submitted,
    TokenMade,
    TokensRevoked,
    TokensView,
    TokenWanted,
)
from libs.planning.explain import Explanation
from services.gateway import documents, events, gpus, history, jobs, logs, nodes, tokens
from services.gateway.events import SSE, EventsQuery, StoryQuery
from services.gateway.gpus import GpusQuery
from services.gateway.history import HistoryQuery, SpecificationsQuery
from services.gateway.jobs import JobsQuery
from services.gateway.logs import LogQuery
from services.gateway.past import PastQuery
from services.gateway.route import JSON, Answer, Header, NoQuery, Route, Who
from services.gateway.tokens import TokensQuery

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
ACCEPTED = {202: Answer(description="Stored; the scheduler does it.", type=Accepted)}
EVENTS = {200: Answer(description="CloudEvents.", type=list[EventView], media=(JSON, SSE))}

OPERATIONS: tuple[Route[Any], ...] = (
    Route(
        method="POST",
        path="/v1/jobs",
        group="jobs",
        summary="Submit a job",
        description="Answered when it is durable: from then on it is not lost. With an `Idempotency-Key` it may be"
        " sent again without harm: the same key is the same job.",
        handler=jobs.submit,
        query=NoQuery,
        body=JobSpec,
        body_media=SPEC_MEDIA,
        headers=(
            Header(name="Idempotency-Key", description="1 to 255 printable characters; kept with the job."),
            Header(name="Location", description="Where the job is.", of_answer=True),
        ),
        answers={
            201: Answer(description="Stored.", type=Submitted),
            200: Answer(description="This key had submitted this job before.", type=Submitted),
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
        answers={200: Answer(description="A page of them.", type=JobsView)},
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
        answers={200: Answer(description="The job.", type=JobView)},
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
        answers={200: Answer(description="The explanation.", type=Explanation)},
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
        answers={**EVENTS, 204: Answer(description="The job is over and all was told: do not come back.")},
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
            200: Answer(description="The bytes.", type=bytes, media=("text/plain",)),
            206: Answer(description="The part asked for.", type=bytes, media=("text/plain",)),
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
        answers={200: Answer(description="All of them.", type=NodesView)},
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
        answers={200: Answer(description="All of them.", type=GpusView)},
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
        answers={200: Answer(description="All of it at one time.", type=ClusterView)},
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
        answers={200: Answer(description="A part of it.", type=HistoryView)},
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
        answers={200: Answer(description="A part of them.", type=SpecificationsView)},
        example="?jobs=j-1,j-2",
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
        answers={201: Answer(description="The token.", type=TokenMade)},
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
        answers={200: Answer(description="Whose they are, and when each was used last.", type=TokensView)},
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
        answers={200: Answer(description="How many were in force.", type=TokensRevoked)},
    ),
    Route(
        method="GET",
        path="/v1/openapi.json",
        group="about",
        summary="This description",
        handler=documents.openapi,
        query=NoQuery,
        who=Who.ANYONE,
        answers={200: Answer(description="An OpenAPI 3.1 document.", type=dict[str, Any])},
    ),
    Route(
        method="GET",
        path="/",
        group="about",
        summary="This page",
        handler=documents.page,
        query=NoQuery,
        who=Who.ANYONE,
        answers={200: Answer(description="The description, for people.", type=str, media=("text/html",))},
    ),
    Route(
        method="GET",
        path="/healthz",
        group="about",
        summary="Does the gateway run?",
        handler=documents.healthz,
        query=NoQuery,
        who=Who.ANYONE,
        answers={200: Answer(description="It does.", type=Health)},
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
            200: Answer(description="It can.", type=Health),
            503: Answer(description="It cannot now: the store does not answer.", type=Health),
        },
    ),
)
