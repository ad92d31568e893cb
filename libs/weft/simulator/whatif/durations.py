"""The assumed remaining duration of a job of a real cluster, as one number. Nobody knows the true one before its end.
Pure."""

from collections.abc import Mapping
from math import inf
from statistics import fmean

from msgspec import Struct

from weft.domain.job import Job
from weft.planning.eta.ends import Steps, lasting_of, left_of
from weft.planning.eta.learnt import Lasted

NEW_S = 3600.0  # of a job of which nothing is known and that has not run yet
LEAST_S = 1.0
SERVICE, UNKNOWN = "service", "unknown"


class Assumed(Struct, frozen=True):
    """For how many more seconds the job will hold its GPUs once it has them, and by what that is told: `limits`,
    `learnt`, `progress` as in an estimate; `unknown`: that it is half done; `service`: it never ends."""

    seconds: float
    basis: str


class Assumptions:
    """The means of the data behind estimates of ends. `lasted`: durations of ended jobs; `steps`: by job, its
    reports."""

    def __init__(self, lasted: Lasted, steps: Mapping[str, Steps] | None = None) -> None:
        self._lasting = lasted.beside(())
        self._steps = steps or {}

    def left(self, job: Job, now: float) -> Assumed:
        """Remaining time of an open job; for a waiting one its whole duration."""
        spread = left_of(job, self._lasting, now=now, heard=self._steps) if job.state.holding else None
        spread = spread or lasting_of(job, self._lasting)
        if spread.known:
            return Assumed(max(LEAST_S, fmean(spread.seconds)), spread.basis.value)
        if job.spec.is_service:
            return Assumed(inf, SERVICE)
        return Assumed(max(LEAST_S, held_s(job, now) or NEW_S), UNKNOWN)


def held_s(job: Job, now: float) -> float:
    """How long the job has held GPUs in all epochs that its order still counts."""
    if job.state.holding:
        return job.attained_seconds + max(0.0, now - job.held_since)
    ran = job.ended_at - job.started_at if job.ended_at is not None and job.started_at is not None else 0.0
    return max(job.attained_seconds, ran)
