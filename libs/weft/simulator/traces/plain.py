"""The plain format, for traces of one's own: one row a job, columns by name in any order."""

from collections.abc import Sequence
from sys import intern

from weft.simulator.traces.table import Columns, duration, gpus, header_of, name, read_jobs, seconds, whole
from weft.simulator.workload import MOST_SENSITIVE, Elastic, InputError, TraceJob, Workload

COLUMNS = Columns(
    ("id", "arrival_s", "gpus", "work_s"),
    ("class", "tenant", "priority", "estimate_s", "model", "started_s", "replicas"),
)
TOLD = ("state", "ended_s", "remaining_s", "basis", "epochs")  # of the columns of `weft export`: for people
OTHER_NAME = "duration_s"  # of work_s


def read(path: str) -> Workload:
    header = header_of(path)
    work = OTHER_NAME if OTHER_NAME in header else "work_s"
    if {"work_s", OTHER_NAME} <= set(header):
        raise InputError(path, 1, f"both work_s and {OTHER_NAME} are there, which say the same: leave one out")
    columns = Columns((*COLUMNS.needed[:-1], work), COLUMNS.also)

    def job(_line: int, fields: Sequence[str]) -> TraceJob:
        job_id, arrival_s, count, work_s, job_class, tenant, priority, estimate_s, model, started_s, replicas = fields
        asked = gpus("gpus", count)
        return TraceJob(
            id=name("id", job_id),
            arrival_s=seconds("arrival_s", arrival_s),
            gpus=asked,
            work_s=duration(work, work_s),
            job_class=intern(job_class.strip() or MOST_SENSITIVE),
            tenant=intern(tenant.strip() or "default"),
            priority=whole("priority", priority) if priority.strip() else 0,
            estimate_s=duration("estimate_s", estimate_s) if estimate_s.strip() else None,
            model=intern(model.strip()),
            started_s=seconds("started_s", started_s) if started_s.strip() else None,
            elastic=_in_parts(asked, gpus("replicas", replicas)) if replicas.strip() else None,
        )

    found = read_jobs(path, columns, job)
    return Workload(name=path, jobs=tuple(found.jobs), notes=(*found.notes, *_unread(header, columns)))


def _in_parts(asked: int, replicas: int) -> Elastic | None:
    """Each replica with all of its GPUs on one node; None where each has one GPU, as is usual."""
    if asked % replicas:
        raise ValueError(f"{asked} GPUs cannot be shared evenly among {replicas} replicas")
    each = (float(asked // replicas), 0.0, 0.0)
    return None if asked == replicas else Elastic(asked=replicas, least=replicas, most=replicas, each=each)


def _unread(header: list[str], columns: Columns) -> list[str]:
    """A mistyped column must not go unnoticed."""
    unread = [column for column in header if column not in (*columns.needed, *columns.also, *TOLD)]
    return [f"columns that were not read: {', '.join(unread)}"] if unread else []
