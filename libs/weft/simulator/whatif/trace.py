"""Jobs of a real cluster as a trace, in the plain format that `weft simulate --trace` reads. Pure."""

import csv
import io
import math
from collections.abc import Iterable, Mapping

from msgspec import Struct

from weft.domain.classes import class_of, is_benchmark
from weft.domain.job import Job, JobState
from weft.planning.resource_request import gpus_of, resource_request_of_job
from weft.simulator.whatif.durations import Assumptions, held_s

COLUMNS = (
    "id", "arrival_s", "gpus", "replicas", "work_s", "class", "tenant", "priority", "estimate_s",
    "state", "started_s", "ended_s", "remaining_s", "basis", "epochs",
)  # fmt: skip


class TraceRow(Struct, frozen=True, kw_only=True):
    """One job. Times are seconds since 1970. `replicas` have as many
    GPUs each; None: they have not. `work_s`: how long it held its GPUs, or is taken to hold them in all;
    `remaining_s`: how much of that is still to come, by `basis`, of a job that is not over. `started_at`: its last
    start; `epochs`: how often it was tried."""

    id: str
    submitted_at: float
    gpus: int
    replicas: int | None
    work_s: float
    job_class: str
    tenant: str
    priority: int
    estimate_s: float | None
    state: JobState
    started_at: float | None
    ended_at: float | None
    remaining_s: float | None
    basis: str
    epochs: int


def row_of(job: Job, durations: Assumptions, learnt: Mapping[str, str], *, now: float) -> TraceRow | None:
    """The row of a job; None for a job that no trace can have: it needs no GPU, never ran and is over, is a service
    that goes on, or only measures a GPU. Parts of GPUs add up to whole ones."""
    asked = gpus_of(resource_request_of_job(job))
    left = None if job.state.final else durations.left(job, now)
    work_s = held_s(job, now) + (0.0 if left is None else left.seconds)
    if asked <= 0 or work_s <= 0 or math.isinf(work_s) or is_benchmark(job.spec):
        return None
    return TraceRow(
        id=job.id,
        submitted_at=job.submitted_at,
        gpus=math.ceil(asked),
        replicas=_replicas(job),
        work_s=work_s,
        job_class=class_of(job.spec, learnt),
        tenant=job.tenant,
        priority=job.priority,
        estimate_s=job.spec.time_limit_seconds,
        state=job.state,
        started_at=job.started_at,
        ended_at=job.ended_at,
        remaining_s=None if left is None else left.seconds,
        basis="ended" if left is None else left.basis,
        epochs=job.epoch + 1,
    )


def _replicas(job: Job) -> int | None:
    """The number of replicas with GPUs, if all of them have equally many."""
    parts = {want.request.gpus for want in resource_request_of_job(job) if want.count}
    count = sum(want.count for want in resource_request_of_job(job))
    return count if len(parts) == 1 and min(parts) > 0 else None


def csv_of(rows: Iterable[TraceRow]) -> str:
    """The trace, by arrival. Its time begins with the first arrival."""
    ordered = sorted(rows, key=lambda row: (row.submitted_at, row.id))
    begin = ordered[0].submitted_at if ordered else 0.0
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in ordered:
        writer.writerow(
            (
                row.id,
                _seconds(row.submitted_at - begin),
                row.gpus,
                row.replicas or "",
                _seconds(max(row.work_s, 0.001)),
                row.job_class,
                row.tenant,
                row.priority,
                _seconds(row.estimate_s),
                row.state,
                _seconds(None if row.started_at is None else row.started_at - begin),
                _seconds(None if row.ended_at is None else row.ended_at - begin),
                _seconds(row.remaining_s),
                row.basis,
                row.epochs,
            )
        )
    return text.getvalue()


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{round(value, 3):.12g}"
