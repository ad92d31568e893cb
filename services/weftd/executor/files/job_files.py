"""The files that a job left on this node, among its results, checkpoints and metrics: listed, read, deleted.

A job wrote what is here, and may have done so to do harm. Each part of a path is opened below the folder before it, so
that no name and no link leads out of the job's own folder, whatever a program changes meanwhile. All of it blocks.
"""

import errno
import os
import re
import stat
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from weft.messages.bounds import JOB_ID_PATTERN
from weft.messages.files import (
    FILES_MAX,
    KEPT_MAX,
    PATH_CHARACTERS_MAX,
    PIECE_BYTES,
    Area,
    DeleteFiles,
    FileRead,
    FilesDeleted,
    FilesKept,
    FilesListed,
    JobFile,
    KeptFolder,
    ListFiles,
    ReadFile,
)
from weftd.executor.files.job_folders import JobFolders
from weftd.executor.files.regular import READ

DEPTH_MAX = 64
LINKS_MAX = 16
ENTRIES_MAX = 100_000  # that are looked at for one answer
LISTED_CHARACTERS_MAX = 256 << 10  # all paths in one answer, which fits into one message
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_GONE = (FileNotFoundError, NotADirectoryError)


class PathRefusedError(Exception):
    """Why a path is not allowed, as a sentence without its subject."""


class JobFiles:
    def __init__(self, results: JobFolders, checkpoints: JobFolders, metrics: JobFolders) -> None:
        self._folders = {Area.RESULTS: results, Area.CHECKPOINTS: checkpoints, Area.METRICS: metrics}

    def folders(self, area: Area) -> JobFolders:
        return self._folders[area]

    def list(self, ask: ListFiles) -> FilesListed:
        try:
            parts = parts_of(ask.path)
            listing = _Listing(min(ask.limit, FILES_MAX), after=tuple(ask.after.split("/")) if ask.after else ())
            areas = [Area(parts[0])] if parts else sorted(Area)
            found = [area for area in areas if self._list_area(area, ask.job_id, tuple(parts[1:]), listing)]
            return FilesListed(
                files=tuple(listing.files),
                next=listing.files[-1].path if listing.more else "",
                left_out=listing.left_out,
                cut=listing.cut,
                missing=not found,
            )
        except PathRefusedError as refused:
            return FilesListed(refused=str(refused))
        except OSError as error:
            return FilesListed(refused=_words(error))

    def read(self, ask: ReadFile) -> FileRead:
        try:
            area, *parts = parts_of(ask.path) or [Area.RESULTS]
            with _root(self._folders[Area(area)], ask.job_id) as root, reached(root, parts) as file:
                found = os.fstat(file)
                if not stat.S_ISREG(found.st_mode):
                    raise PathRefusedError("is a folder" if stat.S_ISDIR(found.st_mode) else "is no file")
                data = os.pread(file, max(0, min(ask.limit, PIECE_BYTES)), max(0, ask.offset))
            mark = f"{found.st_ino:x}-{found.st_size:x}-{found.st_mtime_ns:x}"
            return FileRead(data=data, size=found.st_size, mark=mark, modified_at=found.st_mtime)
        except PathRefusedError as refused:
            return FileRead(refused=str(refused))
        except _GONE:
            return FileRead(missing=True)
        except OSError as error:
            return FileRead(refused=_words(error))

    def delete(self, ask: DeleteFiles) -> FilesDeleted:
        """A link is deleted itself; what it leads to stays."""
        try:
            parts = parts_of(ask.path)
            areas = [Area(parts[0])] if parts else sorted(Area)
            deleted = [self._delete(self._folders[area], ask.job_id, parts[1:]) for area in areas]
            return FilesDeleted(missing=not any(deleted))
        except PathRefusedError as refused:
            return FilesDeleted(refused=str(refused))
        except OSError as error:
            return FilesDeleted(refused=_words(error))

    def kept(self, node_id: str, *, most: int = KEPT_MAX) -> FilesKept:
        """The bytes that each job has in each area, the largest first."""
        every = [
            KeptFolder(job_id=job_id, area=area, bytes=size, mark=mark)
            for area, folders in self._folders.items()
            for job_id, size, mark in folders.kept()
            if re.fullmatch(JOB_ID_PATTERN, job_id)
        ]
        every.sort(key=lambda one: (-one.bytes, one.job_id))
        left_out = sum(one.bytes for one in every[most:])
        return FilesKept(node_id=node_id, folders=tuple(every[:most]), left_out_bytes=left_out)

    def shrink(self, held: Collection[str]) -> None:
        """Remove the oldest folders of jobs, until all have no more bytes than they may. Raises OSError."""
        for folders in self._folders.values():
            folders.shrink(held)

    def _list_area(self, area: Area, job_id: str, parts: tuple[str, ...], listing: "_Listing") -> bool:
        """False: there is nothing at that path."""
        try:
            with _root(self._folders[area], job_id) as root, reached(root, parts) as at:
                listing.begin(root)
                found = os.fstat(at)
                if stat.S_ISDIR(found.st_mode):
                    listing.walk(at, (area.value, *parts))
                elif stat.S_ISREG(found.st_mode):
                    listing.add((area.value, *parts), found)
                else:
                    raise PathRefusedError("is no file")
        except _GONE:
            return False
        return True

    def _delete(self, folders: JobFolders, job_id: str, parts: Sequence[str]) -> bool:
        """False: there is nothing."""
        try:
            if not parts:
                os.lstat(folders.of(job_id))
                return folders.discards.take(folders.of(job_id))
            with _root(folders, job_id) as root, reached(root, parts[:-1]) as parent:
                os.stat(parts[-1], dir_fd=parent, follow_symlinks=False)
                return folders.discards.take(parts[-1], dir_fd=parent)
        except _GONE:
            return False


