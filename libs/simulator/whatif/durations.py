"""How long a job of a real cluster is taken to last still, and by what: nobody knows it before the job ends. Pure."""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from math import inf
from typing import Literal

from msgspec import Struct

from libs.domain.classes import workload_of
from libs.domain.job import Job, JobState
from libs.planning.jobs import ends_at

NEW_S = 3600.0  # of a job of which nothing is known and that has not run yet
LEAST_S = 1.0

Basis = Literal["learnt", "limits", "unknown", "service"]


class Assumed(Struct, frozen=True):
    """For how many more seconds the job will hold its GPUs once it has them, and by what that is told.

    `learnt`: the mean of the tenant's ended jobs of its workload that ran longer than it has so far. `limits`: its time
    limit. `unknown`: the same mean over all ended jobs, or that it is half done. `service`: it never ends.
    """

    seconds: float
    basis: Basis


class Assumptions:
    """What ended jobs tell of those that are not over."""

    def __init__(self, ended: Iterable[Job]) -> None:
        by_workload: dict[tuple[str, str], list[float]] = {}
        every: list[float] = []
        for job in ended:
            if job.state is JobState.SUCCEEDED and not job.spec.is_service and (seconds := held_s(job, 0.0)) > 0:
                by_workload.setdefault((job.tenant, workload_of(job.spec)), []).append(seconds)
                every.append(seconds)
        self._by_workload = {name: _Lasted(seconds) for name, seconds in by_workload.items()}
        self._all = _Lasted(every)

    def left(self, job: Job, now: float) -> Assumed:
        """Of a job that is not over; of one that waits, how long it will run."""
        if job.spec.is_service:
            return Assumed(inf, "service")
        if job.state is JobState.STOPPING:
            return Assumed(max(LEAST_S, (ends_at(job) or now) - now), "limits")
        so_far = held_s(job, now)
        most = inf
        if (limit := job.spec.time_limit_seconds) is not None:
            began = job.started_at or job.since
            most = max(LEAST_S, limit - (max(0.0, now - began) if job.state.holding else 0.0))
        lasted = self._by_workload.get((job.tenant, workload_of(job.spec)))
        learnt = None if lasted is None else lasted.left_after(so_far)
        if learnt is not None:
            return Assumed(max(LEAST_S, min(learnt, most)), "learnt")
        if most < inf:
            return Assumed(most, "limits")
        usual = self._all.left_after(so_far)
        return Assumed(max(LEAST_S, so_far or NEW_S) if usual is None else max(LEAST_S, usual), "unknown")


class _Lasted:
    """How long jobs lasted."""

    def __init__(self, seconds: Iterable[float]) -> None:
        self._seconds = sorted(seconds)
        self._sums = [0.0, *accumulate(self._seconds)]

    def left_after(self, so_far: float) -> float | None:
        """The mean time that was left to those that ran longer than that; None if none did."""
        shorter = bisect_right(self._seconds, so_far)
        longer = len(self._seconds) - shorter
        return (self._sums[-1] - self._sums[shorter]) / longer - so_far if longer else None


def held_s(job: Job, now: float) -> float:
    """How long the job has held GPUs in all of its epochs, as far as its order has not forgotten it."""
    if job.state.holding:
        return job.attained_seconds + max(0.0, now - job.held_since)
    ran = job.ended_at - job.started_at if job.ended_at is not None and job.started_at is not None else 0.0
    return max(job.attained_seconds, ran)
