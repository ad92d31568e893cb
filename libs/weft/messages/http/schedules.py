"""Schedules: the record that is stored of a job that runs again and again, and its view over HTTP."""

from typing import Annotated

from msgspec import Meta, Struct

from weft.domain.schedules import Overlap
from weft.domain.spec import JobSpec
from weft.messages.http import Seconds, Submitter


class ScheduleKept(Struct, frozen=True, kw_only=True):
    """A schedule; times in seconds since 1970, None if there is none.

    `firing_at`: when the run was due that is being submitted. `last_at` and `last_job`: of the newest run that was
    submitted, and `last_state` its state; empty: it is not kept any more. `note`: why the run that was due at
    `noted_at` was not submitted.
    """

    id: str
    tenant: str
    name: str
    spec: JobSpec
    submitter: str
    created_at: float
    next_at: float
    firing_at: float | None = None
    paused_at: float | None = None
    last_at: float | None = None
    last_job: str = ""
    last_state: str = ""
    note: str = ""
    noted_at: float | None = None


class ScheduleNote(Struct, frozen=True, kw_only=True):
    """Why the run that was due then was not submitted."""

    due_at: float
    why: str


class ScheduleView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schedule. `next_run_at`: none while it is paused. `last_job`: its newest run that was submitted, due at
    `last_run_at`, and `last_state` its state; empty once it is not kept any more. `note`: why the run that was due at
    `noted_at` was not submitted.
    """

    id: str
    name: str
    tenant: str
    cron: str
    timezone: str
    overlap: Overlap
    start_within: str
    pool: str
    created_at: Seconds
    submitter: Submitter = ""
    next_run_at: Seconds | None = None
    paused_at: Seconds | None = None
    last_run_at: Seconds | None = None
    last_job: str = ""
    last_state: str = ""
    note: str = ""
    noted_at: Seconds | None = None


class SchedulesView(Struct, frozen=True, kw_only=True):
    """Schedules in the order of their ids. `after` is the parameter of the next page, if there may be one."""

    schedules: tuple[ScheduleView, ...]
    after: Annotated[str | None, Meta(description="`after` of the next page.")] = None
