"""Schedules: a job that runs again and again, at times of five fields as in crontab(5), in a time zone."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from weft.domain.quantity import DURATION_PATTERN, duration_seconds

SCHEDULE_PREFIX = "r-"
ZONE_PATTERN = r"^[A-Za-z][A-Za-z0-9_+-]{0,31}(/[A-Za-z0-9_+-]{1,31}){0,2}$(?!\n)"

Cron = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=200,
        description="Minute, hour, day of the month, month and day of the week, such as `0 3 * * *`; or `@daily`.",
    ),
]
Zone = Annotated[str, Meta(pattern=ZONE_PATTERN, description="A time zone such as `Europe/Berlin`.")]


class Overlap(StrEnum):
    """The act for a run that is due while an earlier run of its schedule is not over."""

    SKIP = "skip"  # as `Forbid` of a CronJob of Kubernetes
    WAIT = "wait"  # it is submitted, and starts once the earlier run is over; at most one waits
    ALLOW = "allow"
    REPLACE = "replace"  # the earlier run is cancelled


class Schedule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """When the job runs, again and again. Text stands for `cron` alone."""

    cron: Cron
    timezone: Zone = "UTC"
    overlap: Overlap = Overlap.SKIP
    start_within: Annotated[str, Meta(pattern=DURATION_PATTERN)] = "1h"

    @property
    def start_within_seconds(self) -> float:
        return duration_seconds(self.start_within)


class ScheduledRun(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A run of a schedule: the id of the schedule, and the time at which the run was due, in seconds since 1970. The
    job has the name of the schedule. The gateway sets it; no user does."""

    schedule: str
    due_at: float


def due_text(due_at: float) -> str:
    """`2026-03-29T01:00Z`."""
    return datetime.fromtimestamp(due_at, UTC).strftime("%Y-%m-%dT%H:%MZ")
