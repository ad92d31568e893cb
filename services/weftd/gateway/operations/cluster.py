"""Operations on the cluster as a whole: its nodes, its queue, what happens and what happened."""

from typing import Any

from weft.messages.http import ClusterView, GpusView, HistoryView, NodesView, SpecificationsView
from weft.messages.live import LiveDelta, LiveSnapshot, QueueView
from weft.messages.series import SeriesView
from weft.messages.whatif import WhatIfView, WhatIfWanted
from weftd.gateway import events, gpus, history, live, nodes, queue, samples, trace, whatif
from weftd.gateway.events import SSE, EventsQuery
from weftd.gateway.gpus import GpusQuery
from weftd.gateway.history import HistoryQuery, SpecificationsQuery
from weftd.gateway.live import LiveQuery
from weftd.gateway.operations.answers import ACCEPTED, EVENTS, LAST_EVENT
from weftd.gateway.past import PastQuery
from weftd.gateway.queue_lines import QueueQuery
from weftd.gateway.route import JSON, NoQuery, Route, RouteAnswer, Who
from weftd.gateway.samples import SamplesQuery
from weftd.gateway.trace import CSV, TraceQuery

CLUSTER: tuple[Route[Any], ...] = (
    Route(
        method="GET",
        path="/v1/events",
        group="events",
        summary="What happens",
        description="The newest events, or those behind a cursor. Where there are more, `Link` leads to the next page."
        " As a stream: from now, or from behind a cursor."
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
)
