"""Operations on jobs: submit, look at, change."""

from typing import Any

from weft.domain.spec import JobSpec
from weft.messages.http import JobsView, JobView, PriorityWanted, ShareWanted, SizeWanted, Submitted
from weft.planning.explain import Explanation
from weftd.gateway import events, jobs, logs
from weftd.gateway.attach import AttachQuery, attach
from weftd.gateway.events import StoryQuery
from weftd.gateway.jobs import JobsQuery
from weftd.gateway.logs import LogQuery
from weftd.gateway.operations.answers import ACCEPTED, EVENTS, LAST_EVENT
from weftd.gateway.past import PastQuery
from weftd.gateway.route import JSON, Header, NoQuery, Route, RouteAnswer

SPEC_MEDIA = (JSON, "application/yaml", "text/yaml", "application/x-yaml")
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

JOBS: tuple[Route[Any], ...] = (
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
        description="Each event with its cause, from the first one on, or the last ones `before` a cursor. Where there"
        " are more, `Link` leads to the next page. As a stream (`Accept: text/event-stream`, or `follow=1`) it goes on"
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
        method="GET",
        path="/v1/jobs/{job}/attach",
        group="jobs",
        summary="A shell, a command or a connection in a run",
        description="A WebSocket. Unless it is for a port or goes on with a session, its first text frame says the"
        ' command: `{"command": ["ls", "-l"]}`, or `{}` for a shell. Binary frames to the run are its input, those from'
        " it are a byte (1 output, 2 errors) and bytes of that. Text frames are JSON, as docs/shell.md has them.",
        handler=attach,
        query=AttachQuery,
        answers={101: RouteAnswer(description="The WebSocket is open.")},
        example="?kind=exec&rank=0",
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
)
