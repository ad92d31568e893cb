"""The configurations that each job can be given: a model of GPUs, a size, and how slow its slowest GPU may be.

Servers are pooled: a configuration takes from the pool, not from servers. What the pool has for it is bounded by rows:

- for all servers, for those of each model, and for every other set of servers that some jobs are confined to, what
  there is of each resource;
- for every kind of replica, how many of them and of larger ones the servers hold one by one;
- for every level of speed of a model, how many GPUs are as fast.

All arrays have a column for each configuration.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import floor

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from weft.planning.partition import ElasticJob, Rules, Server
from weft.planning.partition.fair import FairShare, fair_shares, whole_of
from weft.planning.partition.levels import Levels
from weft.planning.partition.outcome import PROGRESS_MOST, usual_speed
from weft.planning.shares import Amounts

Numbers = NDArray[np.float64]
Mask = NDArray[np.bool_]

CONFIGURATIONS_MOST = 12  # for a job and a model
CONFIGURATIONS_LEAST = 4  # for a job and a model, where there are very many jobs
COLUMNS_MOST = 24_000  # for all jobs, unless that leaves a job fewer than the least
SETS_MOST = 8
KINDS_MOST = 16
COOLING_RESTARTS = 3.0  # that one more restart counts as, soon after the last change
POWER = 0.5  # progress counts by its root: a job's first replicas are worth more than its last ones
ROUNDING = 1e-9


class _Option(Struct, frozen=True):
    """A configuration of a job. `model`: by its place in `Levels.models`, 0 for a job without GPUs."""

    model: int
    size: int
    level: int


class Configurations:
    """`job`, `model`, `size`, `level`: of each configuration; `model` by its place in `levels.models`. `changed`: 1
    where a running job does not stay as it is.

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
        self._of_model = [np.array([server.model == model for server in servers]) for model in self.levels.models]
        self._kinds: dict[tuple[Amounts, int], Numbers] = {}
        for job in jobs:
            for model in self.levels.models_for(job):
                kind = (job.each, self._number(job, model))
                if kind not in self._kinds:
                    self._kinds[kind] = self._fits(*kind)
        self._has_gpus = {server.id: bool(server.amounts[0]) for server in servers}
        self.held = np.array([sum(n for s, n in job.on.items() if s in self._place) for job in jobs], float)
        self.waiting = np.array([self.fair[job.job_id].share for job in jobs])
        self._columns(rules)
        self.rows, self.bounds = self._pool()

    def _number(self, job: ElasticJob, model: str) -> int:
        return self.levels.models.index(model) if job.each[0] and model in self.levels.models else 0

    def _fits(self, each: Amounts, model: int) -> Numbers:
        """The number of replicas that fit on each server if it is empty."""
        needed = np.array(each, float)
        if not needed.any():
            return np.full(len(self._amounts), 1e6)
        fits: Numbers = np.floor(self._amounts[:, needed > 0] / needed[needed > 0] + ROUNDING).min(axis=1)
        return np.where(self._of_model[model], fits, 0.0) if each[0] else fits

    def _columns(self, rules: Rules) -> None:
        here = [self.levels.of_job(job) for job in self.jobs]
        options = [self._options(job, self.fair[job.job_id], at) for job, at in zip(self.jobs, here, strict=True)]
        starts = [0, *accumulate(len(of_job) for of_job in options)]
        self.columns = [np.arange(start, end) for start, end in pairwise(starts)]
        self.job = np.repeat(np.arange(len(self.jobs)), [len(of_job) for of_job in options])
        self.model = np.array([option.model for of_job in options for option in of_job], int)
        self.size = np.array([option.size for of_job in options for option in of_job], int)
        self.level = np.array([option.level for of_job in options for option in of_job], int)
        kinds = {kind: number for number, kind in enumerate(self._kinds)}
        self._kind = np.array(
            [
                kinds.get((job.each, option.model), len(kinds))
                for of_job, job in zip(options, self.jobs, strict=True)
                for option in of_job
            ],
            int,
        )
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
        lost = [self._lost(job, rules) for job in self.jobs]
        speeds = self._progress() / scores[self.level] * (1.0 - self.changed * np.array(lost)[self.job])
        self.worth = weight * speeds**POWER

    def _lost(self, job: ElasticJob, rules: Rules) -> float:
        """The part of its progress within the horizon that a restart costs the job; several restarts while it cools."""
        horizon = min(rules.horizon_s, max(job.left_s, 1.0))
        return min(1.0, job.restart_s * (COOLING_RESTARTS if job.cools else 1.0) / horizon)

    def _progress(self) -> Numbers:
        """`outcome.progress` of every configuration."""
        found = np.empty(len(self.job))
        for of_job, job in zip(self.columns, self.jobs, strict=True):
            usual = usual_speed(job, self.fair[job.job_id])
            models = [*([job.model] if job.now else []), *self.levels.models_for(job)]
            by_number = {self._number(job, model): np.array(job.speeds[model]) for model in models}
            for number in by_number.keys() & set(self.model[of_job].tolist()):
                columns = of_job[self.model[of_job] == number]
                size = self.size[columns]
                speeds = by_number[number][np.clip(size - job.least, 0, job.most - job.least)]
                found[columns] = speeds * np.minimum(1.0, size / job.least) / usual
        relative: Numbers = np.minimum(PROGRESS_MOST, found)
        return relative

    def _shares(self) -> Numbers:
        """`fair.dominant_share` of every configuration."""
        whole = np.array(whole_of(self.servers))
        there = whole > 0
        part = np.minimum(1.0, self.size / np.array([job.least for job in self.jobs])[self.job])
        held = self.size[:, None] * self._each + part[:, None] * self._beside
        shares: Numbers = (held[:, there] / whole[there]).max(axis=1, initial=0.0)
        return shares

    def _options(self, job: ElasticJob, fair: FairShare, here: int) -> list[_Option]:
        """The current one comes first if the job runs, and again if the job may move and keep it."""
        current = [_Option(self._number(job, job.model), job.now, here)] if job.now else []
        if job.keeps_size:
            return current
        models, levels = self.levels.models_for(job), self.levels.open_to(job, here)
        columns = COLUMNS_MOST // (len(self.jobs) * len(self.levels.models))
        count = min(CONFIGURATIONS_MOST, max(CONFIGURATIONS_LEAST, columns)) // len(levels)
        others: list[_Option] = []
        for model in models:
            number = self._number(job, model)
            most = min(job.most, int(self._kinds[job.each, number].sum()))
            sizes = _grid(job, model, most, fair, count)
            others += [_Option(number, n, level) for level in levels for n in self._on_level(job, model, sizes, level)]
        again = current if self._may_move(job) else []
        return [*current, *again, *(option for option in others if option not in current)]

    def _on_level(self, job: ElasticJob, model: str, sizes: Sequence[int], level: int) -> list[int]:
        """The sizes for which the level has enough GPUs. If some are too large, also the best size with all GPUs of the
        level."""
        if not job.each[0]:
            return list(sizes)
        gpus = self.levels.gpus[model]
        if level and gpus[level] == gpus[level - 1]:
            return []  # no GPU of this model is on this level
        largest = int(gpus[level] / job.each[0] + ROUNDING)
        fits = [n for n in sizes if n <= largest]
        if len(fits) < len(sizes) and largest >= job.least:
            best = faster_sizes(job, model, largest)[-1]
            fits += [best] if best not in fits else []
        return fits

    def _may_move(self, job: ElasticJob) -> bool:
        """True if others need the GPUs of its servers, and it can leave them as it restarts."""
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
        for (kind, model), fits in list(self._kinds.items())[: KINDS_MOST * len(self._of_model)]:
            as_large = (each >= np.array(kind)).all(axis=1) & ((self.model == model) | (kind[0] == 0))
            rows.append(np.where(as_large, self.size, 0.0) / max(1.0, fits.sum()))
            bounds.append(1.0)
        for number, each_model in enumerate(self.levels.models):
            gpus = self.levels.gpus[each_model]
            for level in range(len(gpus) - 1):
                if 0 < gpus[level] < gpus[-1]:
                    as_fast = (self.level <= level) & (self.model == number)
                    rows.append(np.where(as_fast, self.size * each[:, 0], 0.0))
                    bounds.append(gpus[level])
        return np.array(rows).reshape(len(rows), len(self.job)), np.array(bounds)

    def _sets(self) -> list[Mask]:
        """All servers, those of each model, and each set of servers that a kind of replica is confined to."""
        everywhere = np.ones(len(self.servers), bool)
        found = {there.tobytes(): there for there in (everywhere, *self._of_model)}
        most = SETS_MOST * len(self._of_model)
        for fits in self._kinds.values():
            there = fits > 0
            if there.any() and len(found) < most:
                found.setdefault(there.tobytes(), there)
        return list(found.values())

    def _within(self, there: Mask) -> Numbers:
        """How many replicas of each configuration are in that set of servers, at the least.

        All, if the job is confined to it. Otherwise those that are there now, unless they are those that leave: a job
        that restarts leaves the servers with GPUs if it needs none, and all servers of a model that it changes.
        """
        inside = np.array(
            [sum(n for s, n in job.on.items() if s in self._place and there[self._place[s]]) for job in self.jobs],
            float,
        )
        leave = np.maximum(0.0, self.held[self.job] - self.size)
        stay = np.maximum(0.0, inside[self.job] - leave)
        restarts = np.array([job.restart_s > 0 for job in self.jobs])[self.job]
        if (self._amounts[there, 0] > 0).all():
            stay[restarts & (self.changed > 0) & (self._each[:, 0] == 0)] = 0.0
        present = np.array([self._number(job, job.model) for job in self.jobs])[self.job]
        stay[restarts & (self.model != present)] = 0.0
        confined = [bool((there | (fits == 0)).all()) for fits in self._kinds.values()]
        return np.where(np.array([*confined, False])[self._kind], self.size, stay)


def _grid(job: ElasticJob, model: str, most: int, fair: FairShare, count: int) -> list[int]:
    """Sizes from `least` to `most` in equal ratios, with the current one and those beside the fair one; none that is no
    faster than a smaller one, as where another node costs more than its replicas are worth."""
    if most < job.least:
        return []
    useful = faster_sizes(job, model, most)
    if len(useful) <= count:
        return useful
    wanted = [job.least, most, *(n for n in (job.now, floor(fair.replicas), floor(fair.replicas) + 1) if n)]
    sizes = {min(max(n, job.least), most) for n in wanted}
    steps = max(2, count - len(sizes) + 2)
    ratio = (most / job.least) ** (1 / (steps - 1))
    sizes |= {min(most, max(job.least, round(job.least * ratio**step))) for step in range(steps)}
    return sorted({useful[bisect_right(useful, n) - 1] for n in sizes})


def faster_sizes(job: ElasticJob, model: str, most: int) -> list[int]:
    """The sizes up to `most` at which the job is faster than at all smaller ones."""
    found, fastest = [], 0.0
    for size, speed in enumerate(job.speeds[model][: most - job.least + 1], job.least):
        if speed > fastest:
            found.append(size)
            fastest = speed
    return found
