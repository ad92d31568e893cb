"""The files that go along with jobs: fetched from a gateway as a run starts, checked, and unpacked into the folder in
which the runs of that job and epoch work on this node. The folder is removed when the last of those runs is.

What is unpacked was packed by a tenant, who may have packed it to do harm: sizes and counts are bounded before anything
is written, every name is a plain relative path, and links are made last, so that nothing is written through one.
"""

import asyncio
import hashlib
import logging
import os
import stat
import zipfile
import zlib
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from weft.bus import Bus, BusError
from weft.messages.contexts import (
    DEPTH_MAX,
    FILES_MAX,
    NAME_BYTES_MAX,
    PACKED_BYTES_MAX,
    PIECE_BYTES,
    PIECES_MAX,
    UNPACKED_BYTES_MAX,
    ContextRead,
    ReadContext,
)
from weft.messages.nodes import StartRun
from weftd.executor.files.discards import Discards
from weftd.executor.files.home import context_folder
from weftd.executor.runs import RunKey, RuntimeUnavailableError

logger = logging.getLogger(__name__)

ANSWER_SECONDS_MAX = 10.0
PACKED_KEPT_BYTES = 1 << 30  # of packed files that were fetched, for the next run that has them
DIRECTORY_BYTES_MAX = 8 << 20  # of the list of files at the end of a ZIP file
LINK_BYTES_MAX = 4096
READ_BYTES = 1 << 20
_END = b"PK\x05\x06"
_END_BYTES = 22
_LARGE_END = b"PK\x06\x07"  # of a ZIP file with 64-bit sizes, 20 bytes before the other end
_LARGE_END_BYTES = 20


class BadContextError(Exception):
    """The files of the job cannot be had or unpacked, now or later."""


class Contexts:
    """`home`: the executor's folder; its subfolders are made when a run first has files."""

    def __init__(self, home: Path, bus: Bus, *, node_id: str) -> None:
        self._home, self._bus, self._node_id = home, bus, node_id
        self._top = home / "contexts"
        self._packed = self._top / "packed"
        self._discards = Discards(str(self._top / "discarded"))
        self._locks: dict[str, asyncio.Lock] = {}
        with suppress(FileNotFoundError):
            self._discards.sweep()

    async def bring(self, order: StartRun) -> None:
        """Have the files of the order's job in their folder. Raises BadContextError; RuntimeUnavailableError if they
        cannot be had now, so that the start is tried again."""
        assert order.context is not None
        key = RunKey.of(order)
        folder = context_folder(self._home, key)
        try:
            async with self._locks.setdefault(folder, asyncio.Lock()):
                if not await asyncio.to_thread(os.path.isdir, folder):
                    packed = await self._fetched(order, order.context)
                    await asyncio.to_thread(self._unpack, packed, folder)
        except OSError as error:
            raise RuntimeUnavailableError(f"its files cannot be unpacked now: {error}") from error

    def keep(self, keys: Collection[RunKey]) -> None:
        """Remove the folders of all other runs. Never raises."""
        held = {os.path.basename(context_folder(self._home, key)) for key in keys}
        try:
            names = [name for name in os.listdir(self._top) if name not in held | {"packed", "discarded"}]
        except OSError:
            return
        for name in names:
            if (lock := self._locks.get(f"{self._top}/{name.removesuffix('.new')}")) is None or not lock.locked():
                self._discards.take(f"{self._top}/{name}")
                self._locks.pop(f"{self._top}/{name}", None)

    def close(self) -> None:
        self._discards.close()

    async def _fetched(self, order: StartRun, digest: str) -> str:
        """The path of the packed files. Raises BadContextError, RuntimeUnavailableError, OSError."""
        path = f"{self._packed}/{digest}.zip"
        async with self._locks.setdefault(path, asyncio.Lock()):
            if await asyncio.to_thread(_is_kept, path):
                return path
            for folder in (self._top, self._packed):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            coming = f"{path}.new"
            with suppress(FileNotFoundError):
                os.unlink(coming)
            hashed = hashlib.sha256()
            size = number = 0
            while True:
                piece = await self._ask(order, number)
                hashed.update(piece.data)
                await asyncio.to_thread(_append, coming, piece.data)
                size, number = size + len(piece.data), number + 1
                if size >= piece.size or len(piece.data) != PIECE_BYTES or number == PIECES_MAX:
                    break
            if size > PACKED_BYTES_MAX or hashed.hexdigest() != digest:
                raise RuntimeUnavailableError(f"the {size} bytes that came are not those of {digest[:12]}")
            os.rename(coming, path)
            await asyncio.to_thread(_drop_oldest, self._packed, path)
            self._locks.pop(path, None)
            return path

    async def _ask(self, order: StartRun, number: int) -> ContextRead:
        asked = ReadContext(
            node_id=self._node_id, job_id=order.job_id, epoch=order.epoch, rank=order.rank, number=number
        )
        try:
            read = await self._bus.request(asked, ContextRead, seconds_max=ANSWER_SECONDS_MAX)
        except (BusError, ValueError) as error:
            raise RuntimeUnavailableError(f"no gateway sends its files: {error}") from error
        if read.missing:
            raise BadContextError(f"its files are not stored any more ({order.context}): submit it again with --sync")
        if read.refused:
            raise RuntimeUnavailableError(f"its files are refused: {read.refused}")
        return read

    def _unpack(self, packed: str, folder: str) -> None:
        coming = f"{folder}.new"
        self._discards.take(coming)
        os.mkdir(coming, 0o700)
        try:
            unpack(packed, coming)
            os.rename(coming, folder)
        except BaseException:
            self._discards.take(coming)
            raise


