"""Microsoft's Philly trace as published with Sia: the jobs of 2017, by wall clock."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from sys import intern

from msgspec.structs import replace

from weft.simulator.traces.table import Columns, duration, gpus, name, read_jobs, shown
from weft.simulator.workload import TraceJob, Workload

COLUMNS = Columns(("timestamp", "duration", "num_gpus", "cluster"))
NOTES = (
    "times are local: around the end of daylight saving time they may be an hour off",
    "the trace tells no models: every job is of class A",
)
_BEGINNING = datetime.fromisoformat("1970-01-01 00:00:00")
_SECOND = timedelta(seconds=1)


def read(path: str) -> Workload:
    found = read_jobs(path, COLUMNS, _job)
    first = min(job.arrival_s for job in found.jobs)
    jobs = tuple(replace(job, arrival_s=job.arrival_s - first) for job in found.jobs)
    return Workload(name=path, jobs=jobs, notes=(*found.notes, *NOTES))


def _job(line: int, fields: Sequence[str]) -> TraceJob:
    timestamp, duration_s, num_gpus, cluster = fields
    return TraceJob(
        id=f"line-{line}",  # the file gives its jobs no id
        arrival_s=_seconds(timestamp),
        gpus=gpus("num_gpus", num_gpus),
        work_s=duration("duration", duration_s),
        tenant=intern(name("cluster", cluster)),
    )


def _seconds(timestamp: str) -> float:
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        moment = None
    if moment is None or len(timestamp) != len("YYYY-MM-DD HH:MM:SS") or moment.tzinfo is not None:
        raise ValueError(f"timestamp is not YYYY-MM-DD HH:MM:SS: {shown(timestamp)}")
    return (moment - _BEGINNING) / _SECOND
