"""Files of jobs: what their runs wrote to WEFT_RESULTS and WEFT_CHECKPOINT_DIR, and the series of their progress, read
from the nodes where they ran.

A path begins with `results`, `checkpoints` or `metrics`; every other path is below `results`.
"""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from weft.messages import CarriesBytes, Message
from weft.messages.bounds import Count, Epoch, JobId, Rank, Token, Word
from weft.messages.http import Bytes, Seconds

FILES_MAX = 1000  # in one answer
PATH_CHARACTERS_MAX = 4096
PIECE_BYTES = 256 << 10
KEPT_MAX = 8192  # folders of jobs in one message

FilePath = Annotated[str, Meta(max_length=PATH_CHARACTERS_MAX)]
NodeIdOrNone = Annotated[str, Meta(pattern=r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$(?!\n)")]


class Area(StrEnum):
    CHECKPOINTS = "checkpoints"
    METRICS = "metrics"  # the progress that the node stored: one file for each run, `EPOCH-RANK.jsonl`
    RESULTS = "results"


class JobFile(Struct, frozen=True, kw_only=True):
    """One file of a job. `path` begins with `results/`, `checkpoints/` or `metrics/`."""

    path: str
    bytes: Bytes
    modified_at: Seconds


class JobFilesView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Files of a job on `node`, by their paths in order. `next`: the `after` of the next page; empty: there is none.

    `left_out`: entries that are no files, or cannot be read: pipes, links that lead out of the job's folder, names that
    are no UTF-8. `cut`: a folder has more entries than are looked at, so that some files are in no page.
    """

    files: tuple[JobFile, ...] = ()
    node: str
    rank: int = 0
    epoch: int = 0
    next: str = ""
    left_out: int = 0
    cut: bool = False


class FilesDeletedView(Struct, frozen=True, kw_only=True):
    """The files below `path` are deleted on `node`."""

    node: str
    path: str


class ListFiles(Message, frozen=True, kw_only=True):
    """Gateway → executor, a request: files of a job below `path`, in order, behind `after`. Answered by
    `FilesListed`."""

    subject: ClassVar[str] = "weft.files.{node_id}.list"
    node_id: str
    job_id: JobId
    path: FilePath = ""
    after: FilePath = ""
    limit: int = FILES_MAX


class FilesListed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """As in `JobFilesView`. `missing`: the node has nothing at that path. `refused`: why the path is not allowed."""

    files: tuple[JobFile, ...] = ()
    next: str = ""
    left_out: int = 0
    cut: bool = False
    missing: bool = False
    refused: str = ""


class ReadFile(Message, frozen=True, kw_only=True):
    """Gateway → executor, a request: bytes of one file of a job from `offset`. Answered by `FileRead`."""

    subject: ClassVar[str] = "weft.files.{node_id}.read"
    node_id: str
    job_id: JobId
    path: FilePath
    offset: int = 0
    limit: int = PIECE_BYTES


class FileRead(CarriesBytes, frozen=True, kw_only=True, omit_defaults=True):
    """`data`: the bytes asked for. `size`: the file's size now. `mark` changes when the file is replaced or written.
    `missing`, `refused`: as in `FilesListed`."""

    size: int = 0
    mark: str = ""
    modified_at: float = 0.0
    missing: bool = False
    refused: str = ""


class KeptFolder(Struct, frozen=True, array_like=True, kw_only=True):
    """The files of one job in one area of a node. `mark`: the same on all nodes that share the folder, on no others."""

    job_id: JobId
    area: Area
    bytes: Count
    mark: Word


class FilesKept(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Executor → gateway: the bytes that jobs have on this node, the largest folders first. May be lost.

    `left_out_bytes`: the sum of all folders beyond the first `KEPT_MAX`.
    """

    subject: ClassVar[str] = "weft.kept.{node_id}"
    node_id: Token
    folders: Annotated[tuple[KeptFolder, ...], Meta(max_length=KEPT_MAX)] = ()
    left_out_bytes: Count = 0


class ReadCheckpoint(Message, frozen=True, kw_only=True):
    """Executor → gateway, a request before a run starts: the checkpoint with which its job starts. Answered by
    `CheckpointRead`.

    Without `source`: the nodes that have a part of it. With one: its files there behind `after`, or bytes of the file
    `path` from `offset`.
    """

    subject: ClassVar[str] = "weft.checkpoints.{node_id}"
    node_id: Token
    job_id: JobId
    epoch: Epoch
    rank: Rank
    source: NodeIdOrNone = ""
    path: FilePath = ""
    after: FilePath = ""
    offset: Annotated[int, Meta(ge=0)] = 0
    limit: Annotated[int, Meta(ge=0, le=PIECE_BYTES)] = PIECE_BYTES


class CheckpointRead(CarriesBytes, frozen=True, kw_only=True, omit_defaults=True):
    """`job_id`: the job that wrote it. `nodes`: which have a part of it, that of the lowest rank first. `files`,
    `next`, `cut`: as in `FilesListed`; `data`, `size`, `mark`: as in `FileRead`.

    `missing`: why there is no such checkpoint any more, so the run cannot start. `refused`: why none is given to this
    node now; it may ask again.
    """

    job_id: str = ""
    nodes: tuple[str, ...] = ()
    files: tuple[JobFile, ...] = ()
    next: str = ""
    cut: bool = False
    size: int = 0
    mark: str = ""
    missing: str = ""
    refused: str = ""


class DeleteFiles(Message, frozen=True, kw_only=True):
    """Gateway → executor, a request: delete the files of a job below `path`. Answered by `FilesDeleted`."""

    subject: ClassVar[str] = "weft.files.{node_id}.delete"
    node_id: str
    job_id: JobId
    path: FilePath = ""


class FilesDeleted(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """They are gone. `missing`, `refused`: as in `FilesListed`."""

    missing: bool = False
    refused: str = ""
