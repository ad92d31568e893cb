"""Contexts, in memory."""

from msgspec import Struct

from libs.domain.job import FINAL, Job
from libs.store.contexts import ContextKept
from libs.store.memory.times import micro


class _Context(Struct):
    tenant: str
    digest: str
    size: int
    used_at: float
    pieces: dict[int, bytes]
    whole: bool = False


class MemoryContexts:
    _submitted: dict[str, Job]
    _jobs: dict[str, Job]

    def __init__(self) -> None:
        super().__init__()
        self._contexts: dict[str, _Context] = {}

    async def use_context(self, tenant: str, digest: str, *, at: float) -> ContextKept | None:
        if (found := self._whole(tenant, digest)) is None:
            return None
        found.used_at = max(found.used_at, micro(at))
        return ContextKept(digest=digest, bytes=found.size, used_at=found.used_at)

    async def begin_context(self, context: str, *, tenant: str, digest: str, size: int, at: float, most: int) -> bool:
        held = sum(one.size for one in self._contexts.values() if one.tenant == tenant)
        if held + size > most:
            return False
        self._contexts[context] = _Context(tenant, digest, size, micro(at), {})
        return True

    async def add_context_piece(self, context: str, number: int, data: bytes, *, at: float) -> bool:
        found = self._contexts.get(context)
        if found is None or found.whole:
            return False
        found.pieces[number] = data
        found.used_at = micro(at)
        return True

    async def finish_context(self, context: str, *, at: float) -> None:
        if (found := self._contexts.get(context)) is None:
            return
        if self._whole(found.tenant, found.digest) is not None:
            del self._contexts[context]
            return
        found.whole, found.used_at = True, micro(at)

    async def drop_context(self, context: str) -> None:
        self._contexts.pop(context, None)

    async def context_piece(self, tenant: str, digest: str, number: int) -> tuple[bytes, int] | None:
        found = self._whole(tenant, digest)
        return None if found is None or number not in found.pieces else (found.pieces[number], found.size)

    async def forget_contexts(
        self, *, whole_before: float, begun_before: float, tenant: str | None = None, most: int | None = None
    ) -> int:
        open_jobs = (self._jobs.get(job_id, job) for job_id, job in self._submitted.items())
        named = {(job.tenant, job.spec.context) for job in open_jobs if job.state not in FINAL}
        old = sorted(
            (one.used_at, context)
            for context, one in self._contexts.items()
            if tenant in (None, one.tenant)
            and one.used_at < (whole_before if one.whole else begun_before)
            and not (one.whole and (one.tenant, one.digest) in named)
        )[:most]
        for _, context in old:
            del self._contexts[context]
        return len(old)

    def _whole(self, tenant: str, digest: str) -> _Context | None:
        for one in self._contexts.values():
            if one.whole and (one.tenant, one.digest) == (tenant, digest):
                return one
        return None
