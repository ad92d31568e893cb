"""Until when runs of this node may begin, in a file that their shells read.

An executor may be suspended between the permission to start a run and the spawn of its shell, and on a starved host a
shell may take seconds to begin. So each shell checks the file itself: the run begins only while the fence of the node
stands, and only if the fence has stood ever since the run was permitted. Otherwise the job may run
on another node by now.

The file `leave` in the home is one line of two numbers of 15 digits: when the fence falls, and since when it has stood
without a gap, in hundredths of a second on the clock that counts from boot. It is overwritten in place, so a full disk
does not matter, and each number only grows. A shell that reads while it is written has the first digits of the older
number and the last digits of the newer: a mixture that is never greater than the newer number. The shell reads the fall
before the beginning. So after a gap it sees either a fall that is past, or the new beginning, and refuses both.
"""

import os
from pathlib import Path

from msgspec import Struct

_DIGITS = 15


class Leave(Struct, frozen=True, kw_only=True):
    """A permission to start: the path of the file, and `at`, the last good sync then, in hundredths of a second."""

    path: str
    at: int


class LeaveFile:
    """Raises OSError when it is opened."""

    def __init__(self, path: Path, fence_seconds: float) -> None:
        self._path, self._fence = str(path), int(fence_seconds * 100)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._since: int | None = None
        self._synced: int | None = None
        self._write(0, 0)

    def renew(self, synced_at: float) -> None:
        """Note a good sync, in seconds on the clock that counts from boot. Raises OSError."""
        at = int(synced_at * 100)
        if self._synced is None or self._since is None or at >= self._synced + self._fence:
            self._since = at
        self._synced = at
        self._write(at + self._fence, self._since)

    def now(self) -> Leave | None:
        """A permission as of the last good sync; None before the first."""
        return None if self._synced is None else Leave(path=self._path, at=self._synced)

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, until: int, since: int) -> None:
        os.pwrite(self._fd, b"%0*d %0*d\n" % (_DIGITS, until, _DIGITS, since), 0)
