"""Outcome of a set of sizes: progress, changes, utilisation and unfairness."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import floor

from weft.planning.partition import ALIKE, Change, ElasticJob, Partition, Server
from weft.planning.partition.fair import FairShare, fair_shares, unfairness, whole_of
from weft.planning.shares import Amounts

PROGRESS_MOST = 4.0  # a job far above its fair share counts as no faster


def speed(job: ElasticJob, size: float, model: str) -> float:
    """Speed at a size, interpolated between whole sizes; below `least` in proportion."""
    if size <= 0:
        return 0.0
    speeds = job.speeds[model]
    if size < job.least:
        return speeds[0] * size / job.least
    below = min(floor(size), job.most) - job.least
    above = min(below + 1, len(speeds) - 1)
    return speeds[below] + (speeds[above] - speeds[below]) * (min(size, job.most) - job.least - below)


def progress(job: ElasticJob, size: int, model: str, fair: FairShare) -> float:
    """The job's speed in parts of its speed at its fair share, 0 to PROGRESS_MOST."""
    return min(PROGRESS_MOST, speed(job, size, model) / usual_speed(job, fair))


def usual_speed(job: ElasticJob, fair: FairShare) -> float:
    """Speed at the fair share, as the mean over its allowed models; at the smallest size if it has no fair share."""
    size = fair.replicas or job.least
    return sum(speed(job, size, model) for model in job.speeds) / len(job.speeds)


def utilisation(sizes: Mapping[str, int], jobs: Sequence[ElasticJob], whole: Amounts) -> float:
    """The sum over all resources of the allocated part."""
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
    of_servers = {server.id: server.model for server in servers}
    models = {job.job_id: _model(job, on.get(job.job_id, {}), of_servers) for job in jobs}

    def gain(job: ElasticJob, becomes: int) -> float:
        share = fair[job.job_id]
        now = progress(job, job.now, job.model, share) if job.now else 0.0
        return (progress(job, becomes, models[job.job_id], share) if becomes else 0.0) - now

    return Partition(
        sizes=dict(sizes),
        changes=tuple(
            Change(
                job_id=job.job_id,
                was=job.now,
                becomes=becomes,
                gain=gain(job, becomes),
                cost_s=job.restart_s if job.now else 0.0,
            )
            for job in jobs
            if (becomes := sizes[job.job_id]) != job.now or _moves(job, on.get(job.job_id, {}))
        ),
        utilisation=utilisation(sizes, jobs, whole),
        unfairness=unfairness(sizes, jobs, whole, fair),
        on={job_id: dict(held) for job_id, held in on.items() if held},
        models={job.job_id: models[job.job_id] for job in jobs if sizes[job.job_id]},
        relaxed=tuple(relaxed),
    )


def _model(job: ElasticJob, on: Mapping[str, int], of_servers: Mapping[str, str]) -> str:
    """The model of most of its new GPUs; without new ones its present model, else the first allowed one."""
    held = Counter[str]()
    for server, number in on.items() if job.each[0] else ():
        if (model := of_servers.get(server, ALIKE)) in job.speeds:
            held[model] += number
    if held:
        return max(held, key=lambda model: (held[model], model))
    return job.model if job.now else next(iter(job.speeds))


def _moves(job: ElasticJob, on: Mapping[str, int]) -> bool:
    """Return True if it gets replicas on a server where it has none or fewer now."""
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
        models={job.job_id: job.model for job in jobs if job.now},
    )
