"""Microsoft's Philly trace as published with Sia: the jobs of 2017, by wall clock. And the Sia-Philly workloads drawn
from it: jobs of six models, their length counted in iterations.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from sys import intern

from msgspec import Struct
from msgspec.structs import replace

from weft.simulator.traces.table import Columns, duration, gpus, name, read_jobs, seconds, shown
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


SIA_COLUMNS = Columns(("job_id", "num_gpus", "submit_time", "duration", "model"))


class Model(Struct, frozen=True):
    """`iteration_s`: the seconds of one iteration on a typical GPU."""

    name: str
    job_class: str
    iteration_s: float


# The iteration times and classes are those that the PAL artifact simulates with.
MODELS = {
    model.name.lower(): model
    for model in (
        Model("resnet50", "A", 0.17540429367763434),
        Model("GPT2", "B", 3.5714),
        Model("BERT", "B", 0.179),
        Model("DCGAN", "B", 0.0469266931),
        Model("vgg19", "C", 0.300610341),
        Model("PointNet", "D", 0.28125),
    )
}


def read_sia(path: str) -> Workload:
    found = read_jobs(path, SIA_COLUMNS, _sia_job)
    return Workload(name=path, jobs=tuple(found.jobs), notes=found.notes)


def _sia_job(_line: int, fields: Sequence[str]) -> TraceJob:
    job_id, num_gpus, submit_time, iterations, model_name = fields
    model = MODELS.get(model_name.strip().lower())
    if model is None:
        known = ", ".join(model.name for model in MODELS.values())
        raise ValueError(f"nothing is known of the model {shown(model_name)}: known are {known}")
    return TraceJob(
        id=name("job_id", job_id),
        arrival_s=seconds("submit_time", submit_time),
        gpus=gpus("num_gpus", num_gpus),
        work_s=duration("duration", iterations) * model.iteration_s,
        job_class=model.job_class,
        model=model.name,
    )
