"""Events, as CloudEvents on `weft.events.jobs.<event>` and `weft.events.nodes.<event>`.

docs/events.md shows one of each; a test holds it against this file.
"""

from datetime import UTC, datetime

import msgspec
from msgspec import Struct

JOB_SUBJECT = "weft.events.jobs."
NODE_SUBJECT = "weft.events.nodes."
NODE_EVENTS = ("joined", "changed", "lost", "returned", "drained", "resumed", "removed")


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One recorded event. (`topic`, `subject_id`, `version`) is unique; `xid` is the transaction that recorded it."""

    id: int
    xid: int = 0
    topic: str  # "jobs" or "nodes"
    event: str
    subject_id: str
    version: int
    at: float
    tenant: str = ""
    data: msgspec.Raw = msgspec.Raw(b"{}")

    @property
    def subject(self) -> str:
        """The NATS subject on which the event is published."""
        return f"weft.events.{self.topic}.{self.event}"

    @property
    def cursor(self) -> str:
        """The place after which a reader of all events goes on: transactions commit in another order than rows are
        numbered."""
        return f"{self.xid}-{self.id}"

    @property
    def message_id(self) -> str:
        """The id of every copy of this event, by which JetStream recognises a repeat."""
        return f"{self.topic}/{self.subject_id}/{self.version}"


class CloudEvent(Struct, frozen=True, kw_only=True):
    """The envelope, as CloudEvents 1.0 names its fields."""

    specversion: str = "1.0"
    id: str
    source: str
    type: str
    subject: str
    time: str
    datacontenttype: str = "application/json"
    data: msgspec.Raw


def cloud_event(event: Event, *, source: str = "weft") -> CloudEvent:
    at = datetime.fromtimestamp(event.at, UTC)
    return CloudEvent(
        id=event.message_id,
        source=f"/{source}",
        type=f"weft.{event.topic}.{event.event}",
        subject=event.subject_id,
        time=at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        data=event.data,
    )
