"""What the gateway says of itself, and its pages."""

from typing import Any

from weft.messages.http import Health
from weftd.gateway import documents
from weftd.gateway.route import NoQuery, Route, RouteAnswer, Who

ABOUT: tuple[Route[Any], ...] = (
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
