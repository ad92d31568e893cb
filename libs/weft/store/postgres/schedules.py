"""Schedules on a real Postgres."""

from collections.abc import Sequence

import msgspec

from weft.messages.http.schedules import ScheduleKept, ScheduleNote
from weft.store import ScheduleTakenError, TenantFullError
from weft.store.asking import Asking, Row
from weft.store.postgres.decoding import decoded
from weft.store.rows import hash_of, spec_of


class PostgresSchedules:
    """Implements `ScheduleStore`."""

    asking: Asking

    async def add_schedule(self, schedule: ScheduleKept, *, most: int) -> str:
        digest, text = hash_of(schedule.spec), msgspec.json.encode(schedule.spec).decode()
        given = (schedule.id, schedule.tenant, schedule.name, text, digest, schedule.submitter)
        row = await self.asking.row("add_schedule", *given, schedule.created_at, schedule.next_at, most)
        if row is not None:
            return schedule.id
        found = await self.asking.row("schedule_named", schedule.tenant, schedule.name)
        if found is None:
            raise TenantFullError(f"tenant {schedule.tenant} has {most} schedules: remove one")
        if found["spec_hash"] != digest:
            raise ScheduleTakenError(f"tenant {schedule.tenant} has a schedule {schedule.name} that differs")
        return str(found["id"])

    async def schedules(
        self, *, tenant: str | None = None, named: str = "", after: str = "", limit: int = 100
    ) -> list[ScheduleKept]:
        return await decoded(await self.asking.rows("schedules", tenant, named, after, limit), _schedule_of)

    async def remove_schedule(self, schedule_id: str) -> bool:
        return await self.asking.row("remove_schedule", schedule_id) is not None

    async def pause_schedule(self, schedule_id: str, *, at: float) -> None:
        await self.asking.row("pause_schedule", schedule_id, at)

    async def resume_schedule(self, schedule_id: str, *, next_at: float) -> None:
        await self.asking.row("resume_schedule", schedule_id, next_at)

    async def schedules_to_try(self, *, at: float, limit: int) -> list[ScheduleKept]:
        return await decoded(await self.asking.rows("schedules_to_try", at, limit), _schedule_of)

    async def claim_run(
        self, schedule: ScheduleKept, *, due: float | None, next_at: float, at: float, note: ScheduleNote | None
    ) -> bool:
        told = (None, None) if note is None else (note.why, note.due_at)
        return await self.asking.row("claim_run", schedule.id, schedule.next_at, due, next_at, at, *told) is not None

    async def open_runs(self, schedule: ScheduleKept, *, states: Sequence[str]) -> list[str] | None:
        row = await self.asking.row("open_runs", schedule.id, schedule.firing_at, list(states))
        return None if row is None else list(row["open"])

    async def postpone_run(self, schedule: ScheduleKept, *, until: float) -> None:
        await self.asking.row("postpone_run", schedule.id, schedule.firing_at, until)

    async def finish_run(
        self, schedule: ScheduleKept, *, job: str, runs: Sequence[str], note: ScheduleNote | None
    ) -> bool:
        told = (None, None) if note is None else (note.why, note.due_at)
        row = await self.asking.row("finish_run", schedule.id, schedule.firing_at, job, list(runs), *told)
        return row is not None


def _schedule_of(row: Row) -> ScheduleKept:
    return ScheduleKept(**{**dict(row), "spec": spec_of(row)})
