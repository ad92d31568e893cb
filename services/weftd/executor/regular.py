"""Reads small files that a job may have replaced by anything: a pipe, a device, a link, a folder, a huge file."""

import errno
import os
import stat

from msgspec import Struct

READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC


class Small(Struct, frozen=True):
    """The first bytes of a regular file, and when it was last written, in seconds since the epoch."""

    data: bytes
    written_at: float


def write_whole(fd: int, data: bytes) -> None:
    """Raises OSError; also where the disk takes only a part."""
    if os.write(fd, data) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read_small(path: str, *, bytes_max: int) -> Small | None:
    """None for what is missing, cannot be read, or is no regular file. Never waits, and follows no link."""
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
