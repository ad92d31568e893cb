"""Jobs of fixed size made elastic: what a trace of rigid jobs would be if they could take another size."""

from math import floor, inf

from msgspec import structs

from weft.simulator.workload import Elastic, TraceJob, Workload

EACH = (1.0, 0.0, 0.0)  # one GPU a replica: a trace says nothing of CPU cores and memory


def made_elastic(
    workload: Workload, *, times: float, exponent: float, resize_s: float, live: bool = False, gpus_most: int
) -> Workload:
    """Each job that is not elastic already may have 1 GPU to `times` as many as it asks for, `gpus_most` at the most.

    Raises ValueError if `times` is below 1 or another setting makes no sense.
    """
    if not 1 <= times < inf:
        raise ValueError(f"times must be at least 1, and finite: {times:g}")
    jobs = tuple(
        structs.replace(job, elastic=_elastic(job, times, exponent, resize_s, live, gpus_most)) for job in workload.jobs
    )
    how = f"live in {resize_s:g} s" if live else f"by restarts of {resize_s:g} s"
    note = f"elastic: 1 to {times:g} × the GPUs that each job asks for, {how}; n are n ** {exponent:g} times as fast"
    return structs.replace(workload, jobs=jobs, notes=(*workload.notes, note))


def _elastic(job: TraceJob, times: float, exponent: float, resize_s: float, live: bool, gpus_most: int) -> Elastic:
    if job.elastic is not None:
        return job.elastic
    most = max(job.gpus, min(floor(job.gpus * times), gpus_most))
    return Elastic(asked=job.gpus, least=1, most=most, each=EACH, exponent=exponent, live=live, resize_s=resize_s)