def unpack(packed: str, folder: str) -> None:
    """Unpack a ZIP file into an empty folder. Raises BadContextError; OSError if the disk does not take it."""
    try:
        _check_end(packed)
        with zipfile.ZipFile(packed) as archive:
            size = os.path.getsize(packed)
            if not all(0 <= info.header_offset < size for info in archive.infolist()):
                raise BadContextError("it has a file that is not within the ZIP file")
            _unpack_all(archive, folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise BadContextError(f"its files are no ZIP file that can be unpacked: {error}") from error


def _check_end(packed: str) -> None:
    """The list of files is read whole, so it is bounded before."""
    with open(packed, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _END_BYTES - _LARGE_END_BYTES))
        tail = file.read()
    end = tail[-_END_BYTES:]
    if len(end) < _END_BYTES or not end.startswith(_END) or end[20:] != b"\0\0":
        raise BadContextError("its files are no ZIP file, or one with a comment")
    if tail[:-_END_BYTES].startswith(_LARGE_END):
        raise BadContextError("its files are a ZIP file of the large format (ZIP64)")
    if int.from_bytes(end[10:12], "little") > FILES_MAX:
        raise BadContextError(f"it has more than {FILES_MAX} files")
    if int.from_bytes(end[12:16], "little") > DIRECTORY_BYTES_MAX:
        raise BadContextError(f"the list of its files is larger than {DIRECTORY_BYTES_MAX} bytes")


def _unpack_all(archive: zipfile.ZipFile, folder: str) -> None:
    infos = archive.infolist()
    if len(infos) > FILES_MAX:
        raise BadContextError(f"it has more than {FILES_MAX} files")
    if (total := sum(info.file_size for info in infos)) > UNPACKED_BYTES_MAX:
        raise BadContextError(f"its files have {total} bytes; {UNPACKED_BYTES_MAX} at most are unpacked")
    links: list[tuple[str, str]] = []
    for info in infos:
        path = f"{folder}/{_plain(info.filename)}"
        mode = info.external_attr >> 16
        try:
            os.makedirs(path if info.is_dir() else os.path.dirname(path), exist_ok=True)
            if stat.S_ISLNK(mode):
                links.append((_link(archive, info), path))
            elif not info.is_dir():
                _write(archive, info, path, mode=(mode & 0o755) | 0o600)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise BadContextError(f"it has two files of one name: {info.filename[:200]!r}") from error
    for parent, folders, _ in os.walk(folder):
        for path in (parent, *(f"{parent}/{name}" for name in folders)):
            os.chmod(path, 0o755)  # no other user of the host enters the folder above
    for target, path in links:
        try:
            os.symlink(target, path)
        except FileExistsError as error:
            raise BadContextError(f"it has two files of one name: {os.path.basename(path)!r}") from error


