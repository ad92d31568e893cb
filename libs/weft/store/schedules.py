"""The store of schedules, which gateways use."""

from collections.abc import Sequence
from typing import Protocol

from weft.messages.http.schedules import ScheduleKept, ScheduleNote


class ScheduleStore(Protocol):
    async def add_schedule(self, schedule: ScheduleKept, *, most: int) -> str:
        """Store it; returns its id, or that of the schedule of this name that its tenant has with an equal
        specification. Raises ScheduleTakenError where that one differs, and TenantFullError where the tenant has `most`
        schedules."""

    async def schedules(
        self, *, tenant: str | None = None, named: str = "", after: str = "", limit: int = 100
    ) -> list[ScheduleKept]:
        """The schedules of one tenant or of all, in the order of their ids, those behind `after`; `named`: with this
        id or name alone."""

    async def remove_schedule(self, schedule_id: str) -> bool:
        """False: there was none."""

    async def pause_schedule(self, schedule_id: str, *, at: float) -> None:
        """No run becomes due until it is resumed; one that is being submitted is submitted."""

    async def resume_schedule(self, schedule_id: str, *, next_at: float) -> None:
        """Have it run again; `next_at`: when the next run is due."""

    async def schedules_to_try(self, *, at: float, limit: int) -> list[ScheduleKept]:
        """Those with a run that is due or being submitted, of each tenant in turn."""

    async def claim_run(
        self, schedule: ScheduleKept, *, due: float | None, next_at: float, at: float, note: ScheduleNote | None
    ) -> bool:
        """Begin to submit the run that was due at `due`, and move the schedule on; None: no run, which `note` explains.
        False: the schedule was moved, paused or removed since it was read."""

    async def open_runs(self, schedule: ScheduleKept, *, states: Sequence[str]) -> list[str] | None:
        """The runs of the schedule in these states, the oldest first. None: the run that was being submitted when the
        schedule was read is not any more."""

    async def postpone_run(self, schedule: ScheduleKept, *, until: float) -> None:
        """Have the run that is being submitted tried again then."""

    async def finish_run(
        self, schedule: ScheduleKept, *, job: str, runs: Sequence[str], note: ScheduleNote | None
    ) -> bool:
        """The run that is being submitted was submitted as `job`, or was not, which `note` explains. `runs`: those that
        may not be over. False: another gateway finished it."""
