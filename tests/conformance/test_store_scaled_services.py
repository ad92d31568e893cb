"""What the reallocator reads of services, in every store."""

from typing import Any

from tests.support.builders import spec
from tests.support.steps import GIB, go
from tests.support.stores import AT, World
from weft.domain.job import Allocation, JobEvent, Placement

REPLICA = Allocation(rank=0, role="worker", node_id="node-1", gpus=(1,), cpus=1.0, memory=GIB, extra=True)


async def test_the_reallocator_reads_services_with_and_without_replicas_and_no_other_job(world: World) -> None:
    lease = await world.lead()
    rules: dict[str, Any] = {"kind": "inference", "service": {}}
    role = {"replicas": {"min": 0, "want": 1, "max": 4}}
    made = {
        "j-none": spec("none", role=role, **rules),
        "j-one": spec("one", role=role, **rules),
        "j-queued": spec("queued", role=role, **rules),
        "j-book": spec("book", kind="notebook", service={}),
        "j-batch": spec("batch"),
    }
    for job_id, wanted in made.items():
        await world.gateway.submit(wanted, job_id=job_id, tenant="alice", key=None, at=AT)
    born = {job.id: job for job in await world.scheduler.admit(lease, load=0, pool="default", limit=10)}
    for job_id, allocations in (("j-none", ()), ("j-one", (REPLICA,)), ("j-book", ()), ("j-batch", ())):
        job = born[job_id]
        if job_id in ("j-book", "j-batch"):
            allocations = (Allocation(rank=0, role="worker", node_id=f"{job_id}-n", gpus=(0,), cpus=1.0, memory=GIB),)
        where = Placement(allocations=allocations, ranks_used=1)
        await go(world.scheduler, lease, job, JobEvent.PLACED, at=AT, placement=where)
    found = await world.reallocator.services(pool="default")
    assert [(job.id, job.granted) for job in found] == [("j-none", {"worker": 0}), ("j-one", {"worker": 1})]
    known = {job.id: job for job in found}
    job = await go(world.scheduler, lease, known["j-one"], JobEvent.SCALED, at=AT + 1, size={"worker": 3})
    assert await world.reallocator.services(pool="default", known=known) == [known["j-none"], job]
    await go(world.scheduler, lease, job, JobEvent.FAILED, at=AT + 2)
    assert [job.id for job in await world.reallocator.services(pool="default", known=known)] == ["j-none"]
