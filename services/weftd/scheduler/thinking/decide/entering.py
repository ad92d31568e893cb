"""People in runs: they change nothing of a job, and its story says so."""

from weft.domain.job import Job, JobEvent, JobState, Step
from weft.messages.asks import Ask
from weftd.scheduler.thinking.state.picture import Picture

OPEN_TO_PEOPLE = frozenset({JobState.STARTING, JobState.RUNNING, JobState.STOPPING})


def enter(picture: Picture, ask: Ask, job: Job, now: float) -> list[Step]:
    """The step that tells it; none once that epoch is over: what ended it has ended the session too."""
    entry = ask.entry
    if entry is None or entry.epoch != job.epoch or job.state not in OPEN_TO_PEOPLE:
        return []
    return picture.go(job, JobEvent.ENTERED, entry.cause, now, ask=ask.id)
