"""Images on a real Postgres."""

from collections.abc import Sequence

from libs.store.asking import Asking
from libs.store.images import ImageKept, ImagePiece


class PostgresImages:
    """What `ImageStore` promises."""

    asking: Asking

    async def images(self) -> Sequence[ImageKept]:
        return [ImageKept(**dict(row)) for row in await self.asking.rows("images")]

    async def use_image(self, name: str, *, at: float) -> ImageKept | None:
        row = await self.asking.row("use_image", name, at)
        return None if row is None else ImageKept(**dict(row))

    async def begin_image(self, image: str, *, name: str, digest: str, size: int, at: float, most: int) -> bool:
        return await self.asking.row("begin_image", image, name, digest, size, at, most) is not None

    async def add_image_piece(self, image: str, number: int, data: bytes, *, at: float) -> bool:
        return await self.asking.row("add_image_piece", image, number, data, at) is not None

    async def finish_image(self, image: str, *, at: float) -> None:
        await self.asking.rows("finish_image", image, at)
        await self.asking.rows("drop_images_before", image)

    async def drop_image(self, image: str) -> None:
        await self.asking.rows("drop_image", image)

    async def delete_image(self, name: str) -> bool:
        return bool(await self.asking.rows("delete_image", name))

    async def image_piece(self, name: str, number: int) -> ImagePiece | None:
        row = await self.asking.row("image_piece", name, number)
        return None if row is None else ImagePiece(**dict(row))

    async def forget_images(self, *, whole_before: float, begun_before: float, most: int | None = None) -> int:
        return len(await self.asking.rows("forget_images", whole_before, begun_before, most))
