"""Ended windows that may become samples of GPUs, kept until the paces that they compare to have come."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from weft.domain.classes import JOB_CLASSES
from weft.messages.signals import GpuPace
from weft.planning.scores import GpuKey
from weft.variability.estimate import FAR, NEAR
from weftd.scorer.thinking.references import Alike
from weftd.scorer.thinking.whereabouts import JobKey


class SpeedReading(Struct, frozen=True, kw_only=True):
    """One window of one rank, or of one GPU's clock, that may become a sample of the GPUs."""

    kind: Alike
    step_seconds: float
    places: tuple[GpuKey, ...]
    job_class: str
    weight: float
    job: JobKey
    of_one: bool  # of this rank alone
    clocks: dict[int, float] = {}
    clock_only: bool = False
    of_share: bool = False  # the GPU's own time, of a run with a share of it

    @property
    def witness(self) -> str:
        return f"{self.job[0]}/{self.job[1]}"


def clock_pace(place: GpuKey, model: str, megahertz: float, *, score: float, now: float) -> GpuPace:
    """The clock of a GPU under load, as the time that a step would take by it: clocks of one model compare."""
    return GpuPace(
        workload="",
        job_class=JOB_CLASSES[0],
        node_id=place[0],
        gpu_index=place[1],
        step_seconds=1.0 / megahertz,
        windows=1,
        at=now,
        alike=f"clock/{model}",
        score=score,
    )


def clock_reading(pace: GpuPace, job: JobKey, *, weight: float) -> SpeedReading:
    return SpeedReading(
        kind=(pace.workload, pace.alike),
        step_seconds=pace.step_seconds,
        places=((pace.node_id, pace.gpu_index),),
        job_class=pace.job_class,
        weight=weight,
        job=job,
        of_one=True,
        clock_only=True,
    )


def shifted_together(readings: Sequence[SpeedReading], ratios: Sequence[float | None]) -> set[JobKey]:
    """Jobs whose ranks here are all equally far from typical: another phase of the job, or a slow rack."""
    by_job: defaultdict[JobKey, list[float]] = defaultdict(list)
    for reading, ratio in zip(readings, ratios, strict=True):
        if ratio is not None and not reading.clock_only:
            by_job[reading.job].append(ratio)
    found: set[JobKey] = set()
    for job, of_job in by_job.items():
        middle = median(of_job)
        if len(of_job) > 1 and abs(middle - 1.0) > FAR and all(abs(one / middle - 1.0) <= NEAR for one in of_job):
            found.add(job)
    return found
