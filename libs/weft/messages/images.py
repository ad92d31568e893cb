"""Images that an administrator pushed, for nodes that reach no registry which has them. docs/images.md."""

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from weft.domain.spec import Image, Token
from weft.messages import Message
from weft.messages.bounds import Epoch, JobId, Rank
from weft.messages.contexts import PIECE_BYTES
from weft.messages.http import Seconds

IMAGE_BYTES_MAX = 32 << 30
IMAGE_PIECES_MAX = IMAGE_BYTES_MAX // PIECE_BYTES


def tagged(name: str) -> str:
    """The name with its tag, `latest` if it says none."""
    return name if "@" in name or ":" in name.rpartition("/")[2] else f"{name}:latest"


class ImageView(Struct, frozen=True, kw_only=True):
    """An image as it was pushed. `digest`: of the archive; `bytes`: its size; `used_at`: when a node asked for it
    last."""

    name: str
    digest: str
    bytes: int
    pushed_at: Seconds
    used_at: Seconds


class ImagesView(Struct, frozen=True, kw_only=True):
    images: tuple[ImageView, ...]


class ImageDeleted(Struct, frozen=True, kw_only=True):
    deleted: str


class ReadImage(Message, frozen=True, kw_only=True):
    """Executor → gateway, a request: one piece of the pushed image of a run that the node is to start and has no such
    image for. Answered by `ImageRead`."""

    subject: ClassVar[str] = "weft.images.{node_id}"
    node_id: Token
    job_id: JobId
    epoch: Epoch
    rank: Rank
    image: Image
    number: Annotated[int, Meta(ge=0, lt=IMAGE_PIECES_MAX)]


class ImageRead(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One piece, of the size of those of contexts unless it is the last. `size`: of all pieces, in bytes; `digest`:
    the SHA-256 of them. `missing`: no such image was pushed. `refused`: why none is given to this node now."""

    data: bytes = b""
    size: int = 0
    digest: str = ""
    missing: bool = False
    refused: str = ""
