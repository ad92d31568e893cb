"""Copies a container's output into the node's own log, so that none of it is lost with the container.

A thread for each container follows the engine's log. Its position is stored beside the log: `size` bytes of the log
hold all of the engine's entries up to some entry, of which `entries` have a time of `since` (whole seconds) or later.
So after any interruption the log is cut to `size`, the engine's entries are read from `since` on, and the first
`entries` of them are skipped: every byte is copied once, whatever the engine's clock and the order of its two streams.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime

import msgspec
from docker import APIClient
from docker.errors import DockerException, NotFound
from msgspec import Struct

from weftd.executor.files.regular import replace_file
from weftd.executor.runtime.docker.engine import GONE, NONSENSE
from weftd.executor.runtime.docker.enginepipes import EnginePipes

logger = logging.getLogger(__name__)

KEEP_SECONDS = 1.0
KEEP_BYTES = 1 << 20
WINDOW_SECONDS = 10  # entries of one time may be stored a little out of order
AGAIN_SECONDS = 0.5


class Position(Struct, frozen=True, kw_only=True):
    since: int = 0
    entries: int = 0
    size: int = 0
    done: bool = False
    at: int = 0  # offset in the engine's own file, if that file is copied (enginelog.py)


class LogCopy:
    """Call `begin` once; it is `done` when the container has ended and all its output is in the log."""

    def __init__(self, client: APIClient, container: str, log: str, *, told: Callable[[], None]) -> None:
        self._client = client
        self._container = container
        self._log = log
        self._told = told
        self.pipes = EnginePipes()
        self._position = read_position(log)
        self._size = self._position.size
        self._kept = (0.0, 0)
        self._stopping = False
        self._stream: Iterator[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name=f"log {container[:12]}", daemon=True)

    @property
    def done(self) -> bool:
        return self._position.done

    def begin(self) -> None:
        if not self.done:
            self._thread.start()

    def stop(self) -> None:
        """Disconnect from the engine; the copied output stays."""
        self._stopping = True
        stream = self._stream
        if stream is not None:
            _close(stream)

    def over(self) -> None:
        """The container has ended; the engine's answer shows that as well."""

    def lost(self) -> None:
        """The container is gone."""
        self.stop()

    def join(self, seconds_max: float) -> None:
        if self._thread.is_alive():
            self._thread.join(seconds_max)

    def _run(self) -> None:
        while not self._stopping and not self.done:
            try:
                with open(self._log, "ab", buffering=0) as log:
                    self._try(log.fileno())
            except (DockerException, *GONE, *NONSENSE) as error:  # Also a full disk.
                logger.debug("following %s: %s", self._container, error)
                time.sleep(AGAIN_SECONDS)
        self.pipes.close()
        self._told()

    def _try(self, log: int) -> None:
        try:
            if self._ended():
                self._copy(log, follow=False)
                if not self._stopping:
                    self._finish(log)
            else:
                self._copy(log, follow=True)
        except NotFound:
            self._finish(log)  # Gone, and its output with it.

    def _ended(self) -> bool:
        return self._client.inspect_container(self._container)["State"]["Status"] in ("exited", "dead")

    def _copy(self, fd: int, *, follow: bool) -> None:
        """Copy from the stored position to the end of the engine's answer."""
        position = self._position
        os.ftruncate(fd, position.size)
        self._size, skip, counts = position.size, position.entries, dict[int, int]()
        stream = self._client.logs(
            self._container, stream=True, follow=follow, timestamps=True, since=position.since or None
        )
        self._stream = stream
        try:
            if self._stopping:
                return
            seconds = _Seconds()
            for entry in stream:
                stamp, _, data = entry.partition(b" ")
                second = seconds.of(stamp)
                counts[second] = counts.get(second, 0) + 1
                if skip:
                    skip -= 1
                    continue
                self._write(fd, data)
                if self._size - self._kept[1] >= KEEP_BYTES or time.monotonic() - self._kept[0] >= KEEP_SECONDS:
                    self._keep(counts)
        finally:
            self._stream = None
            _close(stream)
            _release(stream)
            if not skip:  # Otherwise it broke off among entries copied before, and the position is the same.
                self._keep(counts)

    def _write(self, fd: int, data: bytes) -> None:
        while data:
            written = os.write(fd, data)
            self._size += written
            data = data[written:]

    def _keep(self, counts: dict[int, int]) -> None:
        """Move `since` to a window before the newest entry, and store the position. `counts`: entries by second."""
        since = max(self._position.since, max(counts, default=0) - WINDOW_SECONDS)
        for early in [second for second in counts if second < since]:
            del counts[early]
        self._store(Position(since=since, entries=sum(counts.values()), size=self._size))

    def _finish(self, fd: int) -> None:
        """Add the bytes that the engine did not read. Raises OSError: then nothing was added."""
        rest = self.pipes.rest()
        os.ftruncate(fd, self._position.size)
        self._size = self._position.size
        self._write(fd, rest)
        self._store(msgspec.structs.replace(self._position, size=self._size, done=True))

    def _store(self, position: Position) -> None:
        store_position(self._log, position)
        self._position = position
        self._kept = (time.monotonic(), self._size)


def _close(stream: object) -> None:
    """Close the stream's connection, which the engine may be closing at this moment."""
    with suppress(AttributeError, OSError, DockerException):
        stream.close()  # type: ignore[attr-defined]


def _release(stream: object) -> None:
    """Close what the SDK's `close` leaves open: the connection of an answer without entries that nothing has read.

    Only for the thread that reads the stream.
    """
    with suppress(AttributeError, OSError, DockerException):
        stream._response.close()  # type: ignore[attr-defined]


class _Seconds:
    """Parses time stamps to whole seconds; most have the same second as the one before."""

    def __init__(self) -> None:
        self._text = b""
        self._second = 0

    def of(self, stamp: bytes) -> int:
        if stamp[:19] != self._text:
            self._text = stamp[:19]
            self._second = int(datetime.fromisoformat(stamp.decode()).timestamp())
        return self._second


def position_path(log: str) -> str:
    return f"{log}.at"


def store_position(log: str, position: Position) -> None:
    replace_file(position_path(log), msgspec.json.encode(position))


def read_position(log: str) -> Position:
    """The stored position; the beginning if there is none, or if the log is shorter than the position."""
    try:
        with open(position_path(log), "rb") as file:
            position = msgspec.json.decode(file.read(), type=Position)
        return position if os.stat(log).st_size >= position.size else Position()
    except (FileNotFoundError, msgspec.DecodeError):
        return Position()
