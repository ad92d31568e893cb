"""Files as they come from a job, written below one target and nowhere else; and a folder as it is sent.

An archive is read as hostile: each part of each name is opened below the folder before it, and no link is followed.
Links are made last; one that leads out of the target, or is absolute, is left out, and so is all that is neither a
file, a folder nor a link.
"""

import os
import queue
import secrets
import tarfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

from weft.domain.quantity import size_text

MEMBERS_MAX = 1_000_000
DEPTH_MAX = 100
SKIPPED_MAX = 1000
PIECES_MAX = 64
READ_BYTES = 64 << 10
KIND_BYTES_MAX = 16
HEADER_BYTES_MAX = 1 << 20
CLOSE_SECONDS_MAX = 10.0


class Unpacking:
    """Fed with what the job's side sends: a line that says `file` or `folder`, and then the file, or an archive.

    A target that was named as a `folder`, with a slash at its end, becomes no file.
    """

    def __init__(self, target: Path, size_max: int, *, folder: bool = False) -> None:
        self.size = 0
        self._folder = folder
        self.skipped: list[str] = []
        self._target, self._size_max = target, size_max
        self._head = b""
        self._kind = ""
        self._file: IO[bytes] | None = None
        # Short: the target's own name may be as long as a name can be.
        self._part = target.with_name(f".weft-{secrets.token_hex(8)}")
        self._archive: _Archive | None = None

    def feed(self, data: bytes) -> None:
        """Raises OSError and ValueError."""
        if not self._kind:
            self._head += data
            kind, found, data = self._head.partition(b"\n")
            if not found:
                if len(self._head) > KIND_BYTES_MAX:
                    raise ValueError("the job's side sent data that is no archive")
                return
            self._begin(kind)
        self.size += len(data)
        if self.size > self._size_max:
            raise ValueError(f"it is larger than {size_text(self._size_max)} (--size-max)")
        if self._file is not None:
            self._file.write(data)
        elif self._archive is not None:
            self._archive.feed(data)

    def finish(self, *, whole: bool) -> None:
        """After the last byte. A file that did not come whole is not there."""
        if self._archive is not None:
            self._archive.finish(whole=whole)
        if self._file is not None:
            self._file.close()
            if whole:
                os.replace(self._part, self._target)

    def close(self) -> None:
        if self._archive is not None:
            self._archive.close()
        if self._file is not None:
            self._file.close()
            with suppress(FileNotFoundError):
                os.unlink(self._part)

    def _begin(self, kind: bytes) -> None:
        if kind == b"file" and self._folder:
            raise ValueError("no such folder")
        if kind == b"file":
            self._file = open(self._part, "xb")  # noqa: SIM115 -- closed in `close`
        elif kind == b"folder":
            self._target.mkdir(exist_ok=True)
            self._archive = _Archive(self._target, self.skipped, self._size_max)
        else:
            raise ValueError("the job's side sent data that is no archive")
        self._kind = kind.decode()


class _Member(tarfile.TarInfo):
    """One whose further headers are small: they are kept in memory whole."""

    def _proc_pax(self, archive: tarfile.TarFile) -> Any:
        self._check()
        return super()._proc_pax(archive)  # type: ignore[misc]

    def _proc_gnulong(self, archive: tarfile.TarFile) -> Any:
        self._check()
        return super()._proc_gnulong(archive)  # type: ignore[misc]

    def _check(self) -> None:
        if self.size > HEADER_BYTES_MAX:
            raise ValueError("a name or a header in it is too long")


