"""The slot folder: one for each run that holds a share of a GPU, made by the executor and served by the arbiter.

share.json   the executor alone: what the run holds, of which GPU
seen.json    the arbiter alone, at most once a second: what the run used and waited
job/         the only part that the run sees: `limits`, `use` and `socket`, made by the arbiter

The root is short, so that the path of a socket stays below 100 bytes. What lies in `job/` may be of any kind and size.
"""

import os
import re
import shutil
import stat
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from weft.sharing.records import SlotSeen, SlotShare

SHARE, SEEN, JOB = "share.json", "seen.json", "job"
LIMITS, USE, SOCKET = "limits", "use", "socket"
SOCKET_PATH_BYTES_MAX = 99
NAME = re.compile(r"[a-z0-9-]{1,40}")
FILE_BYTES_MAX = 1 << 16

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

S = TypeVar("S", bound=Struct)


def make_slot(root: Path, name: str, share: SlotShare) -> Path:
    """Make the folder of a run, or give the one that is there another share; return its `job` folder.

    Raises OSError, and ValueError for a name or root that cannot be served.
    """
    if not NAME.fullmatch(name):
        raise ValueError(f"{name} is no name of a slot: 1 to 40 of a to z, 0 to 9 and -")
    folder = root / name
    if len(os.fsencode(folder / JOB / SOCKET)) > SOCKET_PATH_BYTES_MAX:
        raise ValueError(f"{folder} is too long a path for a socket")
    if folder.is_dir():
        write_share(folder, share)
        return folder / JOB
    made = root / f".{name}.new"  # so that the arbiter sees it whole
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(mode=0o700)
    (made / JOB).mkdir()
    write_share(made, share)
    made.rename(folder)
    return folder / JOB


def write_share(folder: int | Path, share: SlotShare) -> None:
    """Replace the share of a slot as a whole. Raises OSError."""
    _replace(folder, SHARE, msgspec.json.encode(share))


def write_seen(folder: int | Path, seen: SlotSeen) -> None:
    """Replace what was seen of a slot as a whole. Raises OSError."""
    _replace(folder, SEEN, msgspec.json.encode(seen))


def read_share(folder: int | Path) -> SlotShare:
    """The share of a slot, by the path of its folder or its descriptor.

    Raises OSError, and ValueError with what is wrong in the file.
    """
    return _read(folder, SHARE, SlotShare)


def read_seen(folder: int | Path) -> SlotSeen | None:
    """What the arbiter last wrote of a slot; None before it did."""
    try:
        return _read(folder, SEEN, SlotSeen)
    except (OSError, ValueError):
        return None


def slot_names(root: Path) -> list[str]:
    """The slots there are, in the order of their names. Raises OSError if the root cannot be read."""
    with os.scandir(root) as entries:
        return sorted(
            entry.name for entry in entries if NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        )


def open_folder(path: str | Path, *, beside: int | None = None) -> int:
    """The descriptor of a folder, never through a link in its last part. Raises OSError."""
    return os.open(path, _FOLDER, dir_fd=beside)


def read_file(folder: int | Path, name: str, *, bytes_max: int = FILE_BYTES_MAX) -> bytes:
    """An ordinary file of a folder, whole. Raises OSError, and ValueError if it is of another kind or too large."""
    fd = os.open(folder / name, _FILE) if isinstance(folder, Path) else os.open(name, _FILE, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError(f"{name} is no ordinary file")
        data = os.read(fd, bytes_max + 1)
    finally:
        os.close(fd)
    if len(data) > bytes_max:
        raise ValueError(f"{name} has more than {bytes_max} bytes")
    return data


def _read(folder: int | Path, name: str, kind: type[S]) -> S:
    try:
        return msgspec.json.decode(read_file(folder, name), type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"{name}: {error}") from error


def _replace(folder: int | Path, name: str, data: bytes) -> None:
    if isinstance(folder, Path):
        fd = open_folder(folder)
        try:
            _replace(fd, name, data)
        finally:
            os.close(fd)
        return
    new = f".{name}.new"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=folder)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
    os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
