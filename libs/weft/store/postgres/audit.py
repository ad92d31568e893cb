"""The audit log on a real Postgres."""

from weft.store.asking import Asking
from weft.store.audit import Actor, AuditEntry, Outcome


class PostgresAudit:
    """Implements `AuditStore` on Postgres."""

    asking: Asking

    async def write_audit(self, actor: Actor, act: str, outcome: Outcome, *, detail: str, at: float) -> None:
        who = (actor.tenant, actor.who, actor.session, actor.source)
        await self.asking.row("write_audit", actor.request, outcome.value, act, *who, detail, at)

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
