"""People on a real Postgres, and the audit log of what they did."""

from weft.store.asking import Asking
from weft.store.audit import Actor, AuditEntry, Outcome
from weft.store.people import Person, PersonKept
from weft.store.postgres.sign_ins import sign_in_of
from weft.store.sign_ins import SignIn


class PostgresPeople:
    """Implements `PeopleStore` on Postgres."""

    asking: Asking

    async def sign_person_in(
        self,
        person: Person,
        code_hash: bytes,
        *,
        challenge: str,
        at: float,
        expires_at: float,
        session_ends_at: float,
        most: int,
        actor: Actor,
    ) -> SignIn | None:
        known = (person.id, person.issuer, person.subject, person.name, person.tenant, person.role.value, at)
        code = (code_hash, challenge, expires_at, session_ends_at, most)
        return sign_in_of(await self.asking.row("sign_person_in", *known, *code, actor.source, actor.request))

    async def end_sessions_of(self, person: str, *, at: float) -> int:
        return await self.asking.count("end_sessions_of", person, at)

    async def people(self, *, tenant: str | None, limit: int) -> list[PersonKept]:
        return [PersonKept(**dict(row)) for row in await self.asking.rows("people", tenant, limit)]

    async def disable_person(self, person: str, *, at: float | None) -> str | None:
        row = await self.asking.row("disable_person", person, at)
        return None if row is None else str(row["tenant"])


class PostgresAudit:
    """Implements `AuditStore` on Postgres."""

    asking: Asking

    async def write_audit(self, actor: Actor, act: str, outcome: Outcome, *, detail: str, at: float) -> None:
        who = (actor.tenant, actor.who, actor.session, actor.source)
        await self.asking.row("write_audit", actor.request, outcome.value, act, *who, detail, at, actor.person)

    async def forget_audit(self, *, kept_seconds: float, entries_max: int, at_most: int) -> int:
        return await self.asking.count("forget_audit", kept_seconds, entries_max, at_most)

    async def audit(
        self, *, tenant: str | None, after: int | None = None, before: int | None = None, limit: int
    ) -> list[AuditEntry]:
        rows = await (
            self.asking.rows("audit_before", tenant, before, limit)
            if after is None
            else self.asking.rows("audit_after", tenant, after, limit)
        )
        found = [AuditEntry(**{**dict(row), "outcome": Outcome(row["outcome"])}) for row in rows]
        return sorted(found, key=lambda entry: entry.seq)
