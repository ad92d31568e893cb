"""The files of a folder and the virtual environment that go along with a job: `weft run --sync DIR --venv`.

The files are packed, stored under their digest unless they are there already, and are the working folder of each run.
docs/sync.md.
"""

import hashlib
import os
import re
import signal
import stat
import tempfile
import threading
import time
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import IO, NoReturn

from msgspec import Struct

from weft.client import Client, Refused
from weft.domain.quantity import size_text
from weft.messages.contexts import DEPTH_MAX, FILES_MAX, NAME_BYTES_MAX, PACKED_BYTES_MAX, UNPACKED_BYTES_MAX

IGNORES = ".weftignore"
GIT_IGNORES = ".gitignore"
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
MATCHING_SECONDS_MAX = 20.0  # CPU time for all patterns and all files; some patterns would take years
WHEN = (1980, 1, 1, 0, 0, 0)  # in place of each file's own time: the same files have the same digest
READ_BYTES = 1 << 20


class PackedFiles(Struct, frozen=True, kw_only=True):
    """`file`: the ZIP file, open and without a name. `bytes` of it. `left_out`: names that are no files, which stay."""

    file: IO[bytes]
    digest: str
    bytes: int
    files: int
    left_out: tuple[str, ...] = ()


def pack(folder: str) -> PackedFiles:
    """Raises Refused. In the main thread patterns that take too long are refused; elsewhere nothing bounds them."""
    if not os.path.isdir(folder):
        raise _refused(f"{folder} is not a folder")
    walk = _Walk(folder, _Ignores(folder))
    file = tempfile.TemporaryFile(prefix="weft-sync-")  # noqa: SIM115 - what is packed is sent later
    try:
        with _interruptible():
            return _packed(file, walk)
    except OSError as error:
        file.close()
        raise _refused(f"cannot read {error.filename}: {error.strerror}") from error
    except Refused:
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
        raise _refused(f"{walk.folder} has no files, or {GIT_IGNORES} and {IGNORES} name them all")
    file.seek(0)
    hashed = hashlib.sha256()
    while piece := file.read(READ_BYTES):
        hashed.update(piece)
    file.seek(0)
    return PackedFiles(
        file=file, digest=hashed.hexdigest(), bytes=size, files=walk.files, left_out=tuple(walk.left_out)
    )


async def store(client: Client, packed: PackedFiles) -> bool:
    """Store the files, unless the gateway has them; True if they were sent. Raises Refused."""
    try:
        if await client.context(packed.digest) is not None:
            return False
        with packed.file as file:
            await client.set_context(packed.digest, file.read())
    except Refused as error:
        raise _refused(error.reason) from error
    return True


class _Walk:
    """The path and the name of each file, link and empty folder, in order. `largest`: for a complaint."""

    def __init__(self, folder: str, ignores: "_Ignores") -> None:
        self.folder, self._ignores = folder, ignores
        self.files = 0
        self.largest: list[tuple[int, str]] = []
        self.left_out: list[str] = []

    def __iter__(self) -> Iterator[tuple[str, str]]:
        yield from self._below("")

    def _below(self, prefix: str) -> Iterator[tuple[str, str]]:
        with os.scandir(os.path.join(self.folder, prefix)) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            name = prefix + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if self._ignores.names(f"{name}/" if is_folder else name):
                continue
            if is_folder:
                yield entry.path, f"{name}/"
                yield from self._below(f"{name}/")
                continue
            mode = entry.stat(follow_symlinks=False)
            if not stat.S_ISREG(mode.st_mode) and not stat.S_ISLNK(mode.st_mode):
                self.left_out.append(name)
                continue
            self.files += 1
            self.largest = sorted([*self.largest, (mode.st_size, name)], reverse=True)[:3]
            yield entry.path, name


