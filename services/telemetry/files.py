"""Small files, mostly the kernel's: read whole, or known to be missing. None is waited for, whatever lies there."""

import os

_BYTES_MAX = 1 << 20


def read_text(path: str) -> str | None:
    """The file's text; None if it is not there, not ours to read, or of a process that has gone meanwhile."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        text = b""
        while len(text) < _BYTES_MAX and (more := os.read(file, 65536)):
            text += more
        return text.decode(errors="replace")
    except OSError:
        return None
    finally:
        os.close(file)


def names_in(folder: str) -> list[str]:
    """What lies in a folder; nothing if it is not there."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def link_of(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
