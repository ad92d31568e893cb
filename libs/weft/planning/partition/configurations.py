"""What each job can be given, as configurations: a size, and how slow its slowest GPU may be.

Servers are pooled: a configuration takes from the pool, not from servers. What the pool has for it is bounded by rows:

- for every set of servers that some jobs are confined to, and for all of them, what there is of each resource;
- for every kind of replica, how many of them and of larger ones the servers hold one by one;
- for every level of speed, how many GPUs are as fast.

All arrays have a column for each configuration.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import floor

import numpy as np
from numpy.typing import NDArray

from weft.planning.partition import ElasticJob, Rules, Server
from weft.planning.partition.fair import FairShare, fair_shares, whole_of
from weft.planning.partition.levels import Levels
from weft.planning.partition.outcome import PROGRESS_MOST, usual_speed
from weft.planning.shares import Amounts

Numbers = NDArray[np.float64]

CONFIGURATIONS_MOST = 12  # of a job
SETS_MOST = 8
KINDS_MOST = 16
POWER = 0.5  # progress counts by its root: a job's first replicas are worth more than its last ones
ROUNDING = 1e-9


class Configurations:
    """`job`, `size`, `level`: of each configuration. `changed`: 1 where a running job does not stay as it is.

    `worth`: the root of its progress, which is in parts of the speed at its fair share, and without what a restart
    loses. `distance`: from the fair share; `waiting`: by job, that distance if it gets nothing. `columns`: by job, its
    configurations. `rows`, `bounds`: the pool.
    """

    def __init__(self, jobs: Sequence[ElasticJob], servers: Sequence[Server], rules: Rules) -> None:
        self.jobs, self.servers = jobs, servers
        self.levels = Levels(servers)
        self.fair = fair_shares(jobs, whole_of(servers))
        self._amounts = np.array([server.amounts for server in servers], float).reshape(len(servers), 3)
        self._place = {server.id: j for j, server in enumerate(servers)}
        self._kinds = {each: self._fits(each) for each in dict.fromkeys(job.each for job in jobs)}
        self._has_gpus = {server.id: bool(server.amounts[0]) for server in servers}
        self.held = np.array([sum(n for s, n in job.on.items() if s in self._place) for job in jobs], float)
        self.waiting = np.array([self.fair[job.job_id].share for job in jobs])
        self._columns(rules)
        self.rows, self.bounds = self._pool()

    def _fits(self, each: Amounts) -> Numbers:
        """How many replicas each server holds if it holds nothing else."""
        needed = np.array(each, float)
        if not needed.any():
            return np.full(len(self._amounts), 1e6)
        fits: Numbers = np.floor(self._amounts[:, needed > 0] / needed[needed > 0] + ROUNDING).min(axis=1)
        return fits

    def _columns(self, rules: Rules) -> None:
        here = [self.levels.of_job(job) for job in self.jobs]
        options = [self._options(job, self.fair[job.job_id], at) for job, at in zip(self.jobs, here, strict=True)]
        starts = [0, *accumulate(len(of_job) for of_job in options)]
        self.columns = [np.arange(start, end) for start, end in pairwise(starts)]
        self.job = np.repeat(np.arange(len(self.jobs)), [len(of_job) for of_job in options])
        self.size = np.array([n for of_job in options for n, _ in of_job], int)
        self.level = np.array([level for of_job in options for _, level in of_job], int)
        self._each = np.array([job.each for job in self.jobs], float).reshape(len(self.jobs), 3)[self.job]
        self._beside = np.array([job.beside for job in self.jobs], float).reshape(len(self.jobs), 3)[self.job]
        now = np.array([job.now for job in self.jobs])[self.job]
        stays = np.zeros(len(self.job), bool)
        stays[[of_job[0] for of_job, job in zip(self.columns, self.jobs, strict=True) if job.now]] = True
        stays &= now == self.held[self.job]  # not on servers that are gone
        self.changed = ((now > 0) & ~stays).astype(float)
        self.distance = np.abs(self._shares() - self.waiting[self.job])
        weight = np.array([job.weight for job in self.jobs])[self.job]
        scores = np.array(self.levels.scores)
        lost = np.array([min(1.0, job.restart_s / rules.horizon_s) for job in self.jobs])[self.job]
        speeds = self._progress() / scores[self.level] * (1.0 - self.changed * lost)
        self.worth = weight * speeds**POWER

    def _progress(self) -> Numbers:
        """`outcome.progress` of every configuration."""
        least = np.array([job.least for job in self.jobs])[self.job]
        lengths = [len(job.speeds) for job in self.jobs]
        first = np.array([0, *accumulate(lengths)][:-1])[self.job]
        last = np.array(lengths)[self.job] - 1
        speeds = np.array([speed for job in self.jobs for speed in job.speeds])
        usual = np.array([usual_speed(job, self.fair[job.job_id]) for job in self.jobs])[self.job]
        found = speeds[first + np.clip(self.size - least, 0, last)] * np.minimum(1.0, self.size / least)
        relative: Numbers = np.minimum(PROGRESS_MOST, found / usual)
        return relative

    def _shares(self) -> Numbers:
        """`fair.dominant_share` of every configuration."""
        whole = np.array(whole_of(self.servers))
        there = whole > 0
        part = np.minimum(1.0, self.size / np.array([job.least for job in self.jobs])[self.job])
        held = self.size[:, None] * self._each + part[:, None] * self._beside
        shares: Numbers = (held[:, there] / whole[there]).max(axis=1, initial=0.0)
        return shares

    def _options(self, job: ElasticJob, fair: FairShare, here: int) -> list[tuple[int, int]]:
        """Sizes with levels. The current one comes first if the job runs, and again if the job may move and keep it."""
        current = [(job.now, here)] if job.now else []
        if job.fixed:
            return current
        most = min(job.most, int(self._kinds[job.each].sum()))
        levels = self.levels.open_to(job, here)
        sizes = _grid(job, most, fair, CONFIGURATIONS_MOST // len(levels))
        others = [
            (n, level) for level in levels for n in self._on_level(job, sizes, level) if (n, level) not in current
        ]
        return [*current, *(current if self._may_move(job) else ()), *others]

    def _on_level(self, job: ElasticJob, sizes: Sequence[int], level: int) -> list[int]:
        """The sizes for which the level has enough GPUs; instead of the first that is too large, all of its GPUs."""
        if not job.each[0]:
            return list(sizes)
        largest = int(self.levels.gpus[level] / job.each[0] + ROUNDING)
        fits = [n for n in sizes if n <= largest]
        if len(fits) < len(sizes) and largest >= job.least:
            best = faster_sizes(job, largest)[-1]
            fits += [best] if best not in fits else []
        return fits

    def _may_move(self, job: ElasticJob) -> bool:
        """Whether others need the GPUs of its servers, and it can leave them as it restarts."""
        return bool(job.restart_s) and not job.each[0] and any(self._has_gpus.get(server) for server in job.on)

    def _pool(self) -> tuple[Numbers, Numbers]:
        rows, bounds = [], []
        each, beside = self._each, self._beside
        for there in self._sets():
            within = self._within(there)
            for k in range(3):
                bound = self._amounts[there, k].sum()
                used = within * each[:, k] + (beside[:, k] if there.all() else 0.0)
                if used.any():
                    rows.append(used / (bound or 1.0))
                    bounds.append(1.0 if bound else 0.0)
        for kind, fits in list(self._kinds.items())[:KINDS_MOST]:
            as_large = (each >= np.array(kind)).all(axis=1)
            rows.append(np.where(as_large, self.size, 0.0) / max(1.0, fits.sum()))
            bounds.append(1.0)
        if len(self.levels.scores) > 1:
            for level, gpus in enumerate(self.levels.gpus[:-1]):
                rows.append(np.where(self.level <= level, self.size * each[:, 0], 0.0))
                bounds.append(gpus)
        return np.array(rows).reshape(len(rows), len(self.job)), np.array(bounds)

    def _sets(self) -> list[NDArray[np.bool_]]:
        """All servers, and each set of servers that a kind of replica is confined to."""
        found = {np.ones(len(self.servers), bool).tobytes(): np.ones(len(self.servers), bool)}
        for fits in self._kinds.values():
            there = fits > 0
            if there.any() and len(found) < SETS_MOST:
                found.setdefault(there.tobytes(), there)
        return list(found.values())

    def _within(self, there: NDArray[np.bool_]) -> Numbers:
        """How many replicas of each configuration are in that set of servers, at the least.

        All, if the job is confined to it. Otherwise those that are there now, unless they are those that leave: a job
        that restarts leaves the servers with GPUs if it needs none.
        """
        confined = {kind: bool((there | (fits == 0)).all()) for kind, fits in self._kinds.items()}
        inside = np.array(
            [sum(n for s, n in job.on.items() if s in self._place and there[self._place[s]]) for job in self.jobs],
            float,
        )
        leave = np.maximum(0.0, self.held[self.job] - self.size)
        stay = np.maximum(0.0, inside[self.job] - leave)
        if (self._amounts[there, 0] > 0).all():
            restarts = np.array([job.restart_s > 0 for job in self.jobs])[self.job]
            stay[restarts & (self.changed > 0) & (self._each[:, 0] == 0)] = 0.0
        bound = np.array([confined[job.each] for job in self.jobs], bool)[self.job]
        return np.where(bound, self.size, stay)


def _grid(job: ElasticJob, most: int, fair: FairShare, count: int) -> list[int]:
    """Sizes from `least` to `most` in equal ratios, with the current one and those beside the fair one; none that is no
    faster than a smaller one, as where another node costs more than its replicas are worth."""
    if most < job.least:
        return []
    useful = faster_sizes(job, most)
    if len(useful) <= count:
        return useful
    wanted = [job.least, most, *(n for n in (job.now, floor(fair.replicas), floor(fair.replicas) + 1) if n)]
    sizes = {min(max(n, job.least), most) for n in wanted}
    steps = max(2, count - len(sizes) + 2)
    ratio = (most / job.least) ** (1 / (steps - 1))
    sizes |= {min(most, max(job.least, round(job.least * ratio**step))) for step in range(steps)}
    return sorted({useful[bisect_right(useful, n) - 1] for n in sizes})


def faster_sizes(job: ElasticJob, most: int) -> list[int]:
    """The sizes up to `most` at which the job is faster than at all smaller ones."""
    found, fastest = [], 0.0
    for size, speed in enumerate(job.speeds[: most - job.least + 1], job.least):
        if speed > fastest:
            found.append(size)
            fastest = speed
    return found
