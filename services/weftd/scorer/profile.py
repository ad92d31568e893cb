"""A profile of earlier scores: a CSV file with one row for each GPU and its score for each class of jobs.

A GPU is named by `gpu_uuid`, or by `node_id` and `gpu_index`; the other columns are `compute`, `mixed` and `memory`, or
A, B and C, as PAL names them. A score is the time for what a typical GPU does in 1.0. Other columns are not read.
"""

from pathlib import Path

from weft.domain.classes import JOB_CLASSES
from weft.planning.scores import GpuKey
from weft.profiles import ProfileError, Table
from weftd.scorer.thinking.scores import ByClass, MeasuredGpus

LETTERS = dict(zip("ABC", JOB_CLASSES, strict=True))


def read(path: str) -> MeasuredGpus:
    """Raises ProfileError, which names the file and the line."""
    table = Table(path)
    columns = {name: table.either(name, letter) for letter, name in LETTERS.items()}
    by_uuid: dict[str, ByClass] = {}
    by_place: dict[GpuKey, ByClass] = {}
    named_by_uuid = table.either("gpu_uuid", "node_id") == "gpu_uuid"
    if not named_by_uuid:
        table.either("gpu_index")
    lines: dict[str | GpuKey, int] = {}
    for line, row in table.rows:
        scores = {job_class: table.time(line, column, row) for job_class, column in columns.items()}
        name: str | GpuKey
        if named_by_uuid:
            name = row["gpu_uuid"].strip()
            by_uuid[name] = scores
        else:
            name = (row["node_id"].strip(), table.whole(line, "gpu_index", row))
            by_place[name] = scores
        if (before := lines.setdefault(name, line)) != line:
            raise ProfileError(path, line, f"this GPU is in line {before}, too")
    return MeasuredGpus(by_uuid=by_uuid, by_place=by_place, measured_at=Path(path).stat().st_mtime)
