"""Contexts on a real Postgres."""

import asyncpg

from libs.store.asking import Asking
from libs.store.contexts import ContextKept


class PostgresContexts:
    """What `ContextStore` promises."""

    asking: Asking

    async def use_context(self, tenant: str, digest: str, *, at: float) -> ContextKept | None:
        row = await self.asking.row("use_context", tenant, digest, at)
        return None if row is None else ContextKept(**dict(row))

    async def begin_context(self, context: str, *, tenant: str, digest: str, size: int, at: float, most: int) -> bool:
        return await self.asking.row("begin_context", context, tenant, digest, size, at, most) is not None

    async def add_context_piece(self, context: str, number: int, data: bytes, *, at: float) -> bool:
        return await self.asking.row("add_context_piece", context, number, data, at) is not None

    async def finish_context(self, context: str, *, at: float) -> None:
        try:
            await self.asking.rows("finish_context", context, at)
        except asyncpg.UniqueViolationError:  # The same files were stored meanwhile.
            await self.drop_context(context)

    async def drop_context(self, context: str) -> None:
        await self.asking.rows("drop_context", context)

    async def context_piece(self, tenant: str, digest: str, number: int) -> tuple[bytes, int] | None:
        row = await self.asking.row("context_piece", tenant, digest, number)
        return None if row is None else (row["data"], row["bytes"])

    async def forget_contexts(
        self, *, whole_before: float, begun_before: float, tenant: str | None = None, most: int | None = None
    ) -> int:
        return len(await self.asking.rows("forget_contexts", whole_before, begun_before, tenant, most))
