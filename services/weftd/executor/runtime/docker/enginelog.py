"""Copies a container's output from the engine's own file, and frees the copied part of that file.

If the executor may write to the engine's files, this is better than the engine's API (logcopy.py): the engine's file
stays small however much a container writes, without rotation, which would lose output that is not yet copied. The file
is that of the engine's driver `local`: each entry is a length, one protobuf message (1 the stream, 2 the time, 3 the
bytes, 4 whether it is part of a line, 5 which part) and the length again; a whole line is without its newline.

The position beside the log means: the first `at` bytes of the engine's file are in the first `size` bytes of the log.
After any interruption the log is cut to `size`, and copying goes on from `at`: every byte is copied once. If copying
falls so far behind that the node's disk is in danger, it skips output and notes in the log how much.
"""

import logging
import os
import struct
import threading
import time
from collections.abc import Callable

from docker import APIClient

from weftd.executor.logs.retention import GRAIN, NOT_HERE, punch
from weftd.executor.runtime.docker.enginepipes import EnginePipes
from weftd.executor.runtime.docker.logcopy import (
    AGAIN_SECONDS,
    KEEP_SECONDS,
    LogCopy,
    Position,
    read_position,
    store_position,
)

logger = logging.getLogger(__name__)

READ_BYTES = 1 << 19  # many times an entry: the engine cuts lines at 16 KiB
REST_PART = 0.5  # pause, as a part of the time of a read and its copying: the executor has other work
PUNCH_BYTES = 4 * GRAIN
BEHIND_BYTES_MAX = 512 << 20
LOOK_SECONDS = 0.1
LENGTH = struct.Struct(">I")
ENTRY_BYTES_MAX = READ_BYTES // 2
STREAM = b"\x0a\x06std"  # the beginning of an entry's message
STREAM_BYTES, TIME_BYTES, TIME = 8, 10, 0x10
LINE, PARTIAL, PART, LAST = 0x1A, 0x20, 0x2A, 0x08


class NotAnEntryError(ValueError):
    """These bytes are no entries of the engine."""


def engine_folder(root: str) -> str:
    """The folder of the containers' files of the engine with the folder `root`; empty if we may not change them."""
    folder = f"{root}/containers"
    return folder if root and os.access(folder, os.R_OK | os.W_OK | os.X_OK) else ""


def engine_file(folder: str, container: str) -> str | None:
    """The file of one container's output, if it exists."""
    path = f"{folder}/{container}/local-logs/container.log"
    return path if folder and os.path.exists(path) else None


def copy_of(
    container: str, log: str, folder: str, client: APIClient, *, told: Callable[[], None]
) -> "LogCopy | FileCopy":
    """The copy of a container's output into `log`. It goes on from the source it began with; a new one reads the
    engine's file if there is one in `folder`."""
    begun = read_position(log)
    source = engine_file(folder, container)
    if source is not None and (begun.at or not begun.size):
        return FileCopy(source, log, told=told)
    return LogCopy(client, container, log, told=told)


