"""What a gateway stores of images: archives, in pieces, the newest of each name."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class ImageKept(Struct, frozen=True, kw_only=True):
    """A whole archive. `bytes`: its size; times in seconds since 1970."""

    name: str
    digest: str
    bytes: int
    pushed_at: float
    used_at: float


class ImagePiece(Struct, frozen=True, kw_only=True):
    """One piece of an archive, and the size and the digest of all."""

    data: bytes
    bytes: int
    digest: str


class ImageStore(Protocol):
    async def images(self) -> Sequence[ImageKept]:
        """Those that are whole, by name."""

    async def use_image(self, name: str, *, at: float) -> ImageKept | None:
        """Note that it is used, so that it is kept; None: there is no such image."""

    async def delete_image(self, name: str) -> bool:
        """False: there was none."""

    async def image_piece(self, name: str, number: int) -> ImagePiece | None:
        """None: there is no such image, or it has no such piece."""
