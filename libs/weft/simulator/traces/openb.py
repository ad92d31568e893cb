"""Alibaba's openb pods of 2023: many of them ask for a part of one GPU."""

from collections import Counter
from collections.abc import Sequence

from weft.simulator.traces.table import Columns, gpus, name, read_jobs, seconds, shown, whole
from weft.simulator.workload import TraceJob, Workload

COLUMNS = Columns(("name", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time"))
WHOLE_GPU = 1000  # gpu_milli
NOTES = ("a pod's work is the time from its scheduling to its deletion, however it ended; every job is of class A",)


def read(path: str) -> Workload:
    deletions: Counter[float] = Counter()

    def job(_line: int, fields: Sequence[str]) -> TraceJob | str:
        pod, num_gpu, gpu_milli, creation_time, deletion_time, scheduled_time = fields
        if whole("num_gpu", num_gpu) == 0:
            return "pods without a GPU"
        if not scheduled_time.strip():
            return "pods that never ran"
        if not deletion_time.strip():
            return "pods that never ended"
        count = gpus("num_gpu", num_gpu)
        created = seconds("creation_time", creation_time)
        began, ended = seconds("scheduled_time", scheduled_time), seconds("deletion_time", deletion_time)
        if not created <= began < ended:
            raise ValueError(
                f"created at {created:g}, scheduled at {began:g}, deleted at {ended:g}: not one after another"
            )
        deletions[ended] += 1
        return TraceJob(
            id=name("name", pod), arrival_s=created, gpus=count, work_s=ended - began, share=_share(count, gpu_milli)
        )

    found = read_jobs(path, COLUMNS, job)
    notes = (*found.notes, *_cut_off(deletions), *NOTES)
    return Workload(name=path, jobs=tuple(found.jobs), notes=notes)


def _share(count: int, gpu_milli: str) -> float | None:
    milli = whole("gpu_milli", gpu_milli)
    if milli == WHOLE_GPU:
        return None
    if count > 1 or not 0 < milli < WHOLE_GPU:
        raise ValueError(f"gpu_milli is {shown(gpu_milli)} with num_gpu {count}")
    return milli / WHOLE_GPU


def _cut_off(deletions: Counter[float]) -> list[str]:
    """Pods that ran when the trace ended are in it as deleted then."""
    together = deletions[max(deletions)]
    return [f"{together:,} pods end with the trace and may have run longer"] if together > 1 else []
