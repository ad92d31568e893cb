"""Ended windows that may become samples of GPUs, kept until the paces that they compare to have come."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from libs.planning.scores import GpuKey
from libs.variability.estimate import FAR, NEAR
from services.scorer.thinking.references import Alike
from services.scorer.thinking.whereabouts import JobKey


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
