"""Images, in memory."""

from collections.abc import Sequence

from msgspec import Struct

from libs.store.images import ImageKept, ImagePiece
from libs.store.memory.times import micro


class _Image(Struct):
    name: str
    digest: str
    size: int
    pushed_at: float
    used_at: float
    pieces: dict[int, bytes]
    whole: bool = False


class MemoryImages:
    def __init__(self) -> None:
        super().__init__()
        self._images: dict[str, _Image] = {}

    async def images(self) -> Sequence[ImageKept]:
        return [_kept(one) for one in sorted(self._images.values(), key=lambda one: one.name) if one.whole]

    async def use_image(self, name: str, *, at: float) -> ImageKept | None:
        if (found := self._whole_image(name)) is None:
            return None
        found.used_at = max(found.used_at, micro(at))
        return _kept(found)

    async def begin_image(self, image: str, *, name: str, digest: str, size: int, at: float, most: int) -> bool:
        held = sum(one.size for one in self._images.values() if not (one.whole and one.name == name))
        if held + size > most:
            return False
        self._images[image] = _Image(name, digest, size, micro(at), micro(at), {})
        return True

    async def add_image_piece(self, image: str, number: int, data: bytes, *, at: float) -> bool:
        found = self._images.get(image)
        if found is None or found.whole:
            return False
        found.pieces[number] = data
        found.used_at = micro(at)
        return True

    async def finish_image(self, image: str, *, at: float) -> None:
        if (found := self._images.get(image)) is None:
            return
        await self.delete_image(found.name)
        found.whole, found.used_at, found.pushed_at = True, micro(at), micro(at)

    async def drop_image(self, image: str) -> None:
        self._images.pop(image, None)

    async def delete_image(self, name: str) -> bool:
        gone = [image for image, one in self._images.items() if one.whole and one.name == name]
        for image in gone:
            del self._images[image]
        return bool(gone)

    async def image_piece(self, name: str, number: int) -> ImagePiece | None:
        found = self._whole_image(name)
        if found is None or number not in found.pieces:
            return None
        return ImagePiece(data=found.pieces[number], bytes=found.size, digest=found.digest)

    async def forget_images(self, *, whole_before: float, begun_before: float, most: int | None = None) -> int:
        old = sorted(
            (one.used_at, image)
            for image, one in self._images.items()
            if one.used_at < (whole_before if one.whole else begun_before)
        )[:most]
        for _, image in old:
            del self._images[image]
        return len(old)

    def _whole_image(self, name: str) -> _Image | None:
        return next((one for one in self._images.values() if one.whole and one.name == name), None)


def _kept(one: _Image) -> ImageKept:
    return ImageKept(name=one.name, digest=one.digest, bytes=one.size, pushed_at=one.pushed_at, used_at=one.used_at)
