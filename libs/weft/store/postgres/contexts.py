"""Contexts on a real Postgres."""

from weft.store.asking import Asking
from weft.store.contexts import ContextKept


class PostgresContexts:
    """What `ContextStore` promises."""

    asking: Asking

    async def use_context(self, tenant: str, digest: str, *, at: float) -> ContextKept | None:
        row = await self.asking.row("use_context", tenant, digest, at)
        return None if row is None else ContextKept(**dict(row))

    async def context_piece(self, tenant: str, digest: str, number: int) -> tuple[bytes, int] | None:
        row = await self.asking.row("context_piece", tenant, digest, number)
        return None if row is None else (row["data"], row["bytes"])
