"""Images on a real Postgres."""

from collections.abc import Sequence

from weft.store.asking import Asking
from weft.store.images import ImageKept, ImagePiece


class PostgresImages:
    """What `ImageStore` promises."""

    asking: Asking

    async def images(self) -> Sequence[ImageKept]:
        return [ImageKept(**dict(row)) for row in await self.asking.rows("images")]

    async def use_image(self, name: str, *, at: float) -> ImageKept | None:
        row = await self.asking.row("use_image", name, at)
        return None if row is None else ImageKept(**dict(row))

    async def delete_image(self, name: str) -> bool:
        return bool(await self.asking.rows("delete_image", name))

    async def image_piece(self, name: str, number: int) -> ImagePiece | None:
        row = await self.asking.row("image_piece", name, number)
        return None if row is None else ImagePiece(**dict(row))
