"""The speed of whole jobs at their present size, collected until it is time to store it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from msgspec import Struct

from weft.messages.signals import Curve, CurvePoint
from weft.variability.curves import joined, measured, rounded
from weftd.scorer.thinking.windows import FRESH_SECONDS, STEPS_LEAST, ScoredRun

SAVE_SECONDS = 30.0
SAVE_SECONDS_MAX = 600.0  # a job at one size has little news
WINDOWS_LEAST = 2
WINDOWS_KEPT = 64

Size = tuple[int, float]
"""Replicas of the role that reports its steps, and the CPU cores of all of them."""

Setup = tuple[str, int, float]
"""The model of the GPUs, empty if it is unknown; and the size."""


class Growth(Struct, frozen=True, kw_only=True):
    """The new points of one job, to be merged into its own curve and into its workload's."""

    job_id: str
    workload: str
    pool: str
    points: tuple[CurvePoint, ...]

    @property
    def subjects(self) -> tuple[str, str]:
        return f"job:{self.job_id}", f"workload:{self.workload}"


class _Job(Struct):
    speeds: dict[Setup, list[float]]
    saved_at: float
    pause: float = SAVE_SECONDS
    setups: frozenset[Setup] = frozenset()


class Throughput:
    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}

    def window(self, job_id: str, runs: Sequence[ScoredRun], now: float, *, model: str = "") -> None:
        """Take in one window of a job with all its `runs`, on GPUs of `model`; dropped if a rank that should report
        steps does not."""
        found = speed_of(runs, now)
        if found is None:
            return
        (replicas, cpus), speed = found
        setup = (model, replicas, cpus)
        job = self._jobs.setdefault(job_id, _Job({}, now))
        speeds = job.speeds.setdefault(setup, [])
        if len(speeds) < WINDOWS_KEPT:
            speeds.append(speed)
        if setup not in job.setups:
            job.pause = SAVE_SECONDS

    def forget(self, *, but: Iterable[str]) -> None:
        kept = set(but)
        self._jobs = {job_id: job for job_id, job in self._jobs.items() if job_id in kept}

    def due(self, of: Mapping[str, tuple[str, str]], now: float) -> list[Growth]:
        """The points to store now, with pool and workload. They are returned once: lost if they cannot be stored."""
        found: list[Growth] = []
        for job_id, job in self._jobs.items():
            if now - job.saved_at < job.pause or job_id not in of:
                continue
            points = [
                point
                for (model, replicas, cpus), speeds in sorted(job.speeds.items())
                if len(speeds) >= WINDOWS_LEAST and (point := measured(replicas, cpus, speeds, at=now, model=model))
            ]
            if not points:
                continue
            pool, workload = of[job_id]
            found.append(Growth(job_id=job_id, workload=workload, pool=pool, points=tuple(points)))
            job.setups |= {setup for setup, speeds in job.speeds.items() if len(speeds) >= WINDOWS_LEAST}
            job.speeds = {setup: speeds for setup, speeds in job.speeds.items() if len(speeds) < WINDOWS_LEAST}
            job.saved_at, job.pause = now, min(job.pause * 2.0, SAVE_SECONDS_MAX)
        return found


def speed_of(runs: Sequence[ScoredRun], now: float) -> tuple[Size, float] | None:
    """The role whose ranks report steps, its size and the speed of the whole job: samples per second, else steps.

    Samples add up over ranks; steps are made by all of them together.
    """
    there = Counter(run.role for run in runs)
    telling = {run.role for run in runs if run.pace is not None}
    if not telling:
        return None
    role = max(telling, key=lambda role: (there[role], role))
    ranks = [run for run in runs if run.role == role]
    paces = [run.pace for run in ranks if run.pace is not None and _fresh(run, now)]
    if len(paces) < len(ranks):
        return None
    samples = [pace.samples_rate for pace in paces if pace.samples_rate]
    if samples and len(samples) < len(paces):
        return None
    speed = sum(samples) if samples else median(pace.steps_rate for pace in paces)
    if not speed > 0:
        return None
    return (len(ranks), rounded(sum(run.cpus for run in ranks))), speed


def _fresh(run: ScoredRun, now: float) -> bool:
    return run.pace is not None and now - run.heard_at <= FRESH_SECONDS and run.pace.steps >= STEPS_LEAST


def grown(known: Iterable[Curve], growths: Iterable[Growth], *, at: float) -> list[Curve]:
    """The curves of these jobs and of their workloads, with the new points."""
    curves = {(curve.pool, curve.subject): curve for curve in known}
    for growth in growths:
        for subject in growth.subjects:
            name = (growth.pool, subject)
            before = curves[name].points if name in curves else ()
            points = joined(before, growth.points)
            curves[name] = Curve(subject=subject, pool=growth.pool, points=points, at=at)
    return list(curves.values())
