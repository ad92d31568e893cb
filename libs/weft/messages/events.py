"""Events, as CloudEvents on `weft.events.jobs.<event>` and `weft.events.nodes.<event>`.

docs/events.md shows one of each; a test holds it against this file.
"""

from datetime import UTC, datetime
from typing import ClassVar

import msgspec
from msgspec import Struct

from weft.domain.job import Cause, CauseCode, JobChange, JobState, Loan, Placement, Revision
from weft.domain.schedules import due_text
from weft.domain.spec import JobSpec
from weft.domain.tenants import actor_text
from weft.messages import Message

TOLD_BYTES_MAX = 4 << 10  # of a command, or of the names of an environment, in an event
JOB_SUBJECT = "weft.events.jobs."
NODE_SUBJECT = "weft.events.nodes."
NODE_EVENTS = ("joined", "changed", "lost", "returned", "drained", "resumed", "removed", "health")


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
        """The place after which a reader goes on: transactions commit in another order than rows are numbered."""
        return f"{self.xid}-{self.id}"

    @property
    def message_id(self) -> str:
        """The id of every copy of this event, by which JetStream recognises a repeat."""
        return f"{self.topic}/{self.subject_id}/{self.version}"


def place_of(cursor: str) -> tuple[int, int]:
    """The place of a cursor among all events; without one, the place before them all."""
    xid, _, event_id = (cursor or "0-0").partition("-")
    return int(xid), int(event_id)


class RevisionTold(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A revision of a service in an event: of the environment only names, as values may be secret. `command` and
    `env_names` are left out where they are larger than 4 KiB."""

    number: int
    image: str | None = None
    command: tuple[str, ...] | None = None
    env_names: tuple[str, ...] = ()
    at: float = 0.0
    back_to: int | None = None


class JobEventData(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an event says of a job: how the job is after the step, and what the step gave."""

    job_id: str
    name: str
    tenant: str
    pool: str
    state: str
    epoch: int
    version: int
    priority: int
    cause: Cause
    placement: Placement | None = None
    exit_code: int | None = None
    progress: dict[str, float] | None = None
    attempts: int | None = None
    not_before: float | None = None
    size: dict[str, int] | None = None
    gpu_model: str | None = None
    worked: dict[str, int] | None = None
    next_placement: Placement | None = None
    revisions: tuple[RevisionTold, ...] | None = None
    loans: tuple[Loan, ...] | None = None


def submission_data(job_id: str, tenant: str, spec: JobSpec, *, submitter: str = "") -> JobEventData:
    """The data of the event that a job was submitted. `submitter`: the name of the person who did it; empty if a token
    without a person was used."""
    by = actor_text(tenant, submitter)
    run = spec.scheduled
    of_schedule = "" if run is None else f", as the run of schedule {spec.name} that was due at {due_text(run.due_at)}"
    return JobEventData(
        job_id=job_id,
        name=spec.name,
        tenant=tenant,
        pool=spec.pool,
        state=JobState.QUEUED,
        epoch=0,
        version=1,
        priority=spec.priority,
        cause=Cause(code=CauseCode.SUBMITTED, sentence=f"submitted by {by}{of_schedule}", by=by),
    )


def step_data(change: JobChange) -> JobEventData:
    """What the event of a step says."""
    step, job = change.step, change.after
    return JobEventData(
        job_id=job.id,
        name=job.name,
        tenant=job.tenant,
        pool=job.pool,
        state=job.state,
        epoch=job.epoch,
        version=job.version,
        priority=job.priority,
        cause=step.cause,
        placement=step.placement,
        exit_code=step.exit_code,
        progress=step.progress,
        attempts=step.attempts,
        not_before=None if step.not_before is None else round(step.not_before, 6),
        size=step.size,
        gpu_model=step.gpu_model,
        worked=step.worked,
        next_placement=step.next_placement,
        revisions=None if step.revisions is None else tuple(map(_told, step.revisions)),
        loans=step.loans,
    )


def _told(revision: Revision) -> RevisionTold:
    names = tuple(sorted(revision.env or ()))
    return RevisionTold(
        number=revision.number,
        image=revision.image,
        command=revision.command if _is_short(revision.command or ()) else None,
        env_names=names if _is_short(names) else (),
        at=revision.at,
        back_to=revision.back_to,
    )


def _is_short(words: tuple[str, ...]) -> bool:
    return len(msgspec.json.encode(words)) <= TOLD_BYTES_MAX


class EventTold(Message, frozen=True, kw_only=True):
    """The relay → all: one CloudEvent. A hint to read the store."""

    subject: ClassVar[str] = "weft.events.{topic}.{event}"
    id: str  # as `Event.message_id`
    type: str  # weft.<topic>.<event>

    @property
    def subject_id(self) -> str:
        """The job or the node that it is about."""
        _, _, rest = self.id.partition("/")
        return rest.rpartition("/")[0]

    @property
    def topic(self) -> str:
        _, topic, _ = self.type.split(".")
        return topic

    @property
    def event(self) -> str:
        _, _, event = self.type.split(".")
        return event


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


def in_short(event: Event) -> Event:
    """The event of a job without what may be large: where it is, its revisions and its loans. The store has them."""
    if event.topic != "jobs":
        return event
    data = msgspec.json.decode(event.data, type=JobEventData)
    short = msgspec.structs.replace(data, placement=None, next_placement=None, revisions=None, loans=None)
    return msgspec.structs.replace(event, data=msgspec.Raw(msgspec.json.encode(short)))


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
