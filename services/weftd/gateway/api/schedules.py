"""Schedules: listed, paused, resumed and removed. A job with `schedule` is submitted as any other."""

import re
from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct, structs

from weft.domain.schedules.cron import next_after
from weft.domain.spec import TOKEN_PATTERN
from weft.messages.http.schedules import ScheduleKept, SchedulesView, ScheduleView
from weftd.gateway.errors import TOKEN_WORDS, RejectedError
from weftd.gateway.http.revalidation import next_page
from weftd.gateway.http.route import Call, NoQuery, RouteAnswer, answer, operation
from weftd.gateway.thinking.schedules import recurrence

LIMIT_MAX = 100  # a specification may have 64 KiB
ONE = {200: RouteAnswer(description="The schedule.", type=ScheduleView)}
_matches_token = re.compile(TOKEN_PATTERN).fullmatch


class SchedulesQuery(Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX)] = LIMIT_MAX
    after: Annotated[str, Meta(max_length=63, description="`after` of the previous page.")] = ""


@operation(
    "GET /v1/schedules",
    "jobs",
    "List schedules",
    description="Each with its next run, and with its last run and the state of that.",
    answers={200: RouteAnswer(description="The tenant's schedules; for an administrator all.", type=SchedulesView)},
)
async def schedules(call: Call[SchedulesQuery]) -> web.StreamResponse:
    query, tenant = call.query, None if call.who.admin else call.who.tenant
    if "\0" in query.after:
        raise RejectedError(400, "after", "has a NUL character")
    async with call.gateway.reading.one(call.who.tenant):
        kept = await call.gateway.store.schedules(tenant=tenant, after=query.after, limit=query.limit)
    after = kept[-1].id if len(kept) == query.limit else None
    view = SchedulesView(schedules=tuple(map(_view, kept)), after=after)
    return answer(view, headers=next_page(call.request, after=after))


@operation(
    "POST /v1/schedules/{schedule}/pause",
    "jobs",
    "Pause a schedule",
    description="No run becomes due until it is resumed. Runs that were submitted go on.",
    answers=ONE,
)
async def pause(call: Call[NoQuery]) -> web.StreamResponse:
    found, now = await _found(call, "pause"), call.gateway.now()
    await call.gateway.store.pause_schedule(found.id, at=now)
    return answer(_view(structs.replace(found, paused_at=now if found.paused_at is None else found.paused_at)))


@operation(
    "POST /v1/schedules/{schedule}/resume",
    "jobs",
    "Resume a paused schedule",
    description="It goes on with its next time from now on; runs that were due meanwhile are not made up for.",
    answers=ONE,
)
async def resume(call: Call[NoQuery]) -> web.StreamResponse:
    found = await _found(call, "resume")
    if found.paused_at is None:
        return answer(_view(found))
    next_at = next_after(recurrence(found), call.gateway.now())
    await call.gateway.store.resume_schedule(found.id, next_at=next_at)
    return answer(_view(structs.replace(found, paused_at=None, next_at=next_at)))


@operation(
    "DELETE /v1/schedules/{schedule}",
    "jobs",
    "Remove a schedule",
    description="Runs that were submitted go on.",
    answers={200: RouteAnswer(description="The schedule as it was.", type=ScheduleView)},
)
async def remove(call: Call[NoQuery]) -> web.StreamResponse:
    found = await _found(call, "remove")
    await call.gateway.store.remove_schedule(found.id)
    return answer(_view(found))


async def _found(call: Call[NoQuery], act: str) -> ScheduleKept:
    """The schedule by its id or its name, to be changed. One of another tenant counts as missing, but for
    administrators, whose acts are written to the audit log."""
    name, who = call.path("schedule"), call.who
    if not _matches_token(name):
        raise RejectedError(400, "schedule", TOKEN_WORDS)
    found = await call.gateway.store.schedules(tenant=who.tenant, named=name, limit=1)
    if not found and who.admin:
        found = await call.gateway.store.schedules(named=name, limit=2)
    if not found:
        raise RejectedError(404, "schedule", f"no schedule has the id or the name {name}")
    if len(found) > 1:
        tenants = " and ".join(each.tenant for each in found)
        raise RejectedError(400, "schedule", f"{tenants} have a schedule {name}: give its id")
    if found[0].tenant != who.tenant:
        auditing = call.gateway.auditing
        subject = f"{act} schedule {found[0].id}"
        await auditing.asked(auditing.actor(call.request, who), subject, f"{name} of {found[0].tenant}")
    return found[0]


def _view(kept: ScheduleKept) -> ScheduleView:
    schedule = recurrence(kept)
    return ScheduleView(
        id=kept.id,
        name=kept.name,
        tenant=kept.tenant,
        cron=schedule.cron,
        timezone=schedule.timezone,
        overlap=schedule.overlap,
        start_within=schedule.start_within,
        pool=kept.spec.pool,
        created_at=kept.created_at,
        submitter=kept.submitter,
        next_run_at=None if kept.paused_at is not None else kept.next_at,
        paused_at=kept.paused_at,
        last_run_at=kept.last_at,
        last_job=kept.last_job,
        last_state=kept.last_state,
        note=kept.note,
        noted_at=kept.noted_at,
    )
