"""What accounting and views of the past read: what jobs held and waited for, and the state at a moment."""

import math
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from weft.messages.accounts import JobFacts
from weft.messages.events import Event

_LAST = (2**62, 2**62)


class Moment(Struct, frozen=True, kw_only=True):
    """A moment in the past: all events until `at`, seconds since the epoch, or until the event with this cursor."""

    at: float = math.inf
    cursor: str = ""

    @property
    def place(self) -> tuple[int, int]:
        """The transaction and the id of the last event."""
        if not self.cursor:
            return _LAST
        xid, _, event_id = self.cursor.partition("-")
        return int(xid), int(event_id)

    def holds(self, event: Event) -> bool:
        """True if the event was recorded by then."""
        return event.at <= self.at and (event.xid, event.id) <= self.place


class AccountStore(Protocol):
    async def jobs_between(self, begins: float, *, limit: int) -> list[str]:
        """The ids of all jobs that may have waited or held GPUs since then, but no more than `limit`."""

    async def job_facts(self, job_ids: Sequence[str]) -> list[JobFacts]:
        """Facts about these jobs that accounting needs."""

    async def accounts(self, job_ids: Sequence[str], *, begins: float, ends: float) -> list[Event]:
        """The events that tell what these jobs held and waited for from `begins` until `ends`, job by job in order:
        those of that time, those back to the last that says by itself how the job was then, and those with which that
        epoch began."""

    async def node_stories(self, *, begins: float, ends: float) -> list[Event]:
        """The events of all nodes from `begins` until `ends`, and the last of each before."""

    async def told_until(self, moment: Moment) -> list[Event]:
        """The events that give the state at a moment: of each job that may have been open then, its events until then,
        in order; of each node, the last.
        """
