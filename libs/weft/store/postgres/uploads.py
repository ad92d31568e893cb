"""Uploads on a real Postgres."""

import asyncpg

from weft.store.asking import Asking
from weft.store.uploads import UploadKind


class PostgresUploads:
    """What `UploadStore` promises."""

    asking: Asking

    async def begin_upload(
        self, kind: UploadKind, upload: str, *, owner: str, digest: str, size: int, at: float, most: int
    ) -> bool:
        return await self.asking.row(f"begin_{kind}", upload, owner, digest, size, at, most) is not None

    async def add_piece(self, kind: UploadKind, upload: str, number: int, data: bytes, *, at: float) -> bool:
        return await self.asking.row(f"add_{kind}_piece", upload, number, data, at) is not None

    async def finish_upload(self, kind: UploadKind, upload: str, *, at: float) -> None:
        try:
            await self.asking.rows(f"finish_{kind}", upload, at)
        except asyncpg.UniqueViolationError:  # The same files were stored meanwhile.
            await self.drop_upload(kind, upload)
        if kind == "image":
            await self.asking.rows("drop_images_before", upload)

    async def drop_upload(self, kind: UploadKind, upload: str) -> None:
        await self.asking.rows(f"drop_{kind}", upload)

    async def forget_uploads(
        self,
        kind: UploadKind,
        *,
        whole_before: float,
        begun_before: float,
        owner: str | None = None,
        most: int | None = None,
    ) -> int:
        return len(await self.asking.rows(f"forget_{kind}s", whole_before, begun_before, owner, most))
