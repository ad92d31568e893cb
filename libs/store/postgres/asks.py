"""The queue of asks, on a real Postgres."""

from collections.abc import Sequence

from libs.domain.lease import Lease
from libs.messages.asks import Ask, AskKind, Entrance, Reshare, Scale, Update
from libs.store.asking import Asking
from libs.store.rows import as_json, ask_of


class PostgresAsks:
    asking: Asking

    async def ask(
        self,
        kind: AskKind,
        *,
        subject_id: str,
        pool: str,
        tenant: str,
        at: float,
        priority: int = 0,
        scale: Scale | None = None,
        share: Reshare | None = None,
        update: Update | None = None,
        entry: Entrance | None = None,
    ) -> None:
        what = [None if one is None else as_json(one) for one in (scale, share, update, entry)]
        await self.asking.row("ask", kind, pool, subject_id, tenant, priority, at, *what)

    async def asks(self, *, pool: str, limit: int) -> list[Ask]:
        return [ask_of(row) for row in await self.asking.rows("asks", pool, limit)]

    async def drop_asks(self, lease: Lease, ask_ids: Sequence[int]) -> None:
        await self.asking.row("drop_asks", lease.name, lease.holder, lease.epoch, list(ask_ids))
