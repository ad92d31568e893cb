"""The audit log: acts of administrators, sessions, sign-ins and refusals. Only retention deletes an entry."""

from enum import StrEnum
from typing import Protocol

from msgspec import Struct


class Outcome(StrEnum):
    """An act is written as asked before it is done; one that is refused or fails has a second entry."""

    ASKED = "asked"
    DONE = "done"
    REFUSED = "refused"


class Actor(Struct, frozen=True, kw_only=True):
    """The caller of a request. `who`: within the tenant, the label of the token or the name of the person; `person`:
    their id, empty for a token; `source`: its address."""

    tenant: str = ""
    who: str = ""
    session: str = ""
    source: str = ""
    request: str = ""
    person: str = ""


class AuditEntry(Struct, frozen=True, kw_only=True):
    """One entry, as it is stored. `seq` orders the entries; times in seconds since 1970."""

    seq: int
    at: float
    request: str
    outcome: Outcome
    act: str
    tenant: str
    who: str
    session: str
    source: str
    detail: str
    person: str


class AuditStore(Protocol):
    async def write_audit(self, actor: Actor, act: str, outcome: Outcome, *, detail: str, at: float) -> None:
        """Add an entry."""

    async def forget_audit(self, *, kept_seconds: float, entries_max: int, at_most: int) -> int:
        """Delete the oldest entries, at most `at_most`, and add one that says so: those older than `kept_seconds` and
        those beyond `entries_max`, 0 being no such bound. None of the last week. Returns how many."""
        ...

    async def audit(
        self, *, tenant: str | None, after: int | None = None, before: int | None = None, limit: int
    ) -> list[AuditEntry]:
        """A page of the log, in order: the first entries behind `after`, else the last ones before `before`, or of all.
        Of one tenant, or of all. No entry ever appears later before one that was returned."""
