"""Profiles: how slow each GPU of a cluster is for each class of jobs, read from ready tables.

A score is the time that a GPU takes for what a typical one does in 1.0.
"""

import csv
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from io import StringIO
from math import inf
from pathlib import Path

from msgspec import Struct

CLASS_COLUMN = re.compile(r"(?:PerfVar_)?class(\w+)")


class ProfileError(Exception):
    """A profile cannot be read: `file`, `line` (1 is the first; 0: the file as a whole) and the mistake."""

    def __init__(self, file: str, line: int, reason: str) -> None:
        super().__init__(f"{file}:{line}: {reason}" if line else f"{file}: {reason}")
        self.file = file
        self.line = line
        self.reason = reason


class ProfiledGpu(Struct, frozen=True):
    """One GPU. `id`: its own, or in a sampled cluster that of the measured GPU, which may occur twice."""

    id: str
    scores: Mapping[str, float]  # by class


class Profile(Struct, frozen=True):
    name: str
    nodes: tuple[tuple[ProfiledGpu, ...], ...]

    @property
    def gpus(self) -> tuple[ProfiledGpu, ...]:
        return tuple(gpu for node in self.nodes for gpu in node)

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(sorted({name for gpu in self.gpus for name in gpu.scores}))


# profiles


def scores_for(profile: Profile, nodes: int, gpus_per_node: int) -> dict[str, tuple[float, ...]]:
    """By class, the scores of a cluster's GPUs in their order: the first GPUs of the profile."""
    needed = nodes * gpus_per_node
    gpus = profile.gpus[:needed]
    if len(gpus) < needed:
        raise ProfileError(profile.name, 0, f"it has {len(gpus)} GPUs, the cluster {needed}")
    for gpu in gpus:
        missing = [name for name in profile.classes if name not in gpu.scores]
        if missing:
            raise ProfileError(profile.name, 0, f"GPU {gpu.id} has no score for class {', '.join(missing)}")
    return {name: tuple(gpu.scores[name] for gpu in gpus) for name in profile.classes}


# files


def read_profile(path: str | Path, *, classes: Collection[str] | None = None) -> Profile:
    """A ready table: a row per GPU with its node, and a column `classA`, … or `PerfVar_classA`, … per class.

    `classes`: the required ones; the others are not read.
    """
    table = Table(str(path))
    gpu_column, node_column = table.either("gpu_id", "GPU_ID"), table.either("node_id", "Node_ID")
    columns = {match[1]: column for column in table.columns if (match := CLASS_COLUMN.fullmatch(column))}
    missing = sorted((set(classes) if classes is not None else set()) - set(columns))
    if missing or not columns:
        wanted = f"class {', '.join(missing)}" if missing else "any class"
        raise ProfileError(table.file, 1, f"no column for {wanted}; it has {', '.join(table.columns)}")
    wanted_columns = {name: column for name, column in columns.items() if classes is None or name in classes}
    nodes: defaultdict[str, list[ProfiledGpu]] = defaultdict(list)
    lines: dict[str, int] = {}
    for line, row in table.rows:
        gpu = ProfiledGpu(
            row[gpu_column], {name: table.time(line, column, row) for name, column in wanted_columns.items()}
        )
        if lines.setdefault(gpu.id, line) != line:
            raise ProfileError(table.file, line, f"GPU {gpu.id} is in line {lines[gpu.id]}, too")
        nodes[row[node_column]].append(gpu)
    return Profile(Path(path).stem, tuple(tuple(gpus) for gpus in nodes.values()))


class Table:
    """A CSV file with its rows, and the line that each begins in."""

    def __init__(self, file: str) -> None:
        self.file = file
        lines = self._lines()
        if not lines:
            raise ProfileError(file, 0, "the file is empty")
        line, header = lines[0]
        self.columns = [name.strip() for name in header]
        for line, row in lines[1:]:
            if len(row) != len(header):
                raise ProfileError(file, line, f"{len(row)} fields where the header has {len(header)}")
        if len(lines) == 1:
            raise ProfileError(file, 0, "there are no rows in it")
        self.rows = [(line, dict(zip(self.columns, row, strict=True))) for line, row in lines[1:]]

    def _lines(self) -> list[tuple[int, list[str]]]:
        found: list[tuple[int, list[str]]] = []
        line = 0
        try:
            text = Path(self.file).read_bytes().decode("utf-8-sig")
            reader = csv.reader(StringIO(text, newline=""), strict=True)
            for row in reader:
                if row:
                    found.append((line + 1, row))
                line = reader.line_num
        except OSError as error:
            raise ProfileError(self.file, 0, f"cannot be read: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            raise ProfileError(self.file, line, "this is not UTF-8 text") from error
        except csv.Error as error:
            raise ProfileError(self.file, line + 1, f"this is no CSV: {error}") from error
        return found

    def either(self, *names: str) -> str:
        """The first of these columns that the file has."""
        for name in names:
            if name in self.columns:
                return name
        raise ProfileError(self.file, 1, f"missing column {' or '.join(names)}; it has {', '.join(self.columns)}")

    def time(self, line: int, column: str, row: Mapping[str, str]) -> float:
        try:
            value = float(row[column])
        except ValueError:
            value = inf
        if not 0 < value < inf:
            raise ProfileError(self.file, line, f"{column} is no time above 0: {row[column]!r}")
        return value

    def whole(self, line: int, column: str, row: Mapping[str, str]) -> int:
        try:
            return int(row[column])
        except ValueError as error:
            raise ProfileError(self.file, line, f"{column} is no whole number: {row[column]!r}") from error
