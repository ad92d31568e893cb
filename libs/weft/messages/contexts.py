"""Contexts: the packed files that the runs of a job have as their working folder. docs/sync.md."""

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from weft.domain.spec import Token
from weft.messages import Message
from weft.messages.bounds import Epoch, JobId, Rank
from weft.messages.http import Seconds

PACKED_BYTES_MAX = 64 << 20
PIECE_BYTES = 512 << 10  # as JSON it still fits into one message
PIECES_MAX = PACKED_BYTES_MAX // PIECE_BYTES
UNPACKED_BYTES_MAX = 512 << 20
FILES_MAX = 20_000  # and folders, and links
DEPTH_MAX = 64  # parts of a path
NAME_BYTES_MAX = 2048  # of a path


class ContextView(Struct, frozen=True, kw_only=True):
    """What is stored under this digest. `bytes`: of the packed files."""

    digest: str
    bytes: int
    used_at: Seconds


class ReadContext(Message, frozen=True, kw_only=True):
    """Executor → gateway, a request: one piece of the context of a run that the node is to start. Answered by
    `ContextRead`."""

    subject: ClassVar[str] = "weft.contexts.{node_id}"
    node_id: Token
    job_id: JobId
    epoch: Epoch
    rank: Rank
    number: Annotated[int, Meta(ge=0, lt=PIECES_MAX)]


class ContextRead(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One piece, of `PIECE_BYTES` unless it is the last. `size`: of all pieces, in bytes. `missing`: nothing is stored
    under the job's digest, so the run cannot start. `refused`: why none is given to this node now; it may ask again."""

    data: bytes = b""
    size: int = 0
    missing: bool = False
    refused: str = ""
