"""Sia-Philly workloads: jobs of six models, their length counted in iterations."""

from collections.abc import Sequence

from msgspec import Struct

from weft.simulator.traces.table import Columns, duration, gpus, name, read_jobs, seconds, shown
from weft.simulator.workload import TraceJob, Workload

COLUMNS = Columns(("job_id", "num_gpus", "submit_time", "duration", "model"))


class Model(Struct, frozen=True):
    """`iteration_s`: what one iteration takes on a typical GPU."""

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


def read(path: str) -> Workload:
    found = read_jobs(path, COLUMNS, _job)
    return Workload(name=path, jobs=tuple(found.jobs), notes=found.notes)


def _job(_line: int, fields: Sequence[str]) -> TraceJob:
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
