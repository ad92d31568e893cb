"""A run's output as lines, and the numbers in lines."""

import os
import re
import stat

READ_BYTES_MAX = 64 * 1024  # of one file at one look
LINE_BYTES_MAX = 4096
LINES_MAX = 256  # of one file at one look, if progress is expected in every line

# What is not a number as far as it goes is none if shorter either, so nothing is tried twice: `{}+` and `(?>`.
_PAIR = re.compile(
    r"(?<![\w.-])([A-Za-z_][A-Za-z0-9_.-]{0,63}+)="  # names are ASCII; other letters before one make it none
    r"([+-]?(?>\d{1,32}\.?\d{0,32}(?:[eE][+-]?\d{1,3})?|\.\d{1,32}(?:[eE][+-]?\d{1,3})?|(?i:nan|inf(?:inity)?)))"
    r"(?![\w.])"
)


def pairs(line: str) -> dict[str, float]:
    """`step=120 loss=0.31` → {"step": 120.0, "loss": 0.31}; what is not a name and a number is passed over.

    Numbers may be nan or infinite: the caller checks them.
    """
    return {name: float(value) for name, value in _PAIR.findall(line[:LINE_BYTES_MAX])}


class Tail:
    """The new whole lines at the end of a file, which may also be replaced or rewritten.

    `written_at`: when it was last written, as its file system says, in seconds since the epoch.
    """

    def __init__(self, path: str, *, lines_max: int = READ_BYTES_MAX) -> None:
        self._path = path
        self._lines_max = lines_max
        self._offset = 0
        self._was: tuple[int, int, int] | None = None
        self._unended = False  # a last line without a newline waits to be ended, or to be left as it is
        self.written_at = 0.0

    def news(self, *, last: bool = False) -> list[str]:
        """The newest of the new lines. A last one that has no newline counts once the file has come to rest, or is
        `last`."""
        try:
            found = os.lstat(self._path)
        except OSError:
            return []
        if not stat.S_ISREG(found.st_mode):  # a FIFO would block for ever, a link would lead out of the folder
            return []
        now = (found.st_ino, found.st_size, found.st_mtime_ns)
        at_rest = now == self._was
        if at_rest and not self._unended:
            return []
        if self._was is not None and (now[0] != self._was[0] or found.st_size < self._offset):
            self._offset = 0
        elif not at_rest and self._was is not None and found.st_size == self._was[1]:
            self._offset = 0  # as long as before and yet newer: it was rewritten
        self._was = now
        self.written_at = found.st_mtime_ns / 1e9
        return self._read(found.st_size, whole=at_rest or last)

    def _read(self, size: int, *, whole: bool) -> list[str]:
        skipped = size - self._offset > READ_BYTES_MAX
        start = size - READ_BYTES_MAX if skipped else self._offset
        try:
            fd = os.open(
                self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            )  # it may be another file now
        except OSError:
            return []
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return []
            data = os.pread(fd, READ_BYTES_MAX, start)
        except OSError:
            return []  # its disk fails
        finally:
            os.close(fd)
        if skipped:
            cut = data.find(b"\n") + 1
            start, data = start + cut, data[cut:]
        end = len(data) if whole or len(data) == READ_BYTES_MAX else data.rfind(b"\n") + 1
        self._offset = start + end
        self._unended = end < len(data)
        lines = data[:end].splitlines()[-self._lines_max :]
        return [line[:LINE_BYTES_MAX].decode(errors="replace") for line in lines]
