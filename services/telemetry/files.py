"""Small files of the kernel: read whole, or known to be missing."""

import os

_BYTES_MAX = 1 << 20


def read_text(path: str) -> str | None:
    """The file's text; None if it is not there, not ours to read, or of a process that has gone meanwhile."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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


def link_of(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
