"""The load of a workload on a cluster: whether its jobs fit, how busy they keep it, and how to scale that."""

from math import inf

from msgspec.structs import replace

from weft.simulator.workload import InputError, Workload


def offered_load(workload: Workload, gpus_in_cluster: int) -> float:
    """The arriving GPU seconds per available GPU second; infinite if all jobs arrive at once."""
    work = sum(job.work_s * job.gpus for job in workload.jobs)
    span = _span(workload) * gpus_in_cluster
    return work / span if span > 0 else inf


def scaled(workload: Workload, load: float, gpus_in_cluster: int) -> Workload:
    """The same jobs, with arrivals stretched to offer this `load`."""
    if not 0 < load < inf:
        raise ValueError(f"load must be above 0, and finite: {load}")
    if gpus_in_cluster < 1:
        raise ValueError(f"gpus_in_cluster must be at least 1: {gpus_in_cluster}")
    if _span(workload) <= 0:
        raise ValueError(f"load: the jobs of {workload.name} all arrive at once, so no pace offers {load:g}")
    stretch = offered_load(workload, gpus_in_cluster) / load
    note = f"arrival times × {stretch:.6g}: a load of {load:g} on {gpus_in_cluster} GPUs"
    return replace(
        workload,
        jobs=tuple(replace(job, arrival_s=job.arrival_s * stretch) for job in workload.jobs),
        notes=(*workload.notes, note),
    )


def check_fits(workload: Workload, gpus: int, *, file: str | None = None) -> None:
    """Refuse a workload with jobs that could never start on `gpus` GPUs: the others would wait behind them for ever."""
    too_large = [job for job in workload.jobs if job.gpus > gpus]
    if too_large:
        first, others = too_large[0], len(too_large) - 1
        also = f", and {others:,} more such jobs" if others else ""
        asked = f"job {first.id} asks for {first.gpus:,} GPUs, the cluster has {gpus:,}{also}"
        raise InputError(file or workload.name, 0, asked)


def _span(workload: Workload) -> float:
    arrivals = [job.arrival_s for job in workload.jobs]
    return max(arrivals, default=0.0) - min(arrivals, default=0.0)
