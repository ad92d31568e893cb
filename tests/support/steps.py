"""Jobs taken from step to step, as a scheduler would, with whatever store the test has."""

from typing import Any

from libs.domain.job import STEPS, Allocation, Cause, CauseCode, Job, JobEvent, Placement, Step
from libs.domain.lease import Lease
from libs.store import SchedulerStore

GIB = 1 << 30
CAUSES = {
    JobEvent.WAITING: CauseCode.NO_ROOM,
    JobEvent.REPRIORITISED: CauseCode.PRIORITY_ASKED,
    JobEvent.PLACED: CauseCode.FITS,
    JobEvent.STARTING: CauseCode.NODE_REPORTED,
    JobEvent.STARTED: CauseCode.NODE_REPORTED,
    JobEvent.TUNED: CauseCode.UPSCALED,
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
        "epoch": job.epoch + (event is JobEvent.REQUEUED),
    }
    return Step(**{**made, **fields})


async def go(store: SchedulerStore, lease: Lease, job: Job, event: JobEvent, *, at: float, **fields: Any) -> Job:
    """Take one step that must be taken, and return the job as the store then has it."""
    assert await store.take(lease, [step(job, event, at=at, **fields)]) == [True]
    found = await store.job(job.id)
    assert found is not None
    return found
