"""What users ask of jobs and nodes, on its way from the gateway to the scheduler."""

from enum import StrEnum
from typing import ClassVar

from msgspec import Struct

from libs.messages import Message


class AskKind(StrEnum):
    SUBMIT = "submit"
    CANCEL = "cancel"
    REQUEUE = "requeue"
    PRIORITISE = "prioritise"
    DRAIN = "drain"
    RESUME = "resume"


class Ask(Struct, frozen=True, kw_only=True):
    """One thing asked, stored until the scheduler has done it. `subject_id` is a job's or a node's id."""

    id: int
    kind: AskKind
    subject_id: str
    tenant: str
    at: float
    priority: int = 0


class AskStored(Message, frozen=True, kw_only=True):
    """Gateway → scheduler: something was asked, look now."""

    subject: ClassVar[str] = "weft.asks.{pool}"
    pool: str


class OutboxFilled(Message, frozen=True, kw_only=True):
    """Anyone → relay: events are waiting to be published, look now."""

    subject: ClassVar[str] = "weft.outbox"


class SubmitAnswered(Struct, frozen=True, kw_only=True):
    """The reply to a request on `weft.submit`, whose payload is the specification itself (JSON or YAML).

    Headers: `Authorization: Bearer TOKEN`, `Idempotency-Key`, `Content-Type`. Above 0, `retry_after` is in how many
    seconds the same may be asked again.
    """

    job_id: str = ""
    created: bool = False
    error: str = ""
    field: str = ""
    retry_after: float = 0.0
