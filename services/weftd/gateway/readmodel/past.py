"""A job or the cluster at a past moment, computed from every event until then by the law of steps. Pure."""

import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from weft.domain.cluster import Drain, Node
from weft.domain.job import Job, JobEvent, JobState, Revision, Step, after
from weft.messages.events import Event, RevisionTold
from weft.messages.http import EventData
from weft.store.accounts import Moment
from weftd.gateway.errors import RejectedError

_CURSOR = re.compile(r"[0-9]{1,18}-[0-9]{1,18}")
_AHEAD_SECONDS = 60.0  # another clock may be this far ahead of ours

At = Annotated[
    str,
    Meta(
        description="Past time to show: seconds since 1970, a time such as 2026-01-31T12:00:00Z, or the cursor of an"
        " event, which is the last that had been told."
    ),
]


class PastQuery(Struct, frozen=True, forbid_unknown_fields=True):
    at: At = ""


class Past(Struct, frozen=True, kw_only=True):
    """The open jobs and all nodes at a past moment."""

    at: float
    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]


def moment_of(text: str, *, now: float) -> Moment:
    """The moment of a query. Raises RejectedError if it is no moment, or lies in the future."""
    if _CURSOR.fullmatch(text):
        return Moment(cursor=text)
    try:
        at = float(text)
    except ValueError:
        at = _iso(text)
    if not math.isfinite(at) or not 0 <= at <= now + _AHEAD_SECONDS:
        raise RejectedError(400, "at", "expected a time that has passed")
    return Moment(at=at)


def _iso(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise RejectedError(
            400, "at", "expected seconds since 1970, a time such as 2026-01-31T12:00:00Z, or the cursor of an event"
        ) from None


def job_then(job: Job, told: Sequence[Event]) -> Job:
    """A job after these events, which are its first ones. The present job gives only its constant fields."""
    then = Job(
        id=job.id,
        tenant=job.tenant,
        spec=job.spec,
        seq=job.seq,
        submitted_at=job.submitted_at,
        submitter=job.submitter,
        since=job.submitted_at,
        priority=job.spec.priority,
    )
    for event in told:
        then = folded(then, event)
    return then


def folded(then: Job, event: Event) -> Job:
    """A job after one more event."""
    return then if event.event == JobEvent.SUBMITTED else after(then, _step(event))


def past_of(told: Iterable[Event], jobs: Iterable[Job], moment: Moment) -> Past:
    """The past, from the result of `told_until` and the jobs that it names. A job deleted meanwhile is left out."""
    known = {job.id: job for job in jobs}
    nodes: list[Node] = []
    then: list[Job] = []
    last = 0.0
    for (topic, subject_id), events in groupby(told, key=lambda event: (event.topic, event.subject_id)):
        story = list(events)
        last = max(last, story[-1].at)
        if topic == "nodes":
            if story[-1].event != "removed":
                nodes.append(_node(story[-1]))
        elif subject_id in known and not (job := job_then(known[subject_id], story)).state.final:
            then.append(job)
    at = moment.at if math.isfinite(moment.at) else last
    return Past(at=at, nodes=tuple(nodes), jobs=tuple(sorted(then, key=lambda job: job.seq)))


def _step(event: Event) -> Step:
    """The step that an event records."""
    data = _DATA.decode(event.data)
    assert data.cause is not None, f"{event.message_id} has no cause"
    return Step(
        job_id=event.subject_id,
        version=event.version - 1,
        event=JobEvent(event.event),
        to=JobState(data.state),
        at=event.at,
        cause=data.cause,
        epoch=data.epoch,
        priority=data.priority,
        attempts=data.attempts,
        not_before=data.not_before,
        placement=data.placement,
        exit_code=data.exit_code,
        progress=data.progress or None,
        size=data.size,
        gpu_model=data.gpu_model,
        worked=data.worked,
        next_placement=data.next_placement,
        revisions=None if data.revisions is None else tuple(map(_revision, data.revisions)),
        loans=data.loans,
    )


def _revision(told: RevisionTold) -> Revision:
    """The revision as far as events describe it; no event contains values of the environment."""
    return Revision(number=told.number, image=told.image, command=told.command, at=told.at, back_to=told.back_to)


def _node(event: Event) -> Node:
    data = _DATA.decode(event.data)
    assert data.capacity is not None, f"{event.message_id} has no capacity"
    return Node(
        id=event.subject_id,
        pool=data.pool,
        address=data.address,
        capacity=data.capacity,
        runtime=data.runtime,
        ready=bool(data.ready),
        drain=Drain() if data.drained else None,
        seen_at=event.at,
    )


_DATA = msgspec.json.Decoder(EventData)
