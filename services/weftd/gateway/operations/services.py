"""Operations on services: jobs that answer requests."""

from typing import Any

from weft.messages.http_services import EndpointsView, UpdateWanted
from weftd.gateway import services
from weftd.gateway.operations.answers import ACCEPTED
from weftd.gateway.route import Header, NoQuery, Route, RouteAnswer

SERVICES: tuple[Route[Any], ...] = (
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
)
