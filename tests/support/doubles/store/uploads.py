"""Uploads, in memory."""

from msgspec import Struct

from tests.support.doubles.store.times import micro
from weft.domain.job import FINAL, Job


class MemoryUpload(Struct):
    owner: str
    digest: str
    size: int
    stored_at: float  # when it began, or became whole
    used_at: float
    pieces: dict[int, bytes]
    whole: bool = False

    def use(self, at: float) -> None:
        self.used_at = max(self.used_at, micro(at))


class MemoryUploads:
    _submitted: dict[str, Job]
    _jobs: dict[str, Job]

    def __init__(self) -> None:
        super().__init__()
        self._uploads: dict[str, MemoryUpload] = {}

    async def begin_upload(self, upload: str, *, owner: str, digest: str, size: int, at: float, most: int) -> bool:
        held = [one for one in self._uploads.values() if one.owner == owner]
        if sum(one.size for one in held) + size > most:
            return False
        self._uploads[upload] = MemoryUpload(owner, digest, size, micro(at), micro(at), {})
        return True

    async def add_piece(self, upload: str, number: int, data: bytes, *, at: float) -> bool:
        found = self._uploads.get(upload)
        if found is None or found.whole:
            return False
        found.pieces[number] = data
        found.used_at = micro(at)
        return True

    async def finish_upload(self, upload: str, *, at: float) -> None:
        if (found := self._uploads.get(upload)) is None:
            return
        if self._whole(found.owner, found.digest) is not None:
            del self._uploads[upload]
            return
        found.whole, found.used_at, found.stored_at = True, micro(at), micro(at)

    async def drop_upload(self, upload: str) -> None:
        self._uploads.pop(upload, None)

    async def forget_uploads(
        self,
        *,
        whole_before: float,
        begun_before: float,
        owner: str | None = None,
        most: int | None = None,
    ) -> int:
        open_jobs = (self._jobs.get(job_id, job) for job_id, job in self._submitted.items())
        named = {(job.tenant, job.spec.context) for job in open_jobs if job.state not in FINAL}
        old = sorted(
            (one.used_at, key)
            for key, one in self._uploads.items()
            if owner in (None, one.owner)
            and one.used_at < (whole_before if one.whole else begun_before)
            and not (one.whole and (one.owner, one.digest) in named)
        )[:most]
        for _, key in old:
            del self._uploads[key]
        return len(old)

    def _whole(self, owner: str, digest: str) -> MemoryUpload | None:
        found = (one for one in self._uploads.values() if one.whole and one.owner == owner)
        return next((one for one in found if one.digest == digest), None)
