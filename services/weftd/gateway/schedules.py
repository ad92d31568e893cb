"""Submits the runs of schedules when they are due. One gateway of several has this duty at a time.

A run is claimed in Postgres, which moves its schedule to the next time, then submitted under a key of the schedule and
the time, and then finished. A gateway that dies in between leaves a claimed run; the next one submits it under the same
key, so that there is one job, whatever the first one had done.
"""

import asyncio
import logging
from collections.abc import Callable

from msgspec import structs

from weft.domain.job import FINAL, JobState
from weft.domain.schedules import due_text
from weft.domain.schedules.cron import CronError
from weft.messages.asks import AskKind
from weft.messages.http.schedules import ScheduleKept, ScheduleNote
from weft.store import GatewayStore, KeyReusedError
from weft.store.tenants import Access
from weftd.gateway.duty import Duty
from weftd.gateway.errors import RejectedError
from weftd.gateway.submissions import Submissions
from weftd.gateway.thinking.schedules import (
    claim,
    is_late,
    key_of,
    missed,
    refusal,
    replaced,
    run_of,
)
from weftd.gateway.wakeup import Wakeups

logger = logging.getLogger(__name__)

DUTY = "schedules"
BEAT_SECONDS = 1.0
RUNS_AT_ONCE = 16
RUNS_AT_ONCE_OF_TENANT = 4
RETRY_SECONDS = 10.0  # until a run is tried again for which its tenant had no room
LATER = frozenset({408, 429, 503})  # refusals that end by themselves
OPEN = tuple(state for state in JobState if state not in FINAL)


class Schedules:
    """`now` is the time of day, `clock` does not jump; `holder` tells this gateway from others."""

    def __init__(
        self,
        store: GatewayStore,
        submissions: Submissions,
        wakeups: Wakeups,
        *,
        holder: str,
        now: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._submissions = submissions
        self._wakeups = wakeups
        self._now = now
        self._duty = Duty(store, DUTY, holder=holder, clock=clock)
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}  # by tenant and schedule

    @property
    def busy(self) -> bool:
        """True if a run is being submitted."""
        return any(not task.done() for task in self._tasks.values())

    async def beat(self) -> None:
        """Begin to submit what is due. Each schedule has a task of its own, so that no slow one delays the others.
        Raises what a task raised: the run is tried again."""
        if not await self._duty.renew():
            await self._end_tasks()
            return
        if len(self._tasks) < RUNS_AT_ONCE:
            for kept in await self._store.schedules_to_try(at=self._now(), limit=2 * RUNS_AT_ONCE):
                if self._has_room(kept):
                    self._tasks[kept.tenant, kept.id] = asyncio.create_task(self.fire(kept))
        for schedule in [name for name, task in self._tasks.items() if task.done()]:
            self._tasks.pop(schedule).result()

    def _has_room(self, kept: ScheduleKept) -> bool:
        of_tenant = sum(tenant == kept.tenant for tenant, _ in self._tasks)
        is_new = (kept.tenant, kept.id) not in self._tasks
        return is_new and of_tenant < RUNS_AT_ONCE_OF_TENANT and len(self._tasks) < RUNS_AT_ONCE

    async def close(self) -> None:
        """End, and leave the duty to another gateway."""
        await self._end_tasks()
        await self._duty.leave()

    async def _end_tasks(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())
        self._tasks.clear()

    async def fire(self, kept: ScheduleKept) -> None:
        """Submit the run that is due, unless there is a reason against it. Raises StoreUnavailableError."""
        if kept.firing_at is None:
            try:
                wanted = claim(kept, self._now())
            except CronError as error:  # a zone that the machine does not know any more
                logger.warning("schedule %s of %s is paused: %s", kept.name, kept.tenant, error)
                await self._store.pause_schedule(kept.id, at=self._now())
                return
            moved = await self._store.claim_run(
                kept, due=wanted.due, next_at=wanted.next_at, at=self._now(), note=wanted.note
            )
            if wanted.note is not None:
                logger.info("a run of schedule %s of %s was %s", kept.name, kept.tenant, wanted.note.why)
            if wanted.due is None or not moved:
                return
            kept = structs.replace(kept, firing_at=wanted.due, next_at=wanted.next_at)
        assert kept.firing_at is not None, "the run is claimed"
        await self._submit(kept, kept.firing_at)

    async def _submit(self, kept: ScheduleKept, due: float) -> None:
        """Submit the claimed run and finish it, or postpone it."""
        spec, key = run_of(kept, due), key_of(kept, due)
        try:
            before = await self._store.submitted(spec, tenant=kept.tenant, key=key)
        except KeyReusedError:
            await self._refused(kept, due, [], "refused: a job of the tenant has the key of this run")
            return
        earlier = await self._store.open_runs(kept, states=OPEN)
        if earlier is None:  # another gateway finished it, or the schedule was removed
            return
        job = "" if before is None else before.job_id
        if not job:
            if is_late(kept, due, self._now()):
                await self._finish(kept, earlier, note=missed(kept, due))
                return
            if why := refusal(kept, earlier):
                await self._refused(kept, due, earlier, why)
                return
            try:
                job = (await self._submissions.submit_run(await self._owner(kept), spec, key=key)).id
            except RejectedError as error:
                if error.status in LATER and not is_late(kept, due, self._now() + RETRY_SECONDS):
                    await self._store.postpone_run(kept, until=self._now() + RETRY_SECONDS)
                    return
                field = f"{error.field}: " if error.field else ""
                await self._refused(kept, due, earlier, f"refused: {field}{error.reason}")
                return
        for each in replaced(kept, earlier, job):
            await self._store.ask(
                AskKind.CANCEL,
                subject_id=each,
                pool=spec.pool,
                tenant=kept.tenant,
                at=self._now(),
                who=f"schedule {kept.name}",
            )
            self._wakeups.asked(spec.pool)
        await self._finish(kept, [each for each in earlier if each != job], job=job)

    async def _refused(self, kept: ScheduleKept, due: float, earlier: list[str], why: str) -> None:
        logger.info("the run of schedule %s of %s at %s was %s", kept.name, kept.tenant, due_text(due), why)
        await self._finish(kept, earlier, note=ScheduleNote(due_at=due, why=why))

    async def _finish(
        self, kept: ScheduleKept, earlier: list[str], *, job: str = "", note: ScheduleNote | None = None
    ) -> None:
        await self._store.finish_run(kept, job=job, runs=[*earlier, job] if job else earlier, note=note)

    async def _owner(self, kept: ScheduleKept) -> Access:
        """The tenant as it is now. A schedule has its tenant's allowance, also if an administrator submitted it; of the
        person only the name is kept."""
        known = await self._store.tenants(tenant=kept.tenant, limit=1)
        assert known, "a tenant is not deleted"
        return Access(tenant=kept.tenant, chosen=known[0].chosen, label=kept.submitter, person=kept.submitter)
