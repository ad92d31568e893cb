"""Subjects that each NATS user may publish and subscribe to, fewest first."""

import re
from collections.abc import Iterable, Mapping

import msgspec

NODE_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
STREAM = "WEFT_EVENTS"
READER = "integrator"  # the durable pull consumer through which integrators read events


class Permissions(msgspec.Struct, frozen=True, kw_only=True):
    publish: tuple[str, ...]
    subscribe: tuple[str, ...] = ()
    answers: bool = False  # may also publish to the reply subject of a request it received


# An integrator creates and deletes no consumer. A consumer may deliver to any subject that its creator names, and NATS
# does
# not check that against the creator's permissions. An integrator may use one consumer, READER, which the scheduler
# creates.
READ_EVENTS = (
    "$JS.API.INFO",
    f"$JS.API.STREAM.INFO.{STREAM}",
    f"$JS.API.STREAM.MSG.GET.{STREAM}",
    f"$JS.API.DIRECT.GET.{STREAM}",  # by number
    f"$JS.API.DIRECT.GET.{STREAM}.>",  # the last of a subject
    f"$JS.API.CONSUMER.INFO.{STREAM}.{READER}",
    f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{READER}",
    f"$JS.ACK.{STREAM}.{READER}.>",
)

MAKE_STREAM = (
    "$JS.API.INFO",
    f"$JS.API.STREAM.INFO.{STREAM}",
    f"$JS.API.STREAM.CREATE.{STREAM}",
    f"$JS.API.STREAM.UPDATE.{STREAM}",
    f"$JS.API.CONSUMER.CREATE.{STREAM}.{READER}",
)

# The API without creating, changing, purging or deleting streams: a stream can republish, so creating one is
# publishing.
READ_EVERY_STREAM = (
    "$JS.API.INFO",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.LIST",
    "$JS.API.STREAM.INFO.*",
    "$JS.API.STREAM.MSG.GET.*",
    "$JS.API.DIRECT.GET.>",
    "$JS.API.CONSUMER.NAMES.*",
    "$JS.API.CONSUMER.LIST.*",
    "$JS.API.CONSUMER.INFO.>",
    "$JS.API.CONSUMER.CREATE.>",
    "$JS.API.CONSUMER.MSG.NEXT.>",
    "$JS.API.CONSUMER.DELETE.>",
    "$JS.ACK.>",
)

SERVICE_PERMISSIONS: Mapping[str, Permissions] = {
    "gateway": Permissions(
        publish=(
            "weft.asks.*",
            "weft.logs.*",
            "weft.files.*.*",
            "weft.sessions.*.*",
            "weft.outbox",
            "weft.services.gateway",
        ),
        subscribe=(
            "weft.submit",
            "weft.secrets.*",
            "weft.contexts.*",
            "weft.checkpoints.*",
            "weft.kept.*",
            "weft.images.*",
            "weft.left.*",
            "weft.progress.*",
            "weft.telemetry.*",
            "weft.findings.*",
            "weft.events.>",
            "weft.endpoints.*",
            "weft.serving.*",
            "weft.services.*",
        ),
        answers=True,
    ),
    "scheduler": Permissions(
        publish=(
            "weft.hints.*",
            "weft.outbox",
            "weft.leaders.*",
            "weft.events.>",
            "weft.services.scheduler",
            *MAKE_STREAM,
        ),
        subscribe=("weft.sync.*.*", "weft.asks.*", "weft.outbox", "weft.leaders.*", "weft.scores.*", "weft.classes.*"),
        answers=True,
    ),
    "scorer": Permissions(
        publish=(
            "weft.scores.*",
            "weft.classes.*",
            "weft.paces.*",
            "weft.scorers.*",
            "weft.speeds",
            "weft.submit",
            "weft.services.scorer",
        ),
        subscribe=("weft.telemetry.*", "weft.progress.*", "weft.paces.*", "weft.scorers.*"),
    ),
    "reallocator": Permissions(
        publish=("weft.findings.*", "weft.asks.*", "weft.services.reallocator"),
        subscribe=("weft.telemetry.*", "weft.progress.*", "weft.endpoints.*", "weft.serving.*"),
    ),
    "router": Permissions(
        publish=("weft.serving.*", "weft.services.router"),
        subscribe=("weft.endpoints.*", "weft.serving.*", "weft.events.>"),
    ),
    "operator": Permissions(publish=READ_EVERY_STREAM, subscribe=("weft.>",)),
    # `_INBOX.>` is where a plain client expects its replies. Replies to any other user arrive below that user's own
    # prefix, so this subscription gets none of them.
    "integrator": Permissions(publish=("weft.submit", *READ_EVENTS), subscribe=("weft.events.>", "_INBOX.>")),
    # Creates the stream and its consumers where a cluster is set up ahead of its services; no messages of its own.
    "provisioner": Permissions(
        publish=(*MAKE_STREAM, f"$JS.API.CONSUMER.CREATE.{STREAM}.>", f"$JS.API.CONSUMER.INFO.{STREAM}.>")
    ),
}


def node_permissions(node: str) -> dict[str, Permissions]:
    """The users of one node: each may publish as that node and as no other."""
    if not NODE_ID.fullmatch(node):
        raise ValueError(f"not a node id: {node!r}; up to 40 of a-z, 0-9 and -, neither first nor last a -")
    return {
        f"executor-{node}": Permissions(
            publish=(
                f"weft.sync.*.{node}",
                f"weft.progress.{node}",
                f"weft.endpoints.{node}",
                f"weft.secrets.{node}",
                f"weft.contexts.{node}",
                f"weft.checkpoints.{node}",
                f"weft.kept.{node}",
                f"weft.images.{node}",
                f"weft.left.{node}",
            ),
            subscribe=(
                f"weft.hints.{node}",
                f"weft.logs.{node}",
                f"weft.files.{node}.*",
                f"weft.sessions.{node}.*",
                f"weft.telemetry.{node}",
                "weft.serving.*",
                "weft.speeds",
            ),
            answers=True,
        ),
        f"telemetry-{node}": Permissions(publish=(f"weft.telemetry.{node}",)),
    }


def permissions_by_user(nodes: Iterable[str]) -> dict[str, Permissions]:
    users = dict(SERVICE_PERMISSIONS)
    for node in sorted(set(nodes)):
        users |= node_permissions(node)
    return users


def inbox_prefix(user: str) -> str:
    """The subject of this user's replies, to which no other user may subscribe: its client's inbox prefix."""
    return f"_INBOX_{user}"
