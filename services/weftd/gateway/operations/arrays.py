"""Operations on arrays: list them, look at one, cancel it, run again what failed."""

from typing import Any

from weft.messages.http import ArrayAsked, ArraysView, ArrayView, ElementsWanted, JobsView
from weftd.gateway import arrays
from weftd.gateway.arrays import ArraysQuery, ElementsQuery
from weftd.gateway.route import NoQuery, Route, RouteAnswer

ASKED = {202: RouteAnswer(description="Stored; the scheduler does it.", type=ArrayAsked)}

ARRAYS: tuple[Route[Any], ...] = (
    Route(
        method="GET",
        path="/v1/arrays",
        group="jobs",
        summary="List arrays, the newest first",
        description="Each as one, with how many of its elements are in each state.",
        handler=arrays.arrays,
        query=ArraysQuery,
        answers={200: RouteAnswer(description="At most `limit` of them.", type=ArraysView)},
        example="?open=1",
    ),
    Route(
        method="GET",
        path="/v1/arrays/{array}",
        group="jobs",
        summary="Look at an array",
        handler=arrays.array,
        query=NoQuery,
        answers={200: RouteAnswer(description="The array.", type=ArrayView)},
    ),
    Route(
        method="GET",
        path="/v1/arrays/{array}/elements",
        group="jobs",
        summary="List the elements of an array",
        description="In the order of their indices; `before` of an answer is the `after` of the next request.",
        handler=arrays.elements,
        query=ElementsQuery,
        answers={200: RouteAnswer(description="A page of them.", type=JobsView)},
        example="?state=failed&limit=1000",
    ),
    Route(
        method="POST",
        path="/v1/arrays/{array}/cancel",
        group="jobs",
        summary="Cancel an array, or some of its elements",
        handler=arrays.cancel,
        query=NoQuery,
        body=ElementsWanted,
        answers=ASKED,
        example="""-d '{"indices": "0-9,12"}'""",
    ),
    Route(
        method="POST",
        path="/v1/arrays/{array}/requeue",
        group="jobs",
        summary="Run elements again that are over",
        description="All of them, those of some indices, or those that failed. All are asked for, or none.",
        handler=arrays.requeue,
        query=NoQuery,
        body=ElementsWanted,
        answers=ASKED,
        example="""-d '{"failed": true}'""",
    ),
)
