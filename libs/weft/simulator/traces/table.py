"""A CSV file of jobs, read row by row: every mistake is an InputError that names the line."""

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import inf
from operator import itemgetter

from msgspec import Struct

from weft.domain.text import listed
from weft.simulator.workload import InputError, TraceJob

SECONDS_MAX = 1e12  # beyond, floats lose milliseconds, and sums overflow
GPUS_MAX = 1_000_000
SHOWN_MAX = 40  # characters of a bad value in a message

JobOf = Callable[[int, Sequence[str]], TraceJob | str]
"""The job of a row: its line, and its fields in the order of `Columns`. A str: left out, and what such rows are.

It raises ValueError with what is wrong.
"""


class Columns(Struct, frozen=True):
    """The columns that a format reads. A column of `also` that the file does not have reads as empty."""

    needed: tuple[str, ...]
    also: tuple[str, ...] = ()


class Jobs(Struct, frozen=True):
    """The jobs of a file in its order, and the number of skipped rows by kind."""

    jobs: list[TraceJob]
    left_out: Counter[str]

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(f"{count:,} {what} left out" for what, count in self.left_out.items())


def read_jobs(path: str, columns: Columns, job_of: JobOf) -> Jobs:
    jobs: list[TraceJob] = []
    left_out: Counter[str] = Counter()
    lines: dict[str, int] = {}
    for line, fields in read_rows(path, columns):
        try:
            job = job_of(line, fields)
        except ValueError as error:
            raise InputError(path, line, str(error)) from error
        if isinstance(job, str):
            left_out[job] += 1
            continue
        if (before := lines.setdefault(job.id, line)) != line:
            raise InputError(path, line, f"the id {shown(job.id)} is in line {before}, too")
        jobs.append(job)
    found = Jobs(jobs, left_out)
    if not jobs:
        raise InputError(path, 0, "; ".join(("there are no jobs in it", *found.notes)))
    return found


def read_rows(path: str, columns: Columns) -> Iterator[tuple[int, Sequence[str]]]:
    """Each row that is not blank: the line that it begins in, and its fields in the order of `columns`."""
    rows = _rows(path)
    line, header = _header(path, rows)
    places = _places(path, line, header, columns)
    fields_of = itemgetter(*places) if len(places) > 1 else lambda row: (row[places[0]],)
    for line, row in rows:
        if len(row) != len(header):
            raise InputError(path, line, f"{len(row)} fields where the header has {len(header)}")
        row.append("")
        yield line, fields_of(row)


def header_of(path: str) -> list[str]:
    return _header(path, _rows(path))[1]


def _header(path: str, rows: Iterator[tuple[int, list[str]]]) -> tuple[int, list[str]]:
    for line, row in rows:
        header = [name.strip() for name in row]
        twice = [name for name, times in Counter(header).items() if name and times > 1]
        if twice:
            raise InputError(path, line, f"the column {shown(twice[0])} is there twice")
        return line, header
    raise InputError(path, 0, "the file is empty")


def _places(path: str, line: int, header: list[str], columns: Columns) -> list[int]:
    """Where the columns are in a row; -1, which is an empty field behind it, where one may be missing and is."""
    missing = [name for name in columns.needed if name not in header]
    if missing:
        columns_text = f"{'column' if len(missing) == 1 else 'columns'} {listed(missing)}"
        found = ", ".join(name[:SHOWN_MAX] for name in header)
        raise InputError(path, line, f"missing {columns_text}; it has {found}")
    return [header.index(name) if name in header else -1 for name in (*columns.needed, *columns.also)]


def _rows(path: str) -> Iterator[tuple[int, list[str]]]:
    """Every row that is not blank, and the line that it begins in."""
    line = 0
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            for row in reader:
                if row:
                    yield line + 1, row
                line = reader.line_num
    except OSError as error:
        raise InputError(path, 0, f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(path, _first_line_that_is_no_text(path), "this is not UTF-8 text") from error
    except csv.Error as error:
        raise InputError(path, line + 1, f"this is no CSV: {error}") from error


def _first_line_that_is_no_text(path: str) -> int:
    with open(path, "rb") as file:
        for line, text in enumerate(file, 1):
            try:
                text.decode()
            except UnicodeDecodeError:
                return line
    return 0


# values


def seconds(column: str, text: str) -> float:
    """A time that may be 0."""
    value = number(column, text)
    if value < 0:
        raise ValueError(f"{column} is negative: {shown(text)}")
    return value


def duration(column: str, text: str) -> float:
    value = number(column, text)
    if value <= 0:
        raise ValueError(f"{column} is not above 0: {shown(text)}")
    return value


def gpus(column: str, text: str) -> int:
    """A number of GPUs, at least 1."""
    value = whole(column, text)
    if value <= 0:
        raise ValueError(f"{column} is not above 0: {shown(text)}")
    if value > GPUS_MAX:
        raise ValueError(f"{column} is above {GPUS_MAX:,}: {shown(text)}")
    return value


def whole(column: str, text: str) -> int:
    value = number(column, text)  # a float first: some tools write 4 as 4.0
    if value != int(value):
        raise ValueError(f"{column} is no whole number: {shown(text)}")
    return int(value)


def number(column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = inf
    if not -SECONDS_MAX <= value <= SECONDS_MAX or "_" in text:
        raise ValueError(_what_is_no_number(column, text))
    return value


def _what_is_no_number(column: str, text: str) -> str:
    if not text.strip():
        return f"{column} is empty"
    try:
        too_large = "_" not in text and SECONDS_MAX < abs(float(text)) < inf
    except ValueError:
        too_large = False
    return f"{column} is {f'beyond {SECONDS_MAX:g}' if too_large else 'no finite number'}: {shown(text)}"


def name(column: str, text: str) -> str:
    stripped = text.strip()
    if not stripped:
        raise ValueError(f"{column} is empty")
    return stripped


def shown(text: str) -> str:
    return repr(text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "…")
