"""`--sync DIR`: the files of a folder go along with a job. They are packed, stored under their digest unless they are
there already, and are the working folder of each run. docs/sync.md."""

import argparse
import hashlib
import os
import stat
import tempfile
import zipfile
from collections.abc import Iterator
from typing import IO

import pathspec
from msgspec import Struct

from libs.client import Client, RefusedError
from libs.domain.quantity import size_text
from libs.messages.contexts import FILES_MAX, PACKED_BYTES_MAX, UNPACKED_BYTES_MAX
from services.cli import page
from services.cli.complaint import Complaint

IGNORES = ".weftignore"
NEVER = (
    ".git/",
    ".hg/",
    ".svn/",
    "__pycache__/",
    ".venv/",
    "venv/",
    "node_modules/",
    ".ipynb_checkpoints/",
    ".*_cache/",
)
IGNORES_BYTES_MAX = 1 << 20
WHEN = (1980, 1, 1, 0, 0, 0)  # in place of each file's own time: the same files have the same digest
READ_BYTES = 1 << 20


class PackedFiles(Struct, frozen=True, kw_only=True):
    """`file`: the ZIP file, open and without a name. `bytes` of it."""

    file: IO[bytes]
    digest: str
    bytes: int
    files: int


def sync_option(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    what = f"the files of this folder go along and are where it runs; {IGNORES} there names what stays"
    parser.add_argument("--sync", metavar="DIR", help=what)


def pack(folder: str) -> PackedFiles:
    """Raises `Complaint`."""
    if not os.path.isdir(folder):
        raise Complaint(f"{folder} is not a folder", field="--sync", status=2)
    walk = _Walk(folder, _ignores(folder))
    file = tempfile.TemporaryFile(prefix="weft-sync-")  # noqa: SIM115 - what is packed is sent later
    try:
        return _packed(file, walk)
    except OSError as error:
        file.close()
        raise Complaint(f"cannot read {error.filename}: {error.strerror}", field="--sync") from error
    except Complaint:
        file.close()
        raise


def _packed(file: IO[bytes], walk: "_Walk") -> PackedFiles:
    total = 0
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, allowZip64=False) as archive:
        for count, (path, name) in enumerate(walk, 1):
            if count > FILES_MAX:
                raise _too_much(f"has more than {FILES_MAX} files", walk)
            total += _add(archive, path, name)
            if total > UNPACKED_BYTES_MAX:
                raise _too_much(f"has more than {size_text(UNPACKED_BYTES_MAX)}", walk)
    size = file.tell()
    if size > PACKED_BYTES_MAX:
        most = f"{size_text(PACKED_BYTES_MAX)} at most go along"
        raise _too_much(f"has {size_text(size)} when it is packed; {most}", walk)
    if not walk.files:
        raise Complaint(f"{walk.folder} has no files, or {IGNORES} names them all", field="--sync")
    file.seek(0)
    hashed = hashlib.sha256()
    while piece := file.read(READ_BYTES):
        hashed.update(piece)
    file.seek(0)
    return PackedFiles(file=file, digest=hashed.hexdigest(), bytes=size, files=walk.files)


async def store(client: Client, packed: PackedFiles) -> None:
    """Store what was packed, unless the gateway has it. Raises `Complaint`."""
    try:
        if await client.context(packed.digest) is not None:
            page.note(f"{packed.files} files, stored already")
            return
        with packed.file as file:
            await client.set_context(packed.digest, file.read())
    except RefusedError as error:
        raise Complaint(error.reason, field="--sync") from error
    page.note(f"{packed.files} files stored, {size_text(packed.bytes)}")


class _Walk:
    """The path and the name of each file, link and empty folder, in order. `largest`: for a complaint."""

    def __init__(self, folder: str, ignores: pathspec.GitIgnoreSpec) -> None:
        self.folder, self._spec = folder, ignores
        self.files = 0
        self.largest: list[tuple[int, str]] = []

    def __iter__(self) -> Iterator[tuple[str, str]]:
        yield from self._below("")

    def _below(self, prefix: str) -> Iterator[tuple[str, str]]:
        with os.scandir(os.path.join(self.folder, prefix)) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            name = prefix + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if self._spec.match_file(f"{name}/" if is_folder else name):
                continue
            if is_folder:
                yield entry.path, f"{name}/"
                yield from self._below(f"{name}/")
                continue
            mode = entry.stat(follow_symlinks=False)
            if not stat.S_ISREG(mode.st_mode) and not stat.S_ISLNK(mode.st_mode):
                page.remark(f"note: {name} is neither a file nor a folder and stays here")
                continue
            self.files += 1
            self.largest = sorted([*self.largest, (mode.st_size, name)], reverse=True)[:3]
            yield entry.path, name


def _add(archive: zipfile.ZipFile, path: str, name: str) -> int:
    """Add one file, and return its bytes. Raises OSError, `Complaint`."""
    mode = os.lstat(path).st_mode
    try:
        name.encode()
    except UnicodeEncodeError:
        raise Complaint(f"the name of {name!r} is no UTF-8", field="--sync") from None
    info = zipfile.ZipInfo(name, WHEN)
    info.create_system = 3  # Unix: the mode is in `external_attr`
    info.compress_type = zipfile.ZIP_DEFLATED
    if stat.S_ISDIR(mode):
        info.external_attr = (stat.S_IFDIR | 0o755) << 16
        archive.writestr(info, b"")
        return 0
    if stat.S_ISLNK(mode):
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        target = os.fsencode(os.readlink(path))
        archive.writestr(info, target)
        return len(target)
    info.external_attr = (stat.S_IFREG | (0o755 if mode & 0o100 else 0o644)) << 16
    size = 0
    with open(path, "rb") as source, archive.open(info, "w") as file:
        while piece := source.read(READ_BYTES):
            size += len(piece)
            if size > UNPACKED_BYTES_MAX:
                raise Complaint(f"{name} has more than {size_text(UNPACKED_BYTES_MAX)}", field="--sync")
            file.write(piece)
    return size


def _ignores(folder: str) -> pathspec.GitIgnoreSpec:
    lines: list[str] = []
    try:
        with open(os.path.join(folder, IGNORES), encoding="utf-8") as file:
            lines = file.read(IGNORES_BYTES_MAX).splitlines()
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise Complaint(f"cannot read {IGNORES}: {error}", field="--sync") from error
    try:
        return pathspec.GitIgnoreSpec.from_lines([*NEVER, *lines])
    except ValueError as error:
        raise Complaint(f"{IGNORES}: {error}", field="--sync") from error


def _too_much(why: str, walk: _Walk) -> Complaint:
    largest = ", ".join(f"{name} ({size_text(size)})" for size, name in walk.largest)
    hint = f"; the largest are {largest}" if largest else ""
    return Complaint(f"the folder {why}{hint}; name in {IGNORES} what is to stay here", field="--sync")
