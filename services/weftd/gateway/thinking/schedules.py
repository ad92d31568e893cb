"""Decides which run of a schedule is submitted, and what becomes of one that is not. Pure."""

from collections.abc import Sequence

from msgspec import Struct, structs

from weft.domain.quantity import duration_text
from weft.domain.schedules import Overlap, Schedule, ScheduledRun, due_text
from weft.domain.schedules.cron import latest_until, next_after
from weft.domain.spec import JobSpec
from weft.domain.text import plural
from weft.messages.http.schedules import ScheduleKept, ScheduleNote

RUNS_OPEN_MAX = 100  # runs of one schedule that are not over
_EARLIER_MAX = {Overlap.SKIP: 0, Overlap.WAIT: 1, Overlap.ALLOW: RUNS_OPEN_MAX - 1, Overlap.REPLACE: RUNS_OPEN_MAX - 1}
"""Earlier runs that are not over with which another run is submitted all the same."""


class Claim(Struct, frozen=True, kw_only=True):
    """The run to submit, by the time at which it is due; None: no run, which `note` explains. `next_at`: the time after
    it."""

    due: float | None
    next_at: float
    note: ScheduleNote | None = None


def recurrence(kept: ScheduleKept) -> Schedule:
    found = kept.spec.recurs
    assert found is not None, "a schedule is only stored with its times"
    return found


def claim(kept: ScheduleKept, now: float) -> Claim:
    """The last run that is due: those before it were missed, as no gateway was there. Raises CronError."""
    schedule = recurrence(kept)
    due = latest_until(schedule, kept.next_at, now)
    following = next_after(schedule, due)
    if is_late(kept, due, now):
        return Claim(due=None, next_at=following, note=missed(kept, due))
    note = (
        ScheduleNote(due_at=kept.next_at, why=f"missed: {due_text(due)} was due already")
        if due > kept.next_at
        else None
    )
    return Claim(due=due, next_at=following, note=note)


def is_late(kept: ScheduleKept, due: float, now: float) -> bool:
    """Return True if the run that was due then may not start any more."""
    return now - due > recurrence(kept).start_within_seconds


def missed(kept: ScheduleKept, due: float, why: str = "") -> ScheduleNote:
    within = duration_text(recurrence(kept).start_within_seconds)
    return ScheduleNote(due_at=due, why=f"missed: it could not be submitted within {within}{why and f': {why}'}")


def refusal(kept: ScheduleKept, earlier: Sequence[str]) -> str:
    """Why the run is not submitted while these earlier runs are not over; empty: it is."""
    overlap = recurrence(kept).overlap
    if len(earlier) <= _EARLIER_MAX[overlap]:
        return ""
    runs = f"{earlier[-1]} is" if len(earlier) == 1 else f"{plural(len(earlier), 'earlier run')} are"
    return f"skipped: {runs} not over (overlap: {overlap})"


def replaced(kept: ScheduleKept, earlier: Sequence[str], job: str) -> list[str]:
    """The earlier runs to cancel once `job` is submitted."""
    return [each for each in earlier if each != job] if recurrence(kept).overlap is Overlap.REPLACE else []


def run_of(kept: ScheduleKept, due: float) -> JobSpec:
    """The job of the run that is due then: the same one each time that it is asked for."""
    return structs.replace(
        kept.spec,
        schedule=None,
        scheduled=ScheduledRun(schedule=kept.id, due_at=due),
        env={**kept.spec.env, "WEFT_DUE_AT": due_text(due)},
        singleton=kept.spec.singleton or recurrence(kept).overlap is Overlap.WAIT,
    )


def key_of(kept: ScheduleKept, due: float) -> str:
    """The key under which the run is submitted: one job has it, however often it is submitted."""
    return f"schedule {kept.id} {int(due)}"