def _plain(name: str) -> str:
    """The name as a relative path without any part that leads elsewhere. Raises BadContextError."""
    parts = name.removesuffix("/").split("/")
    if len(parts) > DEPTH_MAX or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise BadContextError(f"it has a file that is not within its folder: {name[:200]!r}")
    try:
        too_long = any(len(os.fsencode(part)) > 255 for part in parts) or len(os.fsencode(name)) > NAME_BYTES_MAX
    except UnicodeEncodeError:
        raise BadContextError(f"it has a file whose name is no UTF-8: {name[:200]!r}") from None
    if too_long:
        raise BadContextError(f"it has a file with too long a name: {name[:200]!r}")
    return "/".join(parts)


def _link(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> str:
    if info.file_size > LINK_BYTES_MAX:
        raise BadContextError(f"it has a link that is too long: {info.filename[:200]!r}")
    with archive.open(info) as file:
        target = os.fsdecode(file.read(LINK_BYTES_MAX))
    if not target or "\0" in target:
        raise BadContextError(f"it has a link that leads nowhere: {info.filename[:200]!r}")
    return target


def _write(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: str, *, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file, archive.open(info) as source:
        left = info.file_size
        while piece := source.read(READ_BYTES):
            left -= len(piece)
            if left < 0:
                raise BadContextError(f"it has a file that is larger than its header says: {info.filename[:200]!r}")
            file.write(piece)
        os.fchmod(file.fileno(), mode)


def hand_over(folder: str, user: str) -> None:
    """Let the user of a container write to its files: `user` as the engine has it, such as `1000:1000`, a name or
    empty for root. Where it is known and we may, it becomes their owner, and all modes stay. Else any user may read
    and write them: ssh refuses a key file then. Raises OSError."""
    name, _, group = user.partition(":")
    uid = 0 if name in ("", "root") else int(name) if name.isdecimal() else None
    owner = os.stat(folder).st_uid
    if uid == owner:
        return
    if uid is not None and os.geteuid() == 0 and owner == os.geteuid():
        gid = int(group) if group.isdecimal() else -1
        for path in _every(folder):
            os.chown(path, uid, gid, follow_symlinks=False)
        return
    for path in _every(folder):
        mode = os.lstat(path).st_mode
        if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
            os.chmod(path, 0o777 if stat.S_ISDIR(mode) or mode & 0o100 else 0o666)


def _every(folder: str) -> Iterable[str]:
    """The folder and all that is in it; no link is followed."""
    yield folder
    for parent, folders, files in os.walk(folder):
        yield from (f"{parent}/{name}" for name in (*folders, *files))


def _is_kept(path: str) -> bool:
    """Note that it is used, if it is there."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _append(path: str, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def _drop_oldest(packed: Path, newest: str) -> None:
    """Keep the most recently used packed files up to `PACKED_KEPT_BYTES`, and remove incomplete ones."""
    found = sorted(_files(packed), reverse=True)
    total = 0
    for _, size, path in found:
        total += size
        if total > PACKED_KEPT_BYTES and path != newest:
            with suppress(OSError):
                os.unlink(path)


def _files(packed: Path) -> Iterable[tuple[float, int, str]]:
    with os.scandir(packed) as entries:
        for entry in entries:
            if entry.name.endswith(".zip"):
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    yield status.st_mtime, status.st_size, entry.path
