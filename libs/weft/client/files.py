"""Requests for the files of jobs: listed, fetched into files here, and deleted."""

import hashlib
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path, PurePosixPath

from weft.client.errors import ClientError, Refused
from weft.client.http import Stream
from weft.client.paths import job_path, without_empty
from weft.client.wire import Wire, worth_another
from weft.messages.files import Area, FilesDeletedView, JobFile, JobFilesView

Took = Callable[[int], None]


def unheard(_: int) -> None:
    """Ignores the number of bytes that came."""


class FileRequests:
    """The part of a client that reads and deletes the files of jobs. `rank`, `role` and `epoch`: as of a log."""

    _wire: Wire

    async def file_pages(
        self, job: str, path: str = "", *, rank: int = 0, role: str = "", epoch: int | None = None
    ) -> AsyncGenerator[JobFilesView, None]:
        """The files below `path`, in pages. A path begins with `results` or `checkpoints`; any other is below
        `results`."""
        query, after = {**_run(rank, role, epoch), "path": path}, ""
        while True:
            asked = without_empty({**query, "after": after})
            page = await self._wire.ask("GET", job_path(job, "/files"), JobFilesView, query=asked)
            yield page
            after = page.next
            if not after:
                return

    async def files(
        self, job: str, path: str = "", *, rank: int = 0, role: str = "", epoch: int | None = None
    ) -> tuple[JobFile, ...]:
        """Every file below `path`."""
        pages = self.file_pages(job, path, rank=rank, role=role, epoch=epoch)
        return tuple([file async for page in pages for file in page.files])

    async def delete_files(
        self, job: str, path: str = "", *, rank: int = 0, role: str = "", epoch: int | None = None
    ) -> FilesDeletedView:
        """Delete the files of a job that has ended."""
        query = without_empty({**_run(rank, role, epoch), "path": path})
        return await self._wire.ask("DELETE", job_path(job, "/files"), FilesDeletedView, query=query, once=True)

    async def fetch_file(
        self,
        job: str,
        path: str,
        target: Path,
        *,
        rank: int = 0,
        role: str = "",
        epoch: int | None = None,
        took: Took = unheard,
    ) -> int:
        """Copy one file to `target`, whole or not at all, and return its size in bytes.

        Bytes that came before a connection broke are not sent again, neither in this call nor in a later one: they wait
        beside the target in a file that begins with `.weft-`. Raises ClientError if the disk here does not take it.
        """
        query = without_empty({**_run(rank, role, epoch), "path": path})
        retrying, part = self._wire.retrying(), None
        while True:
            rest = _rest(part)
            try:
                async with self._wire.stream(job_path(job, "/file"), query=query, headers=rest) as response:
                    mark = response.headers["etag"]
                    if part is None or part.mark != mark:
                        part = _Part(target, f"{job} {path} {mark} {target.name}", mark)
                    size, begins = _extent(response)
                    if begins != part.size and part.size < size:
                        if rest:  # something between here and there sends whole files only
                            part.drop()
                        continue  # else it is the part of an earlier call: only the rest is asked for
                    if part.size < size:
                        await part.take(response, took, retrying.succeeded)
                    if part.size != size:
                        raise ConnectionResetError(f"{part.size} of {size} bytes of {path} came")
                part.finish()
                return size
            except OSError as error:
                await retrying.pause(error)
            except Refused as error:
                await retrying.pause(worth_another(error))

    async def read_file(self, job: str, path: str, *, rank: int = 0, role: str = "", epoch: int | None = None) -> bytes:
        """One file in one piece, for small ones."""
        query = without_empty({**_run(rank, role, epoch), "path": path})
        return await self._wire.read("GET", job_path(job, "/file"), query=query)


class _Part:
    """The bytes that came so far. `mark`: the mark of that version of the file."""

    def __init__(self, target: Path, name: str, mark: str) -> None:
        self.mark = mark
        self._target = target
        self._path = target.with_name(f".weft-{hashlib.sha256(name.encode()).hexdigest()[:16]}")
        self.size = self._path.stat().st_size if self._path.exists() else 0

    async def take(self, response: Stream, took: Took, succeeded: Callable[[], None]) -> None:
        """Add what comes. Raises OSError if the connection breaks, ClientError if another copy adds to the part."""
        with self._opened() as file:
            async for chunk in response.pieces():
                try:
                    file.write(chunk)
                except OSError as error:
                    raise ClientError(f"{self._target}: {error.strerror}") from error
                self.size += len(chunk)
                took(len(chunk))
                succeeded()

    def drop(self) -> None:
        self._path.unlink(missing_ok=True)
        self.size = 0

    def finish(self) -> None:
        """Raises ClientError."""
        try:
            if not self.size:
                self._path.touch()
            os.replace(self._path, self._target)
        except OSError as error:
            raise ClientError(f"{self._target}: {error.strerror}") from error

    def _opened(self) -> FileIO:
        try:
            file = FileIO(self._path, "a")
        except OSError as error:
            raise ClientError(f"{self._target}: {error.strerror}") from error
        if not _locked(file) or file.tell() != self.size:
            file.close()
            raise ClientError(f"{self._target}: another copy to it is under way")
        return file


def _locked(file: FileIO) -> bool:
    try:
        import fcntl  # Windows has none
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True


def path_of_files(path: str) -> str:
    """The path as the files below it begin: with `results` or `checkpoints`; empty: all files."""
    asked = PurePosixPath(path)
    if not asked.parts or asked.parts[0] in set(Area):
        return str(asked) if asked.parts else ""
    return str(PurePosixPath(Area.RESULTS, asked))


def local_path(file: JobFile, below: str, target: Path) -> Path:
    """Where a file goes that is fetched with all others below `below` into the folder `target`.

    A node may be hostile: each part of the path is a plain name. Raises ClientError.
    """
    parts = PurePosixPath(file.path).parts
    if ".." in parts or any(set(part) & {"/", "\\", "\0"} for part in parts):
        raise ClientError(f"{file.path!r} is no path that can be made here")
    skipped = len(PurePosixPath(below).parts)
    return target.joinpath(*parts[skipped:])


def targets(found: Sequence[JobFile], path: str, target: Path) -> Iterator[tuple[JobFile, Path]]:
    """Each file of a list, and where it goes: a `target` that is a folder gets the path under its own name."""
    below = path_of_files(path)
    if below and target.is_dir():
        target = target / PurePosixPath(below).name
    for file in found:
        yield file, local_path(file, below, target)


def _rest(part: _Part | None) -> dict[str, str]:
    if part is None or not part.size:
        return {}
    return {"Range": f"bytes={part.size}-", "If-Range": part.mark}


def _extent(response: Stream) -> tuple[int, int]:
    """The size of the file, and the byte with which the answer begins."""
    if response.status == 206:
        span, _, size = response.headers["content-range"].removeprefix("bytes ").partition("/")
        return int(size), int(span.partition("-")[0])
    return int(response.headers["content-length"]), 0


def _run(rank: int, role: str, epoch: int | None) -> Mapping[str, str]:
    return {"rank": str(rank), "role": role, "epoch": "" if epoch is None else str(epoch)}
