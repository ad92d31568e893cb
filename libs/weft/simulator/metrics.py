"""The metrics of one run, as numbers and as curves over time. Pure; the order of the jobs changes no number.

Fairness is finish-time fairness: a job's rho is its JCT over the time that it would have taken with its fair share of
the cluster, `work_s × max(1, contention)`, where contention is the mean, while the job was there, of the GPUs that all
jobs present wanted over those that there are (Themis, NSDI 2020, section 3; the mean over the job's life, the worst
rho and the part of jobs above 1.05 as in Shockwave, NSDI 2023). A policy that makes jobs wait raises the contention
that it is measured by: compare it beside the JCT, never alone.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct

from weft.simulator.outcome import JobOutcome, Outcome

UNFAIR = 1.05  # a rho from which on a job counts as treated unfairly
Steps = list[tuple[float, float]]
"""A curve of steps: from each time on, this value, until the next."""


class Metrics(Struct, frozen=True, kw_only=True):
    """JCT: from arrival to completion. Numbers that need spells are None if the run kept none.

    `queueing_…`: seconds in which a job held no GPUs. `slowdown_…`: JCT over the job's own work, of the jobs that had
    any. `utilisation_allocated`: GPU-seconds held, `utilisation_used`: GPU-seconds of work that counted, both over
    GPUs × makespan; on GPUs that are faster than typical ones the latter may pass 1. `fairness_loss`: by how much, as
    a part of their fair time, jobs came later than it, in the mean over all; `unfair_part`: how many did, as a part.
    """

    jobs: int
    jct_mean_s: float
    jct_geomean_s: float
    jct_p50_s: float
    jct_p90_s: float
    jct_p99_s: float
    jct_max_s: float
    makespan_s: float
    queueing_mean_s: float | None
    queueing_p99_s: float | None
    slowdown_mean: float
    slowdown_p50: float
    slowdown_p99: float
    slowdown_max: float
    utilisation_allocated: float | None
    utilisation_used: float
    fairness_loss: float
    fairness_rho_max: float
    unfair_part: float
    moves: int
    evictions: int
    lost_gpu_s: float


def metrics(outcome: Outcome) -> Metrics:
    """All metrics of a run. Raises ValueError for a run without jobs."""
    jobs = outcome.jobs
    if not jobs:
        raise ValueError("no job was simulated, so there is nothing to measure")
    jcts = sorted(job.jct_s for job in jobs)
    waits = sorted(queueing_s(outcome))
    slowdowns = sorted(job.jct_s / job.work_s for job in jobs if job.work_s > 0) or [1.0]
    rhos = finish_time_fairness(outcome) or [1.0]
    held = [(spell.end_s - spell.begin_s) * len(spell.gpus) for spell in outcome.spells]
    return Metrics(
        jobs=len(jobs),
        jct_mean_s=_mean(jcts),
        jct_geomean_s=_geomean(jcts),
        jct_p50_s=percentile(jcts, 0.50),
        jct_p90_s=percentile(jcts, 0.90),
        jct_p99_s=percentile(jcts, 0.99),
        jct_max_s=jcts[-1],
        makespan_s=makespan_s(outcome),
        queueing_mean_s=_mean(waits) if waits else None,
        queueing_p99_s=percentile(waits, 0.99) if waits else None,
        slowdown_mean=_mean(slowdowns),
        slowdown_p50=percentile(slowdowns, 0.50),
        slowdown_p99=percentile(slowdowns, 0.99),
        slowdown_max=slowdowns[-1],
        utilisation_allocated=_part_of_cluster(held, outcome) if held else None,
        utilisation_used=_part_of_cluster((job.work_s * job.gpus for job in jobs), outcome),
        fairness_loss=math.fsum(max(0.0, rho - 1.0) for rho in rhos) / len(rhos),
        fairness_rho_max=max(rhos),
        unfair_part=sum(rho > UNFAIR for rho in rhos) / len(rhos),
        moves=sum(job.moves for job in jobs),
        evictions=sum(job.evictions for job in jobs),
        lost_gpu_s=math.fsum(job.lost_s * job.gpus for job in jobs),
    )


def percentile(ordered: Sequence[float], part: float) -> float:
    """NumPy's `linear`: between the two values around the place `part × (n - 1)`."""
    place = part * (len(ordered) - 1)
    below = math.floor(place)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    weight = place - below
    # From the nearer end, as NumPy does: so it never leaves the two, whatever is rounded.
    return low + (high - low) * weight if weight < 0.5 else high - (high - low) * (1 - weight)


