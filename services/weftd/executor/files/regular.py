"""Writes small files as a whole; reads those that a job may have replaced by a pipe, a device, a link, a huge file."""

import errno
import os
import stat
from contextlib import suppress

from msgspec import Struct

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC


class Small(Struct, frozen=True):
    """The first bytes of a regular file, and when it was last written, in seconds since the epoch."""

    data: bytes
    written_at: float


def write_whole(fd: int, data: bytes) -> None:
    """Raises OSError; also where the disk takes only a part."""
    if os.write(fd, data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def replace_file(path: str, data: bytes, *, sync: bool = False) -> None:
    """Write a file that is there as a whole or not at all; with `sync` it survives a crash of the host. Raises
    OSError."""
    new = f"{path}.new"
    with suppress(FileNotFoundError):
        os.unlink(new)
    fd = os.open(new, NEW, 0o600)
    try:
        write_whole(fd, data)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(new, path)


def read_small(path: str, *, bytes_max: int) -> Small | None:
    """None for a file that is missing, cannot be read, or is not regular. Never waits, and follows no link."""
    try:
        fd = os.open(path, READ)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return None
        return Small(os.pread(fd, bytes_max, 0), status.st_mtime)
    except OSError:
        return None
    finally:
        os.close(fd)
