"""Files of jobs in, workloads out: each format is a module, found by the header of the file."""

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from weft.simulator.traces import openb, philly, plain
from weft.simulator.traces.table import SHOWN_MAX, Columns, header_of
from weft.simulator.workload import InputError, Workload


class Format(Struct, frozen=True):
    """A format of trace files. `columns`: the columns by which its files are recognised."""

    columns: Columns
    read: Callable[[str], Workload]


FORMATS = {
    "sia-philly": Format(philly.SIA_COLUMNS, philly.read_sia),
    "philly": Format(philly.COLUMNS, philly.read),
    "openb": Format(openb.COLUMNS, openb.read),
    "plain": Format(plain.COLUMNS, plain.read),
}
AUTO = "auto"


def read(path: str | Path, *, format: str = AUTO, jobs: int | None = None) -> Workload:  # noqa: A002 - as users say it
    """The jobs of a file by arrival; `jobs`: only this many of the first. Raises InputError."""
    if format != AUTO and format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join((AUTO, *FORMATS))}: {format}")
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs must be at least 1: {jobs}")
    chosen = FORMATS[detected(path) if format == AUTO else format]
    return _first(jobs, replace(chosen.read(str(path)), name=Path(path).stem))


def detected(path: str | Path) -> str:
    """The format of which the file has the most columns, so that missing columns can be named."""
    header = header_of(str(path))
    parts = {name: _part_there(form.columns, header) for name, form in FORMATS.items()}
    best = max(parts, key=lambda name: parts[name])
    if parts[best] < 0.5:
        found = ", ".join(name[:SHOWN_MAX] for name in header)
        known = "; ".join(f"{name}: {', '.join(form.columns.needed)}" for name, form in FORMATS.items())
        raise InputError(str(path), 1, f"no format has the columns {found}. Known are {known}")
    return best


def _part_there(columns: Columns, header: list[str]) -> float:
    return len(set(columns.needed) & set(header)) / len(columns.needed)


def _first(count: int | None, workload: Workload) -> Workload:
    by_arrival = sorted(workload.jobs, key=lambda job: job.arrival_s)
    if count is None or count >= len(by_arrival):
        return replace(workload, jobs=tuple(by_arrival))
    note = f"the first {count:,} of {len(by_arrival):,} jobs"
    return replace(workload, jobs=tuple(by_arrival[:count]), notes=(*workload.notes, note))