class _Archive:
    """An archive that comes in pieces, unpacked by a thread of its own."""

    def __init__(self, target: Path, skipped: list[str], size_max: int) -> None:
        self._room = size_max
        self._pieces: queue.Queue[bytes | None] = queue.Queue(PIECES_MAX)
        self._root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._skipped = skipped
        self._left = b""
        self._over = self._cut = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def feed(self, data: bytes) -> None:
        while self._thread.is_alive():
            with suppress(queue.Full):
                self._pieces.put(data, timeout=0.2)
                break
        if self._error is not None:
            raise ValueError(str(self._error)) from self._error

    def finish(self, *, whole: bool) -> None:
        self._cut = not whole
        self._end()
        self._thread.join()
        if self._error is not None and whole:
            raise ValueError(str(self._error)) from self._error

    def close(self) -> None:
        self._cut = True
        self._end()
        self._thread.join(CLOSE_SECONDS_MAX)
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def read(self, size: int) -> bytes:
        while len(self._left) < size and not self._over:
            piece = self._pieces.get()
            self._over = piece is None
            self._left += piece or b""
        found, self._left = self._left[:size], self._left[size:]
        return found

    def _end(self) -> None:
        while self._thread.is_alive():
            with suppress(queue.Full):
                self._pieces.put(None, timeout=0.2)
                return

    def _run(self) -> None:
        links: list[tarfile.TarInfo] = []
        try:
            source = cast("Any", self)
            with tarfile.open(fileobj=source, mode="r|", bufsize=READ_BYTES, tarinfo=_Member) as archive:
                count = 0
                while (member := archive.next()) is not None:
                    archive.members.clear()  # type: ignore[attr-defined]  # it keeps all otherwise
                    count += 1
                    if count > MEMBERS_MAX:
                        raise ValueError(f"it has more than {MEMBERS_MAX} files")
                    if member.issym():
                        links.append(member)
                    else:
                        self._take(archive, member)
            if not self._cut:
                for member in links:
                    self._link(member)
            while not self._over:  # what follows the archive's end
                self.read(READ_BYTES)
                self._left = b""
        except (OSError, ValueError, tarfile.TarError, RecursionError) as error:
            self._error = error

    def _take(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = parts_of(member.name)
        if parts is None:
            self._skip(member.name, "it leads out of the target, or is nested too deeply")
            return
        if member.isdir():
            os.close(self._folder(parts))
            return
        content = archive.extractfile(member) if member.isreg() else None
        if content is None or not parts:
            self._skip(member.name, "it is no file, no folder and no link")
            return
        folder = self._folder(parts[:-1])
        try:
            with suppress(FileNotFoundError):
                os.unlink(parts[-1], dir_fd=folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(parts[-1], flags, 0o600, dir_fd=folder)
        finally:
            os.close(folder)
        with open(fd, "wb") as file:
            while piece := content.read(READ_BYTES):
                self._room -= len(piece)  # again: a file with holes is larger than what came of it
                if self._room < 0:
                    raise ValueError("it is larger than --size-max")
                file.write(piece)
            os.fchmod(fd, (member.mode & 0o777) | 0o600)

    def _link(self, member: tarfile.TarInfo) -> None:
        parts = parts_of(member.name)
        inside = parts is not None and parts and leads_inside(parts, member.linkname)
        if not inside or parts is None:
            self._skip(member.name, f"a link to {member.linkname}, which is outside the archive")
            return
        folder = self._folder(parts[:-1])
        try:
            with suppress(FileNotFoundError):
                os.unlink(parts[-1], dir_fd=folder)
            os.symlink(member.linkname, parts[-1], dir_fd=folder)
        finally:
            os.close(folder)

    def _folder(self, parts: list[str]) -> int:
        """The folder of these names, made where it is missing. Raises OSError where one of them is a link."""
        fd = os.dup(self._root)
        try:
            for part in parts:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=fd)
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
                os.close(fd)
                fd = inner
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _skip(self, name: str, why: str) -> None:
        if len(self._skipped) < SKIPPED_MAX:
            self._skipped.append(f"{name[:200]}: {why}")


def parts_of(name: str) -> list[str] | None:
    """The names of a path below a folder; None for one that leads out of it, or too deep."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or len(parts) > DEPTH_MAX or "\0" in name:
        return None
    return parts


def leads_inside(parts: list[str], to: str) -> bool:
    """True if a link of this place leads to one below the same folder, by its text alone: no name on its way may be
    gone back over, as that could be another link."""
    if not to or to.startswith("/") or "\0" in to:
        return False
    names = to.split("/")
    ups = next((at for at, name in enumerate(names) if name not in ("..", ".", "")), len(names))
    return names[:ups].count("..") <= len(parts) - 1 and ".." not in names[ups:]


class Packed:
    """Sends a folder as an archive, in pieces, by `write`."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write

    def folder(self, source: Path) -> None:
        """Raises OSError, ValueError, and whatever `write` does."""
        with tarfile.open(
            fileobj=cast("Any", self), mode="w|", bufsize=READ_BYTES, format=tarfile.GNU_FORMAT
        ) as archive:
            try:
                archive.add(source, arcname=".", filter=_sent)
            except RecursionError:
                raise ValueError("is nested too deeply") from None

    def write(self, data: bytes) -> int:
        self._write(bytes(data))
        return len(data)


def _sent(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """The member as it is sent to a job, owned by its user; None for devices, pipes and sockets."""
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
