"""The series of numbers that runs reported, on the disk of their node: a file for each run, a line a report.

A line is `[at, {"step": 120, "loss": 0.31}]`, with `at` in seconds since the epoch. A file has at most ROWS_MAX lines:
beyond that every second one of the older lines goes, so that the past is thinner the older it is. A run has at most
SERIES_MAX names; what is no finite number is left out.
"""

import math
import os
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from weftd.executor.files.job_folders import OWN, make_folder
from weftd.executor.files.regular import READ, replace_file, write_whole
from weftd.executor.runs import RunKey

ROWS_MAX = 10_000
NEWEST = 1000  # lines that are never thinned
SERIES_MAX = 100
PENDING_MAX = 2000  # lines of one run that wait to be written
FILE_BYTES_MAX = 64 << 20  # a larger file is not one of ours
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC

Row = tuple[float, dict[str, float]]


class _Series(msgspec.Struct):
    """One run's: how many lines its file has, its names, and the lines that are not written yet."""

    rows: int
    names: set[str]
    last: dict[str, float] | None  # the last line of the file as it was found, until the first report
    pending: deque[Row]


class MetricsFiles:
    """`folder`: each job has its own folder in it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._runs: dict[RunKey, _Series] = {}

    def add(self, key: RunKey, at: float, lines: Sequence[Mapping[str, float]]) -> None:
        """Take the lines that a run reported; `write` stores them."""
        series = self._runs.get(key)
        if series is None:
            series = self._runs[key] = self._found(key)
        finite = [row for line in lines if (row := _finite(line))]
        if series.last is not None:  # this process has just begun, and reads the end of the reports again
            known = [place for place, row in enumerate(finite) if row == series.last]
            finite, series.last = finite[known[-1] + 1 :] if known else finite, None
        for row in finite:
            kept = {name: value for name, value in row.items() if self._has_room(series, name)}
            if kept:
                series.pending.append((at, kept))

    def write(self) -> None:
        """Write the waiting lines. Blocks. Raises OSError; lines that could not be written wait on."""
        for key, series in list(self._runs.items()):
            if series.pending:
                self._write(key, series)

    def forget(self, key: RunKey) -> None:
        self._runs.pop(key, None)

    def _write(self, key: RunKey, series: _Series) -> None:
        rows = list(series.pending)
        make_folder(self._folder, key.job_id, mode=OWN)
        fd = os.open(self._path(key), _APPEND, 0o600)
        try:
            write_whole(fd, b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
        finally:
            os.close(fd)
        for _ in range(min(len(rows), len(series.pending))):
            series.pending.popleft()
        series.rows += len(rows)
        if series.rows > ROWS_MAX:
            lines = thinned(_lines(self._path(key)))
            replace_file(self._path(key), b"".join(lines))
            series.rows = len(lines)

    def _has_room(self, series: _Series, name: str) -> bool:
        if name not in series.names and len(series.names) < SERIES_MAX:
            series.names.add(name)
        return name in series.names

    def _found(self, key: RunKey) -> _Series:
        """The file that an earlier process of this executor left."""
        series = _Series(rows=0, names=set(), last=None, pending=deque(maxlen=PENDING_MAX))
        lines = _lines(self._path(key))
        series.rows = len(lines)
        for line in lines[-NEWEST:]:
            with suppress(msgspec.DecodeError):
                series.last = msgspec.json.decode(line, type=Row)[1]
                series.names |= series.last.keys()
        return series

    def _path(self, key: RunKey) -> str:
        return f"{self._folder}/{key.job_id}/{key.epoch}-{key.rank}.jsonl"


def thinned(lines: Sequence[bytes]) -> list[bytes]:
    """The newest lines, and of the older ones every second."""
    older = max(0, len(lines) - NEWEST)
    return [*lines[:older:2], *lines[older:]]


def _finite(line: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in line.items() if math.isfinite(value)}


def _lines(path: str) -> list[bytes]:
    """The whole lines of a file; none if it cannot be read."""
    try:
        fd = os.open(path, READ)
    except OSError:
        return []
    try:
        data = os.read(fd, FILE_BYTES_MAX) if os.fstat(fd).st_size <= FILE_BYTES_MAX else b""
    finally:
        os.close(fd)
    return [line for line in data.splitlines(keepends=True) if line.endswith(b"\n")]
