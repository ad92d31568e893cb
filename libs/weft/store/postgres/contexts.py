"""Uploads on a real Postgres: contexts and images, and their pieces."""

import asyncpg

from weft.store.asking import Asking
from weft.store.contexts import ContextKept


class PostgresUploads:
    """Implements `UploadStore` on Postgres."""

    asking: Asking

    async def begin_upload(self, upload: str, *, owner: str, digest: str, size: int, at: float, most: int) -> bool:
        return await self.asking.row("begin_context", upload, owner, digest, size, at, most) is not None

    async def add_piece(self, upload: str, number: int, data: bytes, *, at: float) -> bool:
        return await self.asking.row("add_context_piece", upload, number, data, at) is not None

    async def finish_upload(self, upload: str, *, at: float) -> None:
        try:
            await self.asking.rows("finish_context", upload, at)
        except asyncpg.UniqueViolationError:  # The same files were stored meanwhile.
            await self.drop_upload(upload)

    async def drop_upload(self, upload: str) -> None:
        await self.asking.rows("drop_context", upload)

    async def forget_uploads(
        self,
        *,
        whole_before: float,
        begun_before: float,
        owner: str | None = None,
        most: int | None = None,
    ) -> int:
        return len(await self.asking.rows("forget_contexts", whole_before, begun_before, owner, most))


class PostgresContexts:
    """Implements `ContextStore` on Postgres."""

    asking: Asking

    async def use_context(self, tenant: str, digest: str, *, at: float) -> ContextKept | None:
        row = await self.asking.row("use_context", tenant, digest, at)
        return None if row is None else ContextKept(**dict(row))

    async def context_piece(self, tenant: str, digest: str, number: int) -> tuple[bytes, int] | None:
        row = await self.asking.row("context_piece", tenant, digest, number)
        return None if row is None else (row["data"], row["bytes"])
