"""Webhooks over HTTP: what is wanted, and what is shown of them. The secret is told once, when one is made."""

from typing import Annotated

from msgspec import Meta, Struct

from weft.messages.http import Seconds

URL_MAX = 2048
EVENTS_MAX = 32
URL_PATTERN = r"^(https?://|mailto:)[!-~]+$(?!\n)"
EVENT_PATTERN = r"^[a-z-]{1,32}$(?!\n)"
Url = Annotated[
    str,
    Meta(
        max_length=URL_MAX,
        pattern=URL_PATTERN,
        description="URL of http or https, without a user, a password or a fragment; or `mailto:` and an address.",
    ),
]
EventName = Annotated[str, Meta(pattern=EVENT_PATTERN)]


class WebhookWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`events`: names of events of jobs or nodes, or `begin`, `end`, `fail`, `requeue`; none: all, and by mail those
    four. `all_tenants`: for administrators: the events of all jobs, and of nodes."""

    url: Url
    events: Annotated[tuple[EventName, ...], Meta(max_length=EVENTS_MAX)] = ()
    all_tenants: bool = False


class WebhookView(Struct, frozen=True, kw_only=True):
    """`failures`: tries that failed since the last that did not; `error`: how the last one failed. `off`: why nothing
    is delivered any more; empty: it is."""

    id: str
    tenant: str
    url: str
    events: tuple[str, ...]
    all_tenants: bool
    created_at: Seconds
    delivered: int = 0
    delivered_at: Seconds | None = None
    failures: int = 0
    failing_since: Seconds | None = None
    next_try: Seconds | None = None
    error: str = ""
    off: str = ""


class WebhookMade(Struct, frozen=True, kw_only=True):
    """`secret` signs what is posted; it is told this once. Mail has none."""

    webhook: WebhookView
    secret: str


class WebhooksView(Struct, frozen=True, kw_only=True):
    webhooks: tuple[WebhookView, ...]