class FileCopy:
    """Call `begin` once; it is `done` when the container has ended and all its output is in the log."""

    def __init__(self, source: str, log: str, *, told: Callable[[], None]) -> None:
        self._source = source
        self._log = log
        self._told = told
        self.pipes = EnginePipes()
        self._position = read_position(log)
        self._kept_at = 0.0
        self._punched = 0
        self._over = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"log {os.path.basename(log)}", daemon=True)

    @property
    def done(self) -> bool:
        return self._position.done

    def begin(self) -> None:
        if not self.done:
            self._thread.start()

    def over(self) -> None:
        """The container has ended: nothing more will be written."""
        self._over = True

    lost = over  # The open file can still be read to its end.

    def stop(self) -> None:
        self._stopping.set()

    def join(self, seconds_max: float) -> None:
        if self._thread.is_alive():
            self._thread.join(seconds_max)

    def _run(self) -> None:
        source = self._open()
        while source is not None and not self._stopping.is_set() and not self.done:
            try:
                self._copy(source)
            except OSError as error:  # Such as a full disk: the engine's file keeps the output meanwhile.
                logger.debug("copying %s: %s", self._source, error)
                self._stopping.wait(AGAIN_SECONDS)
        if source is not None:
            os.close(source)
        self.pipes.close()
        self._told()

    def _open(self) -> int | None:
        while not self._stopping.is_set():
            try:
                return os.open(self._source, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                if self._over:
                    self._position = Position(done=True)  # Gone, and the output with it.
                    return None
            except OSError as error:
                logger.debug("copying %s: %s", self._source, error)
            self._stopping.wait(AGAIN_SECONDS)
        return None

    def _copy(self, source: int) -> None:
        """Copy from the stored position on, until it is stopped or all is copied. Raises OSError."""
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            position = self._position
            os.ftruncate(log, position.size)
            os.lseek(log, position.size, os.SEEK_SET)
            while not self._stopping.is_set():
                over, began = self._over, time.monotonic()  # read the flag before the file
                position, moved = self._step(source, log, position)
                self._stopping.wait((time.monotonic() - began) * REST_PART)
                recent = time.monotonic() - self._kept_at < KEEP_SECONDS
                if moved and recent and position.at - self._position.at < PUNCH_BYTES:
                    continue
                if position != self._position:
                    self._keep(source, position)
                if not moved and over:
                    rest = self.pipes.rest()
                    _write(log, rest)
                    self._store(Position(at=position.at, size=position.size + len(rest), done=True))
                    return
                if not moved:
                    self._stopping.wait(LOOK_SECONDS)
            self._keep(source, position)
        finally:
            os.close(log)

    def _step(self, source: int, log: int, position: Position) -> tuple[Position, bool]:
        size = os.fstat(source).st_size
        behind = size - position.at
        if behind < 0 or behind > BEHIND_BYTES_MAX:
            return self._pass_over(source, log, position, size), True
        data = os.pread(source, READ_BYTES, position.at)
        try:
            output, used = decode(data)
            if not used and len(data) == READ_BYTES:
                raise NotAnEntryError("an entry without an end")
        except NotAnEntryError as error:
            logger.warning("%s at %d: %s", self._source, position.at, error)
            return self._pass_over(source, log, position, size), True
        _write(log, output)
        return Position(at=position.at + used, size=position.size + len(output)), used > 0

    def _pass_over(self, source: int, log: int, position: Position, size: int) -> Position:
        """Skip to the first entry that begins in the last READ_BYTES of the file, or to its end."""
        window = max(0, size - READ_BYTES)
        if window <= position.at <= size:
            window = position.at + 1
        found = beginning(os.pread(source, size - window, window)) if window < size else None
        at = size if found is None else window + found
        text = f"\n[weft: about {max(0, at - position.at)} bytes of output are missing here: they came too fast]\n"
        output = text.encode()
        _write(log, output)
        return Position(at=at, size=position.size + len(output))

    def _keep(self, source: int, position: Position) -> None:
        self._store(position)
        end = position.at // GRAIN * GRAIN
        if end - self._punched >= PUNCH_BYTES:
            try:
                punch(source, end)
            except OSError as error:
                if error.errno not in NOT_HERE:
                    raise
            self._punched = end

    def _store(self, position: Position) -> None:
        store_position(self._log, position)
        self._position = position
        self._kept_at = time.monotonic()


def decode(data: bytes) -> tuple[bytes, int]:
    """The output in the whole entries at the beginning of `data`, and the length of these entries.

    Raises NotAnEntryError if `data` does not begin with an entry or a part of one.
    """
    parts: list[bytes] = []
    at, end = 0, len(data)
    while at + 4 <= end:
        (length,) = LENGTH.unpack_from(data, at)
        after = at + 8 + length
        good = 0 < length <= ENTRY_BYTES_MAX
        if good and after > end:
            break
        if not good or LENGTH.unpack_from(data, after - 4)[0] != length:
            if parts:
                break
            raise NotAnEntryError(f"no entry has {length} bytes, or it ends otherwise")
        line = at + 4 + STREAM_BYTES + TIME_BYTES
        number = data[line + 1] if length > STREAM_BYTES + TIME_BYTES + 2 else 0x80
        if number < 0x80 and data[line] == LINE and data[line - TIME_BYTES] == TIME and line + 2 + number == after - 4:
            parts.append(data[line + 2 : after - 4])  # a short whole line, as most are
            parts.append(b"\n")
        else:
            parts.append(_line(data, at + 4, after - 4))
        at = after
    return b"".join(parts), at


def beginning(data: bytes) -> int | None:
    """Where the first whole entry begins; None if there is none."""
    at = data.find(STREAM)
    while at >= 0:
        if at >= LENGTH.size:
            (length,) = LENGTH.unpack_from(data, at - LENGTH.size)
            after = at + length
            if 0 < length <= ENTRY_BYTES_MAX and data[after : after + 4] == data[at - 4 : at]:
                return at - LENGTH.size
        at = data.find(STREAM, at + 1)
    return None


def _line(data: bytes, at: int, end: int) -> bytes:
    """The bytes of one entry, with the end of the line where one was."""
    line, partial, last = b"", False, False
    while at < end:
        tag = data[at]
        number, at = _varint(data, at + 1)
        if tag & 7 == 2:
            if tag == LINE:
                line = data[at : at + number]
            elif tag == PART:
                last = data[at : at + 2] == b"\x08\x01"
            at += number
        elif tag & 7 != 0:
            raise NotAnEntryError(f"a field of kind {tag & 7}")
        elif tag == PARTIAL:
            partial = number != 0
    return line if partial and not last else line + b"\n"


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number, shift = 0, 0
    while True:
        if at >= len(data) or shift > 63:
            raise NotAnEntryError("a number without an end")
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return number, at
        shift += 7


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
