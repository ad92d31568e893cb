"""The checkpoint of another job with which a job starts: copied into the job's folder before its first run on this
node, from this node's own disk or, through a gateway, from the nodes that have it.

The folder appears whole or not at all. A folder that has something in it is left alone: a later try of the job goes on
with its own checkpoint. On a file system that nodes share, the copy that is whole first stays.
"""

import asyncio
import logging
import os
from collections import deque
from weakref import WeakValueDictionary

from weft.bus import Bus, BusError
from weft.messages.files import PIECE_BYTES, Area, CheckpointRead, JobFile, ReadCheckpoint, ReadFile
from weft.messages.nodes import StartRun
from weftd.executor.files.job_files import JobFiles, PathRefusedError, parts_of
from weftd.executor.files.job_folders import OF_ANY_USER, OWN
from weftd.executor.runs import RuntimeUnavailableError

logger = logging.getLogger(__name__)

ANSWER_SECONDS_MAX = 10.0
FILES_MAX = 100_000
PIECES_AT_ONCE = 3
COMING = ".coming"


class BadCheckpointError(Exception):
    """The checkpoint is gone, or has more files than are copied: no later try could start with it."""


class Checkpoints:
    def __init__(self, files: JobFiles, bus: Bus, *, node_id: str) -> None:
        self._files, self._bus, self._node_id = files, bus, node_id
        self._folders = files.folders(Area.CHECKPOINTS)
        self._coming = f"{self._folders.of(COMING)}/{node_id}"
        self._locks = WeakValueDictionary[str, asyncio.Lock]()  # by job
        self._folders.discards.take(self._coming)  # copies that an earlier process did not finish

    async def bring(self, order: StartRun) -> None:
        """Have the checkpoint in the folder of the order's job, unless the job has one there. Raises
        BadCheckpointError; RuntimeUnavailableError if it cannot be had now, so that the start is tried again."""
        folder = self._folders.of(order.job_id)
        try:
            async with self._locks.setdefault(order.job_id, asyncio.Lock()):
                if not await asyncio.to_thread(_has_entries, folder):
                    await self._copy(order, folder)
        except OSError as error:
            raise RuntimeUnavailableError(f"its checkpoint cannot be written now: {error.strerror or error}") from error

    async def _copy(self, order: StartRun, folder: str) -> None:
        """Raises BadCheckpointError, RuntimeUnavailableError, OSError."""
        coming = f"{self._coming}/{order.job_id}"
        for above in (os.path.dirname(folder), os.path.dirname(self._coming), self._coming, coming):
            os.makedirs(above, OWN, exist_ok=True)
        try:
            there = await self._ask(order)
            files = dict[str, tuple[str, JobFile]]()
            for source in there.nodes:  # the lowest rank first: its file is the one that stays
                await self._list(order, source, files)
            if not files:
                what = f"{order.from_checkpoint} has no files any more on {', '.join(there.nodes)}"
                raise BadCheckpointError(f"from_checkpoint: {what}: they were deleted")
            for source, file in files.values():
                await self._fetch(order, source, there.job_id, file, coming)
            await asyncio.to_thread(_settle, coming, folder)
        finally:
            self._folders.discards.take(coming)
        logger.info("%s starts with %d files of %s", order.job_id, len(files), order.from_checkpoint)

    async def _list(self, order: StartRun, source: str, files: dict[str, tuple[str, JobFile]]) -> None:
        after = ""
        while True:
            page = await self._ask(order, source=source, after=after)
            for file in page.files:
                _check_path(source, file.path)
                files.setdefault(file.path, (source, file))
            if page.cut or len(files) > FILES_MAX:
                raise BadCheckpointError(
                    f"from_checkpoint: at most {FILES_MAX} files are copied, and the checkpoint has more"
                )
            after = page.next
            if not after:
                return

    async def _fetch(self, order: StartRun, source: str, source_job: str, file: JobFile, coming: str) -> None:
        path = f"{coming}/{file.path.removeprefix(f'{Area.CHECKPOINTS}/')}"
        await asyncio.to_thread(os.makedirs, os.path.dirname(path), OWN, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        coming_pieces = deque[asyncio.Task[CheckpointRead]]()
        asked, written, mark = 0, 0, ""
        try:
            while written < file.bytes or not mark:
                while asked < max(1, file.bytes) and len(coming_pieces) < PIECES_AT_ONCE:
                    piece = self._piece(order, source, source_job, file.path, asked)
                    coming_pieces.append(asyncio.create_task(piece))
                    asked += PIECE_BYTES
                read = await coming_pieces.popleft()
                mark = mark or read.mark
                wanted = min(PIECE_BYTES, file.bytes - written)
                if (read.mark, read.size, len(read.data)) != (mark, file.bytes, wanted):
                    raise RuntimeUnavailableError(f"{file.path} of its checkpoint changed while it was copied")
                await asyncio.to_thread(_write, fd, read.data)
                written += len(read.data)
        finally:
            for task in coming_pieces:
                task.cancel()
            await asyncio.gather(*coming_pieces, return_exceptions=True)
            os.close(fd)

    async def _piece(self, order: StartRun, source: str, source_job: str, path: str, offset: int) -> CheckpointRead:
        if source != self._node_id:
            return await self._ask(order, source=source, path=path, offset=offset)
        ask = ReadFile(node_id=source, job_id=source_job, path=path, offset=offset)
        found = await asyncio.to_thread(self._files.read, ask)
        if found.missing or found.refused:
            raise RuntimeUnavailableError(f"{path} of its checkpoint {found.refused or 'is gone'}")
        return CheckpointRead(data=found.data, size=found.size, mark=found.mark)

    async def _ask(
        self, order: StartRun, *, source: str = "", path: str = "", after: str = "", offset: int = 0
    ) -> CheckpointRead:
        """Raises BadCheckpointError, RuntimeUnavailableError."""
        asked = ReadCheckpoint(
            node_id=self._node_id,
            job_id=order.job_id,
            epoch=order.epoch,
            rank=order.rank,
            source=source,
            path=path,
            after=after,
            offset=offset,
        )
        try:
            read = await self._bus.request(asked, CheckpointRead, seconds_max=ANSWER_SECONDS_MAX)
        except (BusError, ValueError) as error:
            raise RuntimeUnavailableError(f"no gateway sends its checkpoint: {error}") from error
        if read.missing:
            raise BadCheckpointError(f"from_checkpoint: {read.missing}")
        if read.refused:
            raise RuntimeUnavailableError(f"its checkpoint is refused: {read.refused}")
        return read


def _check_path(source: str, path: str) -> None:
    """The node that has the checkpoint names its files, and another node is not believed: such a name must not lead out
    of the folder into which the file is copied. Raises BadCheckpointError."""
    try:
        parts = parts_of(path)
    except PathRefusedError as refused:
        raise BadCheckpointError(f"from_checkpoint: node {source} has a file whose name {refused}") from None
    if parts[:1] != [Area.CHECKPOINTS] or "/".join(parts) != path or len(parts) < 2:
        raise BadCheckpointError(f"from_checkpoint: node {source} has a file that is no checkpoint: {path[:200]!r}")


def _has_entries(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except FileNotFoundError:
        return False


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _settle(coming: str, folder: str) -> None:
    """Move the whole checkpoint to its place. Any user may write to it, as a container's user is not known: the folder
    above is the executor's alone. Raises OSError."""
    for parent, _, files in os.walk(coming):
        os.chmod(parent, OF_ANY_USER)
        for name in files:
            os.chmod(f"{parent}/{name}", 0o666)
    try:
        os.rename(coming, folder)
    except OSError:
        if not _has_entries(folder):  # else another node that shares the file system was faster
            raise
