"""The parts of each GPU that jobs hold, and the refusal of more than it has."""

from collections.abc import Iterable, Mapping

from weft.domain.job import Job
from weft.domain.shares import WHOLE
from weft.store import DoubleAllocationError

Gpu = tuple[str, int]
Slots = Mapping[Gpu, Mapping[str, tuple[int, int]]]  # by GPU and job: thousandths and bytes


def slots_after(slots: Slots, before: Iterable[Job], after: Iterable[Job], memories: Mapping[Gpu, int]) -> Slots:
    """The slots once these jobs have moved. Raises DoubleAllocationError for a GPU that would be more than full.

    `memories`: of each GPU that is known. The memory of another is not checked.
    """
    found = dict(slots)
    had = {job.id: _held(job) for job in before}
    for job_id, held in had.items():
        for gpu in held:
            found[gpu] = {other: part for other, part in found[gpu].items() if other != job_id}
    for job in after:
        for gpu, part in _held(job).items():
            found[gpu] = {**found.get(gpu, {}), job.id: part}
            time, memory = (sum(parts) for parts in zip(*found[gpu].values(), strict=True))
            more = part != had[job.id].get(gpu)
            if more and (time > WHOLE or memory > memories.get(gpu, memory)):
                raise DoubleAllocationError(
                    f"GPU {gpu[1]} of {gpu[0]} would have {time} thousandths of its time and {memory} bytes of its"
                    f" memory held, by {', '.join(sorted(found[gpu]))}"
                )
    return found


def _held(job: Job) -> dict[Gpu, tuple[int, int]]:
    held: dict[Gpu, tuple[int, int]] = {}
    for allocation in job.held if job.state.holding else ():
        part = (WHOLE, 0) if allocation.share is None else (allocation.share.request, allocation.share.memory)
        for index in allocation.gpus:
            time, memory = held.get((allocation.node_id, index), (0, 0))
            held[allocation.node_id, index] = (time + part[0], memory + part[1])
    return held
