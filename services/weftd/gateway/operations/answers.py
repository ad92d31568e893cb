"""Answers that several operations give, and a header that several take."""

from weft.messages.http import Accepted, EventView
from weftd.gateway.events import SSE
from weftd.gateway.route import JSON, Header, RouteAnswer

LAST_EVENT = Header(name="Last-Event-ID", description="The `id` of the last event received: go on behind it.")
ACCEPTED = {202: RouteAnswer(description="Stored; the scheduler does it.", type=Accepted)}
EVENTS = {200: RouteAnswer(description="CloudEvents.", type=list[EventView], media=(JSON, SSE))}