def makespan_s(outcome: Outcome) -> float:
    """From the first arrival to the last completion."""
    begin = min((job.arrival_s for job in outcome.jobs), default=0.0)
    return max((job.completed_s for job in outcome.jobs), default=0.0) - begin


def queueing_s(outcome: Outcome) -> list[float]:
    """How long each job held no GPUs, in the order of the jobs; empty without spells."""
    if not outcome.spells:
        return []
    held: list[list[float]] = [[] for _ in outcome.jobs]
    for spell in outcome.spells:
        held[spell.job].append(spell.end_s - spell.begin_s)
    return [max(0.0, job.jct_s - math.fsum(spans)) for job, spans in zip(outcome.jobs, held, strict=True)]


def finish_time_fairness(outcome: Outcome) -> list[float]:
    """Rho of each job that had any work, in the order of the jobs: 1.0 is its fair time, 2.0 twice that."""
    wanted = _Integral(_steps(_demand(outcome.jobs)))
    rhos: list[float] = []
    for job in outcome.jobs:
        jct = job.jct_s
        if job.work_s <= 0 or jct <= 0:
            continue
        contention = wanted.between(job.arrival_s, job.completed_s) / (jct * (outcome.gpus or 1))
        rhos.append(jct / (job.work_s * max(1.0, contention)))
    return rhos


def jct_cdf(outcome: Outcome) -> Steps:
    """The part of the jobs that took no longer than this many seconds."""
    curve: Steps = []
    for place, jct in enumerate(sorted(job.jct_s for job in outcome.jobs), 1):
        if curve and curve[-1][0] == jct:
            curve.pop()
        curve.append((jct, place / len(outcome.jobs)))
    return curve


def queue_over_time(outcome: Outcome) -> Steps:
    """How many jobs have arrived and hold no GPUs; empty without spells."""
    if not outcome.spells:
        return []
    changes = [(job.arrival_s, 1) for job in outcome.jobs]
    changes += [(job.completed_s, -1) for job in outcome.jobs]
    for spell in outcome.spells:
        changes += [(spell.begin_s, -1), (spell.end_s, 1)]
    return _steps(changes)


def utilisation_over_time(outcome: Outcome) -> Steps:
    """The part of the GPUs that jobs hold; empty without spells."""
    changes: list[tuple[float, int]] = []
    for spell in outcome.spells:
        changes += [(spell.begin_s, len(spell.gpus)), (spell.end_s, -len(spell.gpus))]
    gpus = outcome.gpus or 1
    return [(at, held / gpus) for at, held in _steps(changes)]


def mean_over_time(curve: Steps) -> float:
    """The mean of a curve of steps, from its first time to its last."""
    if len(curve) < 2 or curve[-1][0] <= curve[0][0]:
        return 0.0
    area = math.fsum((end - begin) * value for (begin, value), (end, _) in pairwise(curve))
    return area / (curve[-1][0] - curve[0][0])


class _Integral:
    """The area under a curve of steps between any two of its times."""

    def __init__(self, curve: Steps) -> None:
        self._times = [at for at, _ in curve]
        self._values = [value for _, value in curve]
        self._areas = [0.0]
        for (begin, value), (end, _) in pairwise(curve):
            self._areas.append(self._areas[-1] + (end - begin) * value)

    def between(self, begin: float, end: float) -> float:
        return self._until(end) - self._until(begin)

    def _until(self, at: float) -> float:
        place = bisect_right(self._times, at) - 1
        return self._areas[place] + (at - self._times[place]) * self._values[place]


def _demand(jobs: Iterable[JobOutcome]) -> Iterable[tuple[float, int]]:
    for job in jobs:
        yield job.arrival_s, job.gpus
        yield job.completed_s, -job.gpus


def _steps(changes: Iterable[tuple[float, int]]) -> Steps:
    """The sum of all changes so far, at each time at which it changes."""
    at_once: defaultdict[float, int] = defaultdict(int)
    for at, change in changes:
        at_once[at] += change
    curve: Steps = []
    value = 0
    for at in sorted(at_once):
        if at_once[at] or not curve:
            value += at_once[at]
            curve.append((at, float(value)))
    return curve


def _part_of_cluster(gpu_seconds: Iterable[float], outcome: Outcome) -> float:
    all_s = makespan_s(outcome) * outcome.gpus
    return math.fsum(gpu_seconds) / all_s if all_s else 0.0


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _geomean(values: Sequence[float]) -> float:
    """The geometric mean; 0 if any value is 0."""
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if min(values) > 0 else 0.0
