"""What a set of sizes comes to: progress, changes, utilisation and unfairness."""

from collections.abc import Mapping, Sequence
from math import floor

from weft.planning.partition import Change, ElasticJob, Partition, Server
from weft.planning.partition.fair import FairShare, fair_shares, unfairness, whole_of
from weft.planning.shares import Amounts

PROGRESS_MOST = 4.0  # a job far above its fair share counts as no faster


def speed(job: ElasticJob, size: float) -> float:
    """At a size between two whole ones by interpolation; below `least` in proportion."""
    if size <= 0:
        return 0.0
    if size < job.least:
        return job.speeds[0] * size / job.least
    below = min(floor(size), job.most) - job.least
    above = min(below + 1, len(job.speeds) - 1)
    return job.speeds[below] + (job.speeds[above] - job.speeds[below]) * (min(size, job.most) - job.least - below)


def progress(job: ElasticJob, size: int, fair: FairShare) -> float:
    """The job's speed in parts of its speed at its fair share, 0 to PROGRESS_MOST."""
    return min(PROGRESS_MOST, speed(job, size) / usual_speed(job, fair))


def usual_speed(job: ElasticJob, fair: FairShare) -> float:
    """At its fair share; at its least if it has none."""
    return speed(job, fair.replicas) or job.speeds[0]


def utilisation(sizes: Mapping[str, int], jobs: Sequence[ElasticJob], whole: Amounts) -> float:
    """The sum over the resources of the part that is given away."""
    total = 0.0
    for k, there in enumerate(whole):
        if there > 0:
            held = sum(sizes[job.job_id] * job.each[k] + (job.beside[k] if sizes[job.job_id] else 0.0) for job in jobs)
            total += held / there
    return total


def partition_of(
    sizes: Mapping[str, int],
    on: Mapping[str, Mapping[str, int]],
    jobs: Sequence[ElasticJob],
    servers: Sequence[Server],
    fair: Mapping[str, FairShare],
    relaxed: Sequence[str] = (),
) -> Partition:
    whole = whole_of(servers)
    return Partition(
        sizes=dict(sizes),
        changes=tuple(
            Change(
                job_id=job.job_id,
                was=job.now,
                becomes=becomes,
                gain=progress(job, becomes, fair[job.job_id]) - progress(job, job.now, fair[job.job_id]),
                cost_s=job.restart_s if job.now else 0.0,
            )
            for job in jobs
            if (becomes := sizes[job.job_id]) != job.now or _moves(job, on.get(job.job_id, {}))
        ),
        utilisation=utilisation(sizes, jobs, whole),
        unfairness=unfairness(sizes, jobs, whole, fair),
        on={job_id: dict(held) for job_id, held in on.items() if held},
        relaxed=tuple(relaxed),
    )


def _moves(job: ElasticJob, on: Mapping[str, int]) -> bool:
    """Whether it has replicas on a server where it has none or fewer now."""
    return job.now > 0 and any(number > job.on.get(server, 0) for server, number in on.items())


def kept(jobs: Sequence[ElasticJob], servers: Sequence[Server], why: str) -> Partition:
    """All as it is."""
    whole = whole_of(servers)
    sizes = {job.job_id: job.now for job in jobs}
    fair = fair_shares(jobs, whole)
    return Partition(
        sizes=sizes,
        kept=why,
        utilisation=utilisation(sizes, jobs, whole),
        unfairness=unfairness(sizes, jobs, whole, fair),
        on={job.job_id: dict(job.on) for job in jobs if job.on},
    )
