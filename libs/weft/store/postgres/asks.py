"""The queue of asks, on a real Postgres."""

import asyncio
from collections.abc import Sequence

from weft.domain.lease import Lease
from weft.domain.tenants import Allowance, Use, too_large
from weft.messages.asks import Ask, AskKind, Entrance, Reshare, Scale, Update
from weft.store import ASKS_BYTES_MAX, TenantFullError
from weft.store.asking import Asking
from weft.store.postgres.decoding import decoded
from weft.store.rows import as_json, ask_of

LARGE_BYTES = 64 << 10  # are encoded in a thread, so that no other task waits


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
        adds_bytes: int = 0,
        allowance: Allowance | None = None,
    ) -> None:
        parts = (scale, share, update, entry)
        what, size = await asyncio.to_thread(_encoded, parts) if adds_bytes > LARGE_BYTES else _encoded(parts)
        size = max(adds_bytes, size)
        most = None if allowance is None else allowance.spec_bytes_max
        row = await self.asking.row("ask", kind, pool, subject_id, tenant, priority, at, *what, size, most)
        assert row is not None, "what is used is always told"
        if allowance is not None and not row["asked"]:
            used = Use(spec_bytes=row["bytes"])
            raise TenantFullError(too_large(used, allowance, asked_bytes=size) or "it was full a moment ago")

    async def asks(self, *, pool: str, limit: int, bytes_max: int = ASKS_BYTES_MAX) -> list[Ask]:
        return await decoded(await self.asking.rows("asks", pool, limit, bytes_max), ask_of)

    async def drop_asks(self, lease: Lease, ask_ids: Sequence[int]) -> None:
        await self.asking.row("drop_asks", lease.name, lease.holder, lease.epoch, list(ask_ids))


def _encoded(parts: Sequence[object]) -> tuple[list[str | None], int]:
    """The parts as JSON, and their bytes together."""
    what = [None if part is None else as_json(part) for part in parts]
    return what, sum(len(text.encode()) for text in what if text is not None)
