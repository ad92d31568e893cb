"""Why jobs ended, and why steps were taken: the causes in their events, read from the store."""

from collections.abc import Sequence

import msgspec

from weft.domain.job import Cause, Job, JobEvent, JobState
from weft.store import GatewayStore

TOLD = frozenset({JobState.FAILED, JobState.CANCELLED})


class EventCause(msgspec.Struct, frozen=True):
    """The cause in a job's event."""

    cause: Cause


async def endings(store: GatewayStore, jobs: Sequence[Job], *, every: bool = False) -> dict[str, Cause]:
    """The causes by job. With `every` also those of jobs that succeeded; a list needs only their state."""
    over = [job.id for job in jobs if job.state in TOLD or (every and job.state is JobState.SUCCEEDED)]
    ends = [JobEvent.FAILED, JobEvent.CANCELLED, JobEvent.SUCCEEDED]
    told = await store.last_told("jobs", over, events=ends) if over else []
    return {event.subject_id: msgspec.json.decode(event.data, type=EventCause).cause for event in told}


async def last_cause(store: GatewayStore, job: Job, events: Sequence[JobEvent]) -> Cause | None:
    """The cause of the job's newest event of these kinds."""
    told = await store.last_told("jobs", [job.id], events=events)
    return msgspec.json.decode(told[0].data, type=EventCause).cause if told else None
