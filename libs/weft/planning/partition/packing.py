"""Assigns replica counts to servers: remaining replicas keep their servers, the others go where they fit."""

from collections.abc import Mapping, Sequence
from copy import copy
from math import ceil

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from weft.planning.partition import ElasticJob, Server
from weft.planning.partition.configurations import faster_sizes
from weft.planning.partition.levels import Levels, bins_of

Numbers = NDArray[np.float64]

ROUNDING = 1e-9


class TargetSize(Struct, frozen=True, kw_only=True):
    """A job with the size, the level and the model that it is to have. `changed`: some server gets another number
    of its replicas, even if their sum stays. `anew`: all of its replicas restart, on servers that suit the new size."""

    job: ElasticJob
    size: int
    level: int
    changed: bool
    model: str
    anew: bool = False


class Packer:
    """Free capacity of each server, and the places of replicas."""

    def __init__(self, jobs: Sequence[ElasticJob], servers: Sequence[Server], levels: Levels) -> None:
        self.ids = [server.id for server in servers]
        self._place = {server_id: j for j, server_id in enumerate(self.ids)}
        self._amounts = np.array([server.amounts for server in servers], float).reshape(len(servers), 3)
        self.free = self._amounts.copy()
        self._has_gpus = self._amounts[:, 0] > 0
        self._of_model = {model: np.array([server.model == model for server in servers]) for model in levels.models}
        self._largest = {model: self._amounts[there, 0].max(initial=0.0) for model, there in self._of_model.items()}
        # By server and level: GPUs of that level or faster that are free for jobs of that level
        self._fast = np.zeros((len(servers), len(levels.scores)))
        for j, server in enumerate(servers):
            for score, number in bins_of(server):
                self._fast[j, levels.level_of(score) :] += number
        self._level = {job.job_id: levels.of_job(job) for job in jobs}
        self._model = {job.job_id: job.model for job in jobs}
        self.on: dict[str, dict[int, int]] = {}
        for job in jobs:
            here = {self._place[s]: n for s, n in job.on.items() if s in self._place and n}
            self.on[job.job_id] = here
            for j, number in here.items():
                self._take(job, j, number)

    def copy(self) -> "Packer":
        other = copy(self)
        other.free, other._fast = self.free.copy(), self._fast.copy()
        other._level, other._model = dict(self._level), dict(self._model)
        other.on = {job_id: dict(here) for job_id, here in self.on.items()}
        return other

    def size(self, job: ElasticJob) -> int:
        return sum(self.on[job.job_id].values())

    def model(self, job: ElasticJob) -> str:
        """The model of the GPUs that it has, or had last."""
        return self._model[job.job_id]

    def changed(self, job: ElasticJob) -> bool:
        """True if a running job has another number of replicas on any server."""
        here = {self.ids[j]: number for j, number in self.on[job.job_id].items()}
        return job.now > 0 and here != {server: number for server, number in job.on.items() if number}

    def where(self) -> dict[str, dict[str, int]]:
        return {
            job_id: {self.ids[j]: number for j, number in sorted(here.items()) if number}
            for job_id, here in self.on.items()
            if here
        }

    def shrink(self, job: ElasticJob, size: int) -> None:
        """Replicas leave the servers where most is free, so that free room lies together.

        Those that need no GPUs leave the servers with GPUs first.
        """
        here = self.on[job.job_id]
        while (over := self.size(job) - size) > 0:
            j = max(here, key=lambda j: (self._wasted(job, j), self._part_free(j), -here[j], -j))
            leave = min(over, here[j])
            self._take(job, j, -leave)
            here[j] -= leave
            if not here[j]:
                del here[j]

    def give(self, it: TargetSize) -> int:
        """`grow`, after the job has left its GPUs if it is to have faster ones and finds as many as it has.

        Where GPUs are of several models, a job that has none yet gets them on as few servers as can hold that number,
        or fewer of them.
        """
        job, here, level = it.job, dict(self.on[it.job.job_id]), self._level[it.job.job_id]
        if not here and len(self._of_model) > 1 and job.each[0]:
            return self._give_together(it)
        if here and it.level < level:
            self.shrink(job, 0)
            if (got := self.grow(job, it.size, it.level)) >= min(it.size, sum(here.values())):
                return got
            self.shrink(job, 0)
            self._set_level(job, level)
            for j, number in here.items():
                self._take(job, j, number)
            self.on[job.job_id] = here
        return self.grow(job, it.size, it.level, it.model)

    def _give_together(self, it: TargetSize) -> int:
        job = it.job
        sizes = [size for size in faster_sizes(job, it.model, it.size) if size <= it.size]
        for size in reversed(sizes):
            got = self.grow(job, size, it.level, it.model)
            fewest = ceil(size * job.each[0] / max(self._largest[it.model], 1.0) - ROUNDING)
            if got >= size and len(self.on[job.job_id]) <= fewest:
                return got
            self.shrink(job, 0)
        return self.grow(job, it.size, it.level, it.model)  # apart, if not at all otherwise

    def grow(self, job: ElasticJob, size: int, level: int | None = None, model: str | None = None) -> int:
        """Adds replicas on as few servers as there can be; returns how many there are then.

        `level`: the slowest allowed GPUs, if slower than its present ones; `model`: the model for a job without
        replicas.
        """
        here = self.on[job.job_id]
        if level is not None:
            self._set_level(job, max(level, self._level[job.job_id]) if here else level)
        if model is not None and not here:
            self._model[job.job_id] = model
        missing = size - self.size(job)
        if missing <= 0:
            return size
        fits = self._fits(job)
        while missing > 0 and fits.any():
            j = self._best(job, fits, missing)
            number = int(min(missing, fits[j]))
            self._take(job, j, number)
            here[j] = here.get(j, 0) + number
            missing -= number
            fits[j] = 0
        return self.size(job)

    def room(self, job: ElasticJob) -> int:
        """The number of replicas for which there is room, besides those that it has."""
        return int(self._fits(job).sum())

    def leave_gpus(self, job: ElasticJob) -> None:
        """Replicas that need no GPUs move away from servers with GPUs, as far as others have room."""
        here = self.on[job.job_id]
        astray = [j for j in sorted(here) if self._wasted(job, j)]
        if not astray:
            return
        fits = self._fits(job)
        fits[self._has_gpus] = 0
        for j in np.argsort(fits, kind="stable")[::-1]:
            while astray and fits[j] > 0:
                number = int(min(fits[j], here[astray[0]]))
                self._take(job, astray[0], -number)
                self._take(job, int(j), number)
                here[int(j)] = here.get(int(j), 0) + number
                here[astray[0]] -= number
                fits[j] -= number
                if not here[astray[0]]:
                    del here[astray.pop(0)]

    def _wasted(self, job: ElasticJob, j: int) -> bool:
        return bool(self._has_gpus[j]) and not job.each[0]

    def _best(self, job: ElasticJob, fits: Numbers, missing: int) -> int:
        """The tightest server that has room for all missing replicas; if there is none, the one with room for most.

        A job without GPUs prefers servers without GPUs, and every job those where it is.
        """
        enough = np.flatnonzero(fits >= missing)
        candidates = enough if len(enough) else np.flatnonzero(fits == fits.max())
        here = self.on[job.job_id]
        away = np.array([j not in here for j in candidates])
        wasted = self._has_gpus[candidates] & (job.each[0] == 0)
        order = np.lexsort((candidates, fits[candidates], away, wasted))
        return int(candidates[order[0]])

    def _fits(self, job: ElasticJob) -> Numbers:
        each = np.array(job.each, float)
        free_capacity = np.full(len(self.ids), 1e6)
        for k in range(3):
            if each[k] > 0:
                free_capacity = np.minimum(free_capacity, np.floor(self.free[:, k] / each[k] + ROUNDING))
        if each[0] > 0 and self._fast.shape[1] > 1:
            fast = self._fast[:, self._level[job.job_id] :].min(axis=1)
            free_capacity = np.minimum(free_capacity, np.floor(fast / each[0] + ROUNDING))
        if each[0] > 0:
            free_capacity = free_capacity * self._of_model.get(self._model[job.job_id], 0)
        possible: Numbers = np.maximum(free_capacity, 0.0)
        return possible

    def _take(self, job: ElasticJob, j: int, number: int) -> None:
        self.free[j] -= np.array(job.each) * number
        self._fast[j, self._level[job.job_id] :] -= job.each[0] * number

    def _set_level(self, job: ElasticJob, level: int) -> None:
        for j, number in self.on[job.job_id].items():
            self._fast[j, self._level[job.job_id] :] += job.each[0] * number
            self._fast[j, level:] -= job.each[0] * number
        self._level[job.job_id] = level

    def _part_free(self, j: int) -> float:
        there = self._amounts[j] > 0
        return float((self.free[j][there] / self._amounts[j][there]).min()) if there.any() else 0.0


