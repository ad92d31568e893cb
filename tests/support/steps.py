"""Jobs taken from step to step, as a scheduler would, with whatever store the test has."""

from collections.abc import Iterable
from typing import Any

from msgspec import structs

from weft.domain.job import (
    NEW_EPOCH,
    STEPS,
    Allocation,
    Cause,
    CauseCode,
    Job,
    JobChange,
    JobEvent,
    Placement,
    Step,
    changed,
)
from weft.domain.lease import Lease
from weft.store import SchedulerStore

GIB = 1 << 30
CAUSES = {
    JobEvent.WAITING: CauseCode.NO_ROOM,
    JobEvent.REPRIORITISED: CauseCode.PRIORITY_ASKED,
    JobEvent.PLACED: CauseCode.FITS,
    JobEvent.STARTING: CauseCode.NODE_REPORTED,
    JobEvent.STARTED: CauseCode.NODE_REPORTED,
    JobEvent.TUNED: CauseCode.UPSCALED,
    JobEvent.UPDATED: CauseCode.UPDATE_ASKED,
    JobEvent.ENTERED: CauseCode.ENTERED,
    JobEvent.NOTED: CauseCode.PROCESS_KILLED,
    JobEvent.SCALED: CauseCode.SCALE_ASKED,
    JobEvent.RESIZED: CauseCode.GREW,
    JobEvent.RESTARTED: CauseCode.PARTITIONED,
    JobEvent.STOPPING: CauseCode.PREEMPTED,
    JobEvent.REQUEUED: CauseCode.PREEMPTED,
    JobEvent.SUCCEEDED: CauseCode.EXITED,
    JobEvent.FAILED: CauseCode.EXITED,
    JobEvent.CANCELLED: CauseCode.CANCEL_ASKED,
}


def placement(*gpus: tuple[str, int], why: str = "") -> Placement:
    """One rank for each GPU, named as (node, index)."""
    allocations = tuple(
        Allocation(rank=rank, role="worker", node_id=node_id, gpus=(index,), cpus=1.0, memory=GIB)
        for rank, (node_id, index) in enumerate(gpus)
    )
    return Placement(allocations=allocations, master_port=20000, why=why)


def step(job: Job, event: JobEvent, *, at: float, **fields: Any) -> Step:
    """The legal step from where `job` is; override what the test is about."""
    made: dict[str, Any] = {
        "job_id": job.id,
        "version": job.version,
        "event": event,
        "to": STEPS[job.state, event],
        "at": at,
        "cause": Cause(code=CAUSES[event], sentence=f"because of {event}"),
        "epoch": job.epoch + (event in NEW_EPOCH),
    }
    return Step(**{**made, **fields})


def forced(job: Job, step: Step) -> JobChange:
    """A change that a scheduler without the law would make: legal or not, the job is where the step says."""
    try:
        return changed(job, step)
    except AssertionError:
        unlawful = structs.replace(
            job,
            state=step.to,
            version=job.version + 1,
            epoch=step.epoch,
            placement=step.placement or job.placement,
            stopping_for=step.cause if step.to.value == "stopping" else None,
        )
        return JobChange(job, step, unlawful)


def changes_of(jobs: Iterable[Job], steps: Iterable[Step]) -> list[JobChange]:
    """The steps in order, from the jobs as they are. A step of another version is decided on a job that never was."""
    known = {job.id: job for job in jobs}
    found: list[JobChange] = []
    for one in steps:
        job = known.get(one.job_id, structs.replace(next(iter(known.values())), id=one.job_id))
        found.append(forced(structs.replace(job, version=one.version), one))
        if one.job_id in known and job.version == one.version:
            known[one.job_id] = found[-1].after
    return found


async def go(store: SchedulerStore, lease: Lease, job: Job, event: JobEvent, *, at: float, **fields: Any) -> Job:
    """Take one step that must be taken, and return the job as the store then has it."""
    assert await store.take(lease, [changed(job, step(job, event, at=at, **fields))]) == [True]
    found = await store.job(job.id)
    assert found is not None
    return found