def _add(archive: zipfile.ZipFile, path: str, name: str) -> int:
    """Add one file, and return its bytes. Raises OSError, Refused."""
    mode = os.lstat(path).st_mode
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise _refused(f"the name of {name!r} is no UTF-8") from None
    if size > NAME_BYTES_MAX:
        raise _refused(f"{name[:100]}… has a path of more than {NAME_BYTES_MAX} bytes")
    if name.removesuffix("/").count("/") >= DEPTH_MAX:
        raise _refused(f"{name[:100]}… is more than {DEPTH_MAX} folders deep")
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
    info.external_attr = (stat.S_IFREG | _mode(mode)) << 16
    size = 0
    with open(path, "rb") as source, archive.open(info, "w") as file:
        while piece := source.read(READ_BYTES):
            size += len(piece)
            if size > UNPACKED_BYTES_MAX:
                raise _refused(f"{name} has more than {size_text(UNPACKED_BYTES_MAX)}")
            file.write(piece)
    return size


class _Ignores:
    """The patterns of files that never go along, of `.gitignore`, and of `.weftignore`, which may take back what those
    before it name. The folder may come from another person, who made the patterns to do harm. Raises Refused."""

    def __init__(self, folder: str) -> None:
        self._left = MATCHING_SECONDS_MAX
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of `[[`, which Python may read in another way one day
                named = [*_lines(folder, GIT_IGNORES), *_lines(folder, IGNORES)]
                import pathspec  # slow to import

                self._spec = pathspec.GitIgnoreSpec.from_lines([*NEVER, *named])
        except (ValueError, re.error, OverflowError, RecursionError) as error:
            raise _refused(f"{GIT_IGNORES} or {IGNORES}: {error}") from error

    def names(self, name: str) -> bool:
        """True if a pattern names the file. To be called within `_interruptible`, which ends a pattern that takes too
        long."""
        if threading.current_thread() is not threading.main_thread():
            return self._spec.match_file(name)
        before = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, self._left)
        try:
            return self._spec.match_file(name)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self._left = max(0.001, self._left - (time.process_time() - before))


def _mode(mode: int) -> int:
    """0600 or 0700 for what is the owner's alone, such as a key; 0644 or 0755 for all else, whatever the umask here."""
    own = 0o600 | (mode & 0o100)
    return own if not mode & 0o077 else own | 0o044 | (0o011 if mode & 0o100 else 0)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Within it, the timer of `_Ignores` raises Refused, also in the midst of a regular expression."""

    def over(number: int, frame: FrameType | None) -> NoReturn:
        which = f"{GIT_IGNORES} and {IGNORES}"
        raise _refused(f"the patterns in {which} take too long: have fewer `*` in each")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGPROF, over)
    try:
        yield
    finally:
        signal.signal(signal.SIGPROF, before)


def _lines(folder: str, name: str) -> list[str]:
    """The lines of the file, none if there is no such file. All of it or Refused: a part would let files go along
    that are to stay."""
    path = os.path.join(folder, name)
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise _refused(f"{name} is no file")
        with open(path, encoding="utf-8-sig", newline="\n") as file:
            text = file.read(IGNORES_BYTES_MAX + 1)
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise _refused(f"cannot read {name}: {error}") from error
    if len(text) > IGNORES_BYTES_MAX:
        raise _refused(f"{name} has more than {size_text(IGNORES_BYTES_MAX)}")
    return [line.removesuffix("\r") for line in text.split("\n")]


def _too_much(why: str, walk: _Walk) -> Refused:
    largest = ", ".join(f"{name} ({size_text(size)})" for size, name in walk.largest)
    hint = f"; the largest are {largest}" if largest else ""
    return _refused(f"the folder {why}{hint}; name in {IGNORES} what is to stay here")


def venv_of(environment: Mapping[str, str]) -> dict[str, str]:
    """PATH and VIRTUAL_ENV of the virtual environment that VIRTUAL_ENV names. Raises Refused."""
    folder = environment.get("VIRTUAL_ENV", "")
    if not folder:
        why = "no virtual environment is active here: VIRTUAL_ENV is not set (`. .venv/bin/activate` sets it)"
        raise Refused(0, "venv", why)
    programs = os.path.join(os.path.abspath(folder), "bin")
    if not os.access(f"{programs}/python", os.X_OK):
        raise Refused(0, "venv", f"VIRTUAL_ENV is {folder}, where there is no bin/python")
    others = [each for each in environment.get("PATH", os.defpath).split(":") if each not in ("", programs)]
    return {"VIRTUAL_ENV": os.path.abspath(folder), "PATH": ":".join([programs, *others])}


def _refused(reason: str) -> Refused:
    return Refused(0, "sync", reason)