def parts_of(path: str) -> list[str]:
    """The parts of a path, the area first; none for all files. Raises PathRefusedError."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/"):
        raise PathRefusedError("begins with /: expected a path below results or checkpoints")
    if ".." in parts:
        raise PathRefusedError("has .. in it: expected a path below results or checkpoints")
    try:
        too_long = len(os.fsencode(path)) > PATH_CHARACTERS_MAX or len(parts) > DEPTH_MAX
    except UnicodeEncodeError:
        raise PathRefusedError("is no UTF-8") from None
    if too_long or "\0" in path:
        raise PathRefusedError(f"is no path: expected at most {DEPTH_MAX} parts and {PATH_CHARACTERS_MAX} bytes")
    return parts if not parts or parts[0] in set(Area) else [Area.RESULTS.value, *parts]


@contextmanager
def reached(root: int, parts: Sequence[str]) -> Iterator[int]:
    """The file or folder at a path below the open folder `root`, opened. Links are followed within `root`.

    Raises PathRefusedError; OSError, among them FileNotFoundError.
    """
    waiting, above = deque(parts), list[int]()
    at, links = os.dup(root), 0
    try:
        while waiting:
            part = waiting.popleft()
            if part == "..":  # of a link
                if not above:
                    raise PathRefusedError("is a link that leads out of the job's folder")
                os.close(at)
                at = above.pop()
                continue
            try:
                below = os.open(part, READ, dir_fd=at)
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                links += 1
                waiting.extendleft(reversed(_target(os.readlink(part, dir_fd=at), links)))
                continue
            above.append(at)
            at = below
            if len(above) > DEPTH_MAX:
                raise PathRefusedError(f"is more than {DEPTH_MAX} folders deep")
        yield at
    finally:
        for fd in (*above, at):
            os.close(fd)


def _target(link: str, links: int) -> list[str]:
    if link.startswith("/"):
        raise PathRefusedError("is an absolute link: only links within the job's folder are followed")
    if links > LINKS_MAX:
        raise PathRefusedError(f"leads over more than {LINKS_MAX} links")
    return [part for part in link.split("/") if part not in ("", ".")]


@contextmanager
def _root(folders: JobFolders, job_id: str) -> Iterator[int]:
    root = os.open(folders.of(job_id), _FOLDER)
    try:
        yield root
    finally:
        os.close(root)


class _Listing:
    """The files of one answer: at most `most`, behind the path `after`, in the order of the parts of their paths."""

    def __init__(self, most: int, *, after: tuple[str, ...]) -> None:
        self.files: list[JobFile] = []
        self.more = self.cut = False
        self.left_out = 0
        self._most, self._after = most, after
        self._characters = self._looked = 0
        self._root = -1

    def begin(self, root: int) -> None:
        """The paths to come are below `root`, the job's folder of one area."""
        self._root = root

    def walk(self, folder: int, path: tuple[str, ...]) -> None:
        after = self._after[: len(path) + 1]
        if path < after[: len(path)]:
            return
        for name, is_folder, is_link in self._entries(folder):
            here = (*path, name)
            if here < after or self.more:
                continue
            if is_folder:
                self._walk_below(folder, here)
            elif here <= self._after:
                continue
            elif is_link:
                self._add_link(here)
            else:
                self._add_file(folder, here)

    def add(self, path: tuple[str, ...], found: os.stat_result) -> None:
        name = "/".join(path)
        if path <= self._after:
            return
        if len(self.files) >= self._most or self._characters + len(name) > LISTED_CHARACTERS_MAX:
            self.more = bool(self.files)
            return
        self._characters += len(name)
        self.files.append(JobFile(path=name, bytes=found.st_size, modified_at=found.st_mtime))

    def _entries(self, folder: int) -> list[tuple[str, bool, bool]]:
        found: list[tuple[str, bool, bool]] = []
        with os.scandir(folder) as entries:
            for entry in entries:
                self._looked += 1
                if self._looked > ENTRIES_MAX:
                    self.cut = True
                    break
                if not entry.name.isprintable() and _is_no_text(entry.name):
                    self.left_out += 1
                    continue
                found.append((entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink()))
        return sorted(found)

    def _walk_below(self, folder: int, path: tuple[str, ...]) -> None:
        try:
            below = os.open(path[-1], _FOLDER, dir_fd=folder) if len(path) <= DEPTH_MAX else -1
        except OSError:
            below = -1
        if below < 0:
            self.left_out += 1
            return
        try:
            self.walk(below, path)
        finally:
            os.close(below)

    def _add_file(self, folder: int, path: tuple[str, ...]) -> None:
        try:
            found = os.stat(path[-1], dir_fd=folder, follow_symlinks=False)
        except OSError:
            return
        if stat.S_ISREG(found.st_mode):
            self.add(path, found)
        else:
            self.left_out += 1

    def _add_link(self, path: tuple[str, ...]) -> None:
        """A link that leads to a file within the job's folder counts as that file."""
        try:
            with reached(self._root, path[1:]) as file:
                found = os.fstat(file)
        except (OSError, PathRefusedError):
            self.left_out += 1
            return
        if stat.S_ISREG(found.st_mode):
            self.add(path, found)
        else:
            self.left_out += 1


def _is_no_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return True
    return False


def _words(error: OSError) -> str:
    return f"cannot be read: {error.strerror or error}"
