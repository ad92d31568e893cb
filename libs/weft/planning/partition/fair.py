"""The fair share of each job: weighted dominant resource fairness by progressive filling.

A job's dominant share is its part of the resource of which it has the largest part. All jobs are filled at one level,
the dominant share by weight, until a resource is used up; those that need it stop there, the others go on. No job gets
more than its `most`, nor less than its `least` unless the least sizes of all jobs do not fit together.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from weft.planning.partition import ElasticJob, Server
from weft.planning.shares import Amounts

Numbers = NDArray[np.float64]

HALVINGS = 60
ALMOST = 1e-9


class FairShare(Struct, frozen=True, kw_only=True):
    """`replicas`: may be a fraction. `share`: the dominant share, 0 to 1."""

    replicas: float
    share: float


def whole_of(servers: Sequence[Server]) -> Amounts:
    """Total capacity of all servers."""
    gpus, cpus, memory = (sum(server.amounts[k] for server in servers) for k in range(3))
    return gpus, cpus, memory


def resources(jobs: Sequence[ElasticJob], whole: Amounts) -> int:
    """How many kinds of resources there are that some job needs: the most that all dominant shares can add up to."""
    return sum(1 for k, there in enumerate(whole) if there > 0 and any(job.each[k] + job.beside[k] for job in jobs))


def dominant_share(job: ElasticJob, size: float, whole: Amounts) -> float:
    """Infinite if the job needs a resource that the pool does not have. Below `least`, its other roles in part."""
    beside = min(1.0, size / job.least)
    parts = [
        (size * each + beside * more) / there if there > 0 else (float("inf") if size * each + beside * more > 0 else 0)
        for each, more, there in zip(job.each, job.beside, whole, strict=True)
    ]
    return max(0.0, *parts)


def unfairness(
    sizes: Mapping[str, int],
    jobs: Sequence[ElasticJob],
    whole: Amounts,
    fair: Mapping[str, FairShare] | None = None,
) -> float:
    """The sum over the jobs of the distance between their dominant share and their fair one."""
    fair = fair_shares(jobs, whole) if fair is None else fair
    return sum(abs(dominant_share(job, sizes[job.job_id], whole) - fair[job.job_id].share) for job in jobs)


def fair_shares(jobs: Sequence[ElasticJob], whole: Amounts) -> dict[str, FairShare]:
    """The fair share of each job. Jobs that need more than the pool has get nothing."""
    possible = [job for job in jobs if dominant_share(job, job.least, whole) <= 1.0]
    sizes = dict.fromkeys((job.job_id for job in jobs), 0.0)
    if possible:
        found = _Filling(possible, whole).sizes()
        sizes.update((job.job_id, float(size)) for job, size in zip(possible, found, strict=True))
    return {
        job.job_id: FairShare(
            replicas=sizes[job.job_id],
            share=dominant_share(job, sizes[job.job_id], whole) if sizes[job.job_id] else 0.0,
        )
        for job in jobs
    }


class _Filling:
    def __init__(self, jobs: Sequence[ElasticJob], whole: Amounts) -> None:
        there = [k for k in range(3) if whole[k] > 0]
        self.whole = np.array(whole)[there]
        self.each = np.array([job.each for job in jobs])[:, there] / self.whole
        self.beside = np.array([job.beside for job in jobs])[:, there] / self.whole
        self.least = np.array([job.least for job in jobs], float)
        self.most = np.array([job.most for job in jobs], float)
        self.weight = np.array([job.weight for job in jobs])
        self.share_of_least = (self.least[:, None] * self.each + self.beside).max(axis=1)
        if (self.used(self.least) > 1 + ALMOST).any():
            self.floor = np.zeros_like(self.least)
        else:
            self.floor = self.least

    def sizes(self) -> Numbers:
        growing = np.ones(len(self.least), bool)
        sizes = self.floor.copy()
        while growing.any():
            filled = self._filled(growing, sizes)
            done = filled >= self.most - ALMOST
            short = self.used(filled) >= 1 - 1e-7
            stopped = growing & (done | ((self.each > 0) & short).any(axis=1))
            sizes = filled
            if not stopped.any():
                break
            growing &= ~stopped
        return sizes

    def _filled(self, growing: NDArray[np.bool_], sizes: Numbers) -> Numbers:
        """The sizes with the growing jobs at the highest level for which there is enough of everything."""
        low, high = 0.0, float((1.0 / self.weight[growing]).max()) * 2
        if (self.used(self._at(high, growing, sizes)) <= 1 + ALMOST).all():
            return self._at(high, growing, sizes)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if (self.used(self._at(middle, growing, sizes)) <= 1 + ALMOST).all():
                low = middle
            else:
                high = middle
        return self._at(low, growing, sizes)

    def _at(self, level: float, growing: NDArray[np.bool_], sizes: Numbers) -> Numbers:
        shares = level * self.weight
        with np.errstate(divide="ignore", invalid="ignore"):
            free_capacity = np.where(self.each > 0, (shares[:, None] - self.beside) / self.each, np.inf).min(axis=1)
            part = np.where(self.share_of_least > 0, shares / self.share_of_least, np.inf) * self.least
        wanted = np.where(shares >= self.share_of_least, np.maximum(free_capacity, self.least), part)
        filled: Numbers = np.where(growing, np.clip(wanted, np.maximum(self.floor, sizes), self.most), sizes)
        return filled

    def used(self, sizes: Numbers) -> Numbers:
        part = np.minimum(1.0, sizes / self.least)
        total: Numbers = sizes @ self.each + part @ self.beside
        return total
