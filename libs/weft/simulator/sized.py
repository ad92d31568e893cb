"""Metrics of elastic jobs in one run: what they held of all resources over time, how fairly, and what resizing cost.

Utilisation is the sum over the resources of the part that jobs hold, 0 to the number of resources. Unfairness is the
sum over the jobs present of the distance between a job's dominant share and its fair one, by weighted dominant resource
fairness. Both are Dorm's, with its names for them: resource utilisation and fairness loss.
"""

import math
from collections.abc import Mapping

from msgspec import Struct

from weft.planning.partition import ALIKE, ElasticJob
from weft.planning.partition.fair import unfairness
from weft.planning.shares import Amounts
from weft.simulator.metrics import Steps, mean_over_time
from weft.simulator.outcome import JobOutcome, Outcome

FIRST_S, DAY_S = 5 * 3600.0, 24 * 3600.0
ONE_GPU: Amounts = (1.0, 0.0, 0.0)


class SizeMetrics(Struct, frozen=True, kw_only=True):
    """`…_first`: in the first five hours, `…_day`: in the first 24, from the first arrival on. `adjusted_per_event`:
    how many running jobs got another size or place, over the number of arrivals and ends. `overhead_…`: the time in
    which a job held something and made no progress, over the time in which it did; the mean of the jobs, the largest.
    """

    utilisation_first: float
    utilisation_day: float
    unfairness_first: float
    unfairness_day: float
    adjusted_per_event: float
    resizes: int
    plans: int
    plans_kept: int
    overhead_mean: float
    overhead_max: float


def size_metrics(outcome: Outcome) -> SizeMetrics:
    """Raises ValueError for a run without spells."""
    if not outcome.spells:
        raise ValueError("the run kept no spells, so there is nothing to measure")
    begin = min(job.arrival_s for job in outcome.jobs)
    used, unfair = utilisation_steps(outcome), unfairness_steps(outcome)
    overheads = [job.lost_s / (job.held_s - job.lost_s) for job in outcome.jobs if job.held_s > job.lost_s]
    return SizeMetrics(
        utilisation_first=mean_between(used, begin, begin + FIRST_S),
        utilisation_day=mean_between(used, begin, begin + DAY_S),
        unfairness_first=mean_between(unfair, begin, begin + FIRST_S),
        unfairness_day=mean_between(unfair, begin, begin + DAY_S),
        adjusted_per_event=sum(planned.changed for planned in outcome.partitions) / (2 * len(outcome.jobs)),
        resizes=sum(job.resizes for job in outcome.jobs),
        plans=len(outcome.partitions),
        plans_kept=sum(bool(planned.kept) for planned in outcome.partitions),
        overhead_mean=math.fsum(overheads) / len(overheads) if overheads else 0.0,
        overhead_max=max(overheads, default=0.0),
    )


def speed_ups(first: Outcome, other: Outcome) -> dict[str, float]:
    """Ratio of each job: its JCT in the first run divided by that in the other."""
    before = {job.id: job.jct_s for job in first.jobs}
    return {job.id: before[job.id] / job.jct_s for job in other.jobs if job.jct_s > 0}


def utilisation_steps(outcome: Outcome) -> Steps:
    whole = outcome.amounts

    def used(sizes: Mapping[int, int]) -> float:
        held = [0.0, 0.0, 0.0]
        for number, size in sizes.items():
            for k, each in enumerate(each_of(outcome.jobs[number])):
                held[k] += size * each
        return sum(amount / there for amount, there in zip(held, whole, strict=True) if there > 0)

    return [(at, used(sizes)) for at, sizes in sizes_over_time(outcome)]


def unfairness_steps(outcome: Outcome) -> Steps:
    """Unfairness among the present jobs, waiting or not, over time."""
    jobs = [_as_planned(job) for job in outcome.jobs]
    curve: Steps = []
    for at, sizes in sizes_over_time(outcome, arrivals=True):
        present = [jobs[number] for number, job in enumerate(outcome.jobs) if job.arrival_s <= at < job.completed_s]
        held = {jobs[number].job_id: size for number, size in sizes.items()}
        of_present = {job.job_id: held.get(job.job_id, 0) for job in present}
        curve.append((at, unfairness(of_present, present, outcome.amounts) if present else 0.0))
    return curve


def sizes_over_time(outcome: Outcome, *, arrivals: bool = False) -> list[tuple[float, Mapping[int, int]]]:
    """From each time at which a size changes (or a job arrives), how many replicas each job has, by its place in
    `Outcome.jobs`; jobs that have none are left out."""
    changes: dict[float, list[tuple[int, int]]] = {}
    for spell in outcome.spells:
        changes.setdefault(spell.begin_s, []).append((spell.job, spell.replicas))
        changes.setdefault(spell.end_s, []).append((spell.job, -spell.replicas))
    if arrivals:
        for job in outcome.jobs:
            changes.setdefault(job.arrival_s, [])
    sizes: dict[int, int] = {}
    found: list[tuple[float, Mapping[int, int]]] = []
    for at in sorted(changes):
        sizes = dict(sizes)
        for number, change in changes[at]:
            sizes[number] = sizes.get(number, 0) + change
        sizes = {number: size for number, size in sizes.items() if size}
        found.append((at, sizes))
    return found


def mean_between(curve: Steps, begin: float, end: float) -> float:
    """The mean of a curve of steps over this time; before and after it, it is 0."""
    inside = [(at, value) for at, value in curve if begin < at < end]
    before = [value for at, value in curve if at <= begin]
    return mean_over_time([(begin, before[-1] if before else 0.0), *inside, (end, 0.0)])


def each_of(job: JobOutcome) -> Amounts:
    """Resources of one replica of the job."""
    return ONE_GPU if job.elastic is None else job.elastic.each


def _as_planned(job: JobOutcome) -> ElasticJob:
    elastic = job.elastic
    least, most = (job.gpus, job.gpus) if elastic is None else (elastic.least, elastic.most)
    return ElasticJob(
        job_id=job.id,
        each=each_of(job),
        least=least,
        most=most,
        speeds={ALIKE: (1.0,) * (most - least + 1)},
        weight=1.0 if elastic is None else elastic.weight,
    )
