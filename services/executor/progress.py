"""How far each run is: from the file or datagram socket the run writes to, or from a pattern on its output.

Lines are `step=120 samples=3840 loss=0.31`; the newest value of each name wins. Only what is new is read, and of a lot
of news only its end, so a chatty job costs no more than a quiet one.
"""

import asyncio
import logging
import math
import os
import re
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from services.executor.home import Home
from services.executor.matching import Matcher
from services.executor.runtime import Run, RunKey

logger = logging.getLogger(__name__)

READ_BYTES_MAX = 64 * 1024  # of one file at one look
LINE_BYTES_MAX = 4096
NAMES_MAX = 32  # of one run
DATAGRAMS_MAX = 64  # at one wake

_PAIR = re.compile(
    r"(?<![\w.-])([A-Za-z_][\w.-]{0,63})=([+-]?(?:\d{1,32}\.?\d{0,32}|\.\d{1,32})(?:[eE][+-]?\d{1,3})?)(?![\w.])"
)


def pairs(line: str) -> dict[str, float]:
    """`step=120 loss=0.31` → {"step": 120.0, "loss": 0.31}; what is not a name and a number is passed over."""
    return finite({name: float(value) for name, value in _PAIR.findall(line[:LINE_BYTES_MAX])})


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """JSON knows neither infinity nor NaN."""
    return {name: value for name, value in values.items() if math.isfinite(value)}


class Tail:
    """What is new at the end of a file, as whole lines; the file may also be replaced or written anew."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = 0
        self._was: tuple[int, int, int] | None = None
        self._unended = False  # a last line without a newline waits to be ended, or to be left as it is

    def news(self, *, last: bool = False) -> list[str]:
        """The new lines. A last line that has no newline counts once the file has come to rest, or is `last`."""
        try:
            found = os.lstat(self._path)
        except OSError:
            return []
        if not stat.S_ISREG(found.st_mode):  # a FIFO would hold us for ever, a link would lead out of the folder
            return []
        now = (found.st_ino, found.st_size, found.st_mtime_ns)
        at_rest = now == self._was
        if at_rest and not self._unended:
            return []
        if self._was is not None and (now[0] != self._was[0] or found.st_size < self._offset):
            self._offset = 0
        elif not at_rest and self._was is not None and found.st_size == self._was[1]:
            self._offset = 0  # as long as before and yet newer: it was written anew
        self._was = now
        return self._read(found.st_size, whole=at_rest or last)

    def _read(self, size: int, *, whole: bool) -> list[str]:
        skipped = size - self._offset > READ_BYTES_MAX
        start = size - READ_BYTES_MAX if skipped else self._offset
        try:
            fd = os.open(
                self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            )  # it may be another now
        except OSError:
            return []
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return []
            data = os.pread(fd, READ_BYTES_MAX, start)
        finally:
            os.close(fd)
        if skipped:
            cut = data.find(b"\n") + 1
            start, data = start + cut, data[cut:]
        end = len(data) if whole or len(data) == READ_BYTES_MAX else data.rfind(b"\n") + 1
        self._offset = start + end
        self._unended = end < len(data)
        return [line[:LINE_BYTES_MAX].decode(errors="replace") for line in data[:end].splitlines()]


@contextmanager
def _for_everybody() -> Iterator[None]:
    """What is made here may be written by all. A chmod afterwards could be led elsewhere: the folder is the job's."""
    before = os.umask(0o111)
    try:
        yield
    finally:
        os.umask(before)


class Progress(Protocol):
    """What is known of how far the runs are."""

    latest: dict[RunKey, dict[str, float]]
    patterns: Mapping[RunKey, str]
    """For the runs that tell it on their output."""

    async def look(self, runs: Iterable[Run]) -> dict[RunKey, dict[str, float]]:
        """The progress that is new since the last look, of runs that live; forgets the runs that are gone."""

    async def settle(self, ended: Sequence[Run]) -> None:
        """Read the last of what ended runs had to say, once, before their end is told."""

    async def close(self) -> None: ...


class _Watched:
    def __init__(self, home: Home, key: RunKey) -> None:
        self.file = Tail(home.progress(key))
        self.log = Tail(home.log(key))
        self.socket: socket.socket | None = None
        self.settled = False


class ProgressReader:
    """Progress from the files and sockets of a home."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._watched: dict[RunKey, _Watched] = {}
        self._matcher = Matcher()
        self.latest: dict[RunKey, dict[str, float]] = {}
        self.patterns: Mapping[RunKey, str] = {}

    async def look(self, runs: Iterable[Run]) -> dict[RunKey, dict[str, float]]:
        before = dict(self.latest)
        known: set[RunKey] = set()
        for run in runs:
            known.add(run.key)
            if run.live:
                await self._read(run.key, last=False)
        for key in [key for key in self._watched if key not in known]:
            self._close(self._watched.pop(key))
        self.latest = {key: progress for key, progress in self.latest.items() if key in known}
        return {key: progress for key, progress in self.latest.items() if before.get(key) != progress}

    async def settle(self, ended: Sequence[Run]) -> None:
        for run in ended:
            watched = self._watched.get(run.key)
            if run.started_at is not None and (watched is None or not watched.settled):
                await self._read(run.key, last=True)
                watched = self._watched[run.key]
                watched.settled = True
                self._close(watched)

    async def close(self) -> None:
        for watched in self._watched.values():
            self._close(watched)
        await self._matcher.close()

    async def _read(self, key: RunKey, *, last: bool) -> None:
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = _Watched(self._home, key)
            if not last:
                watched.socket = self._listen(key)
        for line in watched.file.news(last=last):
            self._learn(key, pairs(line))
        pattern = self.patterns.get(key)
        if pattern is not None:
            self._learn(key, finite(await self._matcher.latest(pattern, watched.log.news(last=last))))

    def _learn(self, key: RunKey, values: Mapping[str, float]) -> None:
        if values:
            both = {**self.latest.get(key, {}), **values}
            self.latest[key] = dict(list(both.items())[:NAMES_MAX])

    def _listen(self, key: RunKey) -> socket.socket | None:
        """The run's own datagram socket. Where there can be none, the file remains."""
        path = self._home.progress_socket(key)
        if not path:
            return None
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            with suppress(FileNotFoundError):
                os.unlink(path)
            with _for_everybody():  # a container's user is not ours; the folder above is closed to others
                listening.bind(path)
        except OSError as error:
            logger.debug("no progress socket for %s: %s", key, error)
            listening.close()
            return None
        asyncio.get_running_loop().add_reader(listening.fileno(), self._hear, key, listening)
        return listening

    def _hear(self, key: RunKey, listening: socket.socket) -> None:
        for _ in range(DATAGRAMS_MAX):
            try:
                data = listening.recv(LINE_BYTES_MAX)
            except OSError:
                return
            self._learn(key, pairs(data.decode(errors="replace")))

    def _close(self, watched: _Watched) -> None:
        if watched.socket is not None:
            asyncio.get_running_loop().remove_reader(watched.socket.fileno())
            watched.socket.close()
            watched.socket = None
