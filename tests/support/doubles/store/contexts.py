"""Contexts, in memory."""

from tests.support.doubles.store.uploads import MemoryUploads
from weft.store.contexts import ContextKept


class MemoryContexts(MemoryUploads):
    async def use_context(self, tenant: str, digest: str, *, at: float) -> ContextKept | None:
        if (found := self._whole(tenant, digest)) is None:
            return None
        found.use(at)
        return ContextKept(digest=digest, bytes=found.size, used_at=found.used_at)

    async def context_piece(self, tenant: str, digest: str, number: int) -> tuple[bytes, int] | None:
        found = self._whole(tenant, digest)
        return None if found is None or number not in found.pieces else (found.pieces[number], found.size)
