"""Images, in memory."""

from collections.abc import Sequence

from weft.store.images import ImageKept, ImagePiece
from weft.store.memory.uploads import MemoryUpload, MemoryUploads


class MemoryImages(MemoryUploads):
    async def images(self) -> Sequence[ImageKept]:
        return [_kept(one) for one in sorted(self._all("image"), key=lambda one: one.owner) if one.whole]

    async def use_image(self, name: str, *, at: float) -> ImageKept | None:
        if (found := self._whole("image", name)) is None:
            return None
        found.use(at)
        return _kept(found)

    async def delete_image(self, name: str) -> bool:
        return self._remove("image", name)

    async def image_piece(self, name: str, number: int) -> ImagePiece | None:
        found = self._whole("image", name)
        if found is None or number not in found.pieces:
            return None
        return ImagePiece(data=found.pieces[number], bytes=found.size, digest=found.digest)


def _kept(one: MemoryUpload) -> ImageKept:
    return ImageKept(name=one.owner, digest=one.digest, bytes=one.size, pushed_at=one.stored_at, used_at=one.used_at)
