"""Small files, mostly the kernel's: read whole, or known to be missing. None is waited for, whatever lies there."""

import os

_BYTES_MAX = 1 << 20
_AT_ONCE = 16384
_KEPT_MAX = 600  # of the 1024 that a process may have open on most hosts
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW


def read_text(path: str) -> str | None:
    """The file's text; None if it is not there, not ours to read, or of a process that has gone meanwhile."""
    try:
        file = os.open(path, _FLAGS)
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


class KeptOpen:
    """Files of cgroups that are read every second: opening one costs more than reading it.

    The kernel writes such a file anew whenever it is read from its beginning, and fails once its cgroup has gone.
    """

    def __init__(self, kept_max: int = _KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._files: dict[str, int] = {}
        self._read: set[str] = set()

    def read(self, path: str) -> str | None:
        """As `read_text`."""
        file = self._files.get(path)
        if file is None:
            if len(self._files) >= self._kept_max:
                return read_text(path)
            try:
                file = self._files[path] = os.open(path, _FLAGS)
            except OSError:
                return None
        self._read.add(path)
        try:
            text = os.pread(file, _AT_ONCE, 0)
        except OSError:
            self._close(path)
            return None
        return text.decode(errors="replace") if len(text) < _AT_ONCE else read_text(path)

    def sweep(self) -> None:
        """Close those that were not read since the last sweep."""
        for path in self._files.keys() - self._read:
            self._close(path)
        self._read.clear()

    def _close(self, path: str) -> None:
        os.close(self._files.pop(path))