def packed(
    packer: Packer, targets: Sequence[TargetSize], first: Sequence[str] = ()
) -> tuple[Packer, Mapping[str, int]]:
    """A copy of the packer in which every job has its size, or as many replicas as fit: at least as many as it had, and
    `least` or none; and the sizes of the jobs that got less than what was wanted.

    A job that is placed again gives up all that it has before any other gets more, so that two jobs can exchange their
    GPUs. If such a job does not get its full size, it keeps its present ranks, and all jobs are packed again. `first`:
    jobs that are placed before the others.
    """
    stay: dict[str, int] = {}
    while True:
        trial = packer.copy()
        short = pack(trial, [it for it in targets if it.job.job_id not in stay], first)
        failed = {it.job.job_id: short[it.job.job_id] for it in targets if it.anew and it.job.job_id in short}
        if not failed:
            return trial, short | stay
        stay |= failed


def pack(packer: Packer, targets: Sequence[TargetSize], first: Sequence[str] = ()) -> dict[str, int]:
    """Gives every job its size, or as many replicas as fit. One that is placed again may be left with none."""
    for it in targets:
        packer.shrink(it.job, 0 if it.anew else it.size)
    for it in targets:
        if it.changed and it.job.restart_s:
            packer.leave_gpus(it.job)
    largest = packer.free.max(axis=0, initial=1.0)
    urgent = {job_id: at for at, job_id in enumerate(first)}

    def place(it: TargetSize) -> tuple[int, float, int]:
        need = max((each / most for each, most in zip(it.job.each, largest, strict=True) if most > 0), default=0.0)
        return urgent.get(it.job.job_id, len(urgent)), -need, -it.size if it.anew else 0

    short = {}
    for it in sorted((it for it in targets if it.changed or not it.job.now), key=place):
        got = packer.give(it) if it.size else 0
        if got < it.size:
            if got < it.job.least and (it.anew or not it.job.now):
                packer.shrink(it.job, 0)
                got = 0
            short[it.job.job_id] = got
    return short
