"""One history in which everything happens once: every event that Weft can tell, with realistic contents.

docs/events.md shows what this history records; the conformance suite holds that every store records the same.
"""

import json
from typing import Any

import msgspec
from msgspec import structs

from tests.support.builders import spec
from tests.support.steps import GIB, go, placement
from weft.domain.cluster import Capacity, Drain, Gpu, Node
from weft.domain.job import Cause, CauseCode, JobEvent, Loan, Placement, Revision
from weft.messages.asks import AskKind, Entrance, Scale, Update
from weft.messages.events import Event, cloud_event
from weft.store import GatewayStore, SchedulerStore

BEGAN = 1767225600.0  # 2026-01-01T00:00:00Z
_E, _C = JobEvent, CauseCode


async def tell_everything(gateway: GatewayStore, scheduler: SchedulerStore) -> list[Event]:
    """Live through it in an empty store, and return its events in order."""
    await _a_job_that_is_preempted(gateway, scheduler)
    await _a_job_that_fails(gateway, scheduler)
    await _a_job_that_is_cancelled(gateway, scheduler)
    await _a_job_that_grows(gateway, scheduler)
    await _a_job_that_restarts(gateway, scheduler)
    await _a_service_that_is_updated(gateway, scheduler)
    await _a_job_with_a_killed_process(gateway, scheduler)
    await _a_node_with_a_past(scheduler)
    return await gateway.events(limit=1000)


def documents(events: list[Event]) -> dict[str, Any]:
    """The event of each kind with the most fields, by its subject, as it is published; the first where several have as
    many."""
    found: dict[str, Any] = {}
    for event in events:
        told = json.loads(msgspec.json.encode(cloud_event(event)))
        if len(told["data"]) > len(found.get(event.subject, {"data": ()})["data"]):
            found[event.subject] = told
    return found


async def _a_job_that_is_preempted(gateway: GatewayStore, scheduler: SchedulerStore) -> None:
    wanted = spec("resnet", gpus=1, replicas=2, command=["python", "train.py"])
    await gateway.submit(wanted, job_id="j-7k2m", tenant="vision", key="8d0f", at=BEGAN)
    lease = await scheduler.take_lease("default", holder="scheduler-1", seen=None)
    assert lease is not None
    (job,) = await scheduler.admit(lease, load=0, pool="default", limit=10)

    numbers = {"gpus_wanted": 2.0, "gpus_free": 1.0}
    cause = Cause(code=_C.NO_ROOM, sentence="wants 2 GPUs; 1 is free", numbers=numbers)
    job = await go(scheduler, lease, job, _E.WAITING, at=BEGAN + 0.02, cause=cause)

    await gateway.ask(
        AskKind.PRIORITISE, subject_id=job.id, pool="default", tenant="vision", at=BEGAN + 60, priority=10
    )
    (ask,) = await scheduler.asks(pool="default", limit=10)
    cause = Cause(code=_C.PRIORITY_ASKED, sentence="priority 0 → 10 by vision", by="vision")
    job = await go(scheduler, lease, job, _E.REPRIORITISED, at=BEGAN + 60.1, cause=cause, priority=10, ask=ask.id)

    where = placement(
        ("node-1", 0), ("node-1", 1), why="node-1 is the fullest node that still had 2 GPUs free together"
    )
    cause = Cause(code=_C.FITS, sentence=where.why)
    job = await go(scheduler, lease, job, _E.PLACED, at=BEGAN + 90, cause=cause, placement=where)
    cause = Cause(code=_C.NODE_REPORTED, sentence="node node-1 prepares it", by="node-1")
    job = await go(scheduler, lease, job, _E.STARTING, at=BEGAN + 90.2, cause=cause)
    cause = Cause(code=_C.NODE_REPORTED, sentence="all 2 ranks run", by="node-1")
    job = await go(scheduler, lease, job, _E.STARTED, at=BEGAN + 92.5, cause=cause)

    sentence = "pre-empted by serve (j-9q4x): priority 50 over 10"
    cause = Cause(code=_C.PREEMPTED, sentence=sentence, by="j-9q4x")
    job = await go(scheduler, lease, job, _E.STOPPING, at=BEGAN + 600, cause=cause)
    ended = {"exit_code": 143, "progress": {"step": 1200.0, "loss": 0.31}}
    job = await go(scheduler, lease, job, _E.REQUEUED, at=BEGAN + 604, cause=cause, not_before=BEGAN + 604, **ended)

    job = await go(scheduler, lease, job, _E.PLACED, at=BEGAN + 900, placement=where)
    job = await go(scheduler, lease, job, _E.STARTING, at=BEGAN + 900.2)
    job = await go(scheduler, lease, job, _E.STARTED, at=BEGAN + 902)
    sentence = "rank 0 is held back for 62 % of its CPU periods: 1 → 2 CPUs, which are free on node-1"
    cause = Cause(code=_C.UPSCALED, sentence=sentence, numbers={"cpu_throttled": 0.62, "cpus": 1.0, "cpus_new": 2.0})
    first, *others = where.allocations
    tuned = structs.replace(where, allocations=(structs.replace(first, cpus=2.0), *others))
    job = await go(scheduler, lease, job, _E.TUNED, at=BEGAN + 1200, cause=cause, placement=tuned)
    cause = Cause(code=_C.EXITED, sentence="every rank ended with status 0")
    ended = {"exit_code": 0, "progress": {"step": 4000.0, "loss": 0.08}}
    await go(scheduler, lease, job, _E.SUCCEEDED, at=BEGAN + 3600, cause=cause, **ended)


async def _a_job_that_fails(gateway: GatewayStore, scheduler: SchedulerStore) -> None:
    wanted = spec("typo", command=["pyhton", "train.py"])
    await gateway.submit(wanted, job_id="j-3c8w", tenant="vision", key=None, at=BEGAN + 3700)
    lease = await scheduler.lease("default")
    assert lease is not None
    (job,) = await scheduler.admit(lease, load=0, pool="default", limit=10)
    job = await go(scheduler, lease, job, _E.PLACED, at=BEGAN + 3700.1, placement=placement(("node-1", 0)))
    cause = Cause(code=_C.START_FAILED, sentence="could not start: no such command: pyhton")
    await go(scheduler, lease, job, _E.FAILED, at=BEGAN + 3701, cause=cause, attempts=1)


async def _a_job_with_a_killed_process(gateway: GatewayStore, scheduler: SchedulerStore) -> None:
    wanted = spec("loader", command=["python", "train.py"])
    await gateway.submit(wanted, job_id="j-9d4k", tenant="vision", key=None, at=BEGAN + 4000)
    lease = await scheduler.lease("default")
    assert lease is not None
    (job,) = await scheduler.admit(lease, load=0, pool="default", limit=10)
    job = await go(scheduler, lease, job, _E.PLACED, at=BEGAN + 4000.1, placement=placement(("node-1", 0)))
    job = await go(scheduler, lease, job, _E.STARTING, at=BEGAN + 4000.2)
    job = await go(scheduler, lease, job, _E.STARTED, at=BEGAN + 4000.3)
    sentence = "one of its processes was killed for memory: together they may use 1GiB"
    cause = Cause(code=_C.PROCESS_KILLED, sentence=sentence, by="node-1", numbers={"rank": 0.0})
    job = await go(scheduler, lease, job, _E.NOTED, at=BEGAN + 4060, cause=cause)
    ended = Cause(code=_C.EXITED, sentence="every rank ended with status 0")
    await go(scheduler, lease, job, _E.SUCCEEDED, at=BEGAN + 4090, cause=ended, exit_code=0)


async def _a_job_that_is_cancelled(gateway: GatewayStore, scheduler: SchedulerStore) -> None:
    wanted = spec("mistake", command=["sleep", "1000000"])
    await gateway.submit(wanted, job_id="j-5t1z", tenant="speech", key=None, at=BEGAN + 3800)
    lease = await scheduler.lease("default")
    assert lease is not None
    (job,) = await scheduler.admit(lease, load=0, pool="default", limit=10)
    cause = Cause(code=_C.CANCEL_ASKED, sentence="cancelled by speech", by="speech")
    await go(scheduler, lease, job, _E.CANCELLED, at=BEGAN + 3810, cause=cause)


async def _a_job_that_grows(gateway: GatewayStore, scheduler: SchedulerStore) -> None:
    role = {"replicas": {"want": 1, "max": 4}}
    wanted = spec("elastic", role=role, command=["torchrun", "train.py"], resize={"how": "live"})
    await gateway.submit(wanted, job_id="j-2e6n", tenant="vision", key=None, at=BEGAN + 3820)
    lease = await scheduler.lease("default")
    assert lease is not None
    (job,) = await scheduler.admit(lease, load=0, pool="default", limit=10)
    where = placement(("node-1", 0))
    job = await go(scheduler, lease, job, _E.PLACED, at=BEGAN + 3820.1, placement=where)
    job = await go(scheduler, lease, job, _E.STARTING, at=BEGAN + 3820.3)
    job = await go(scheduler, lease, job, _E.STARTED, at=BEGAN + 3822)

    scale = Scale(size={"worker": 2})
    await gateway.ask(AskKind.SCALE, subject_id=job.id, pool="default", tenant="vision", at=BEGAN + 3830, scale=scale)
    (ask,) = await scheduler.asks(pool="default", limit=10)
    model = "Emulated GPU"
    cause = Cause(code=_C.PARTITIONED, sentence=f"worker 1 → 2 on GPUs of {model}, by the partition planner")
    change = {"size": scale.size, "gpu_model": model, "ask": ask.id}
    job = await go(scheduler, lease, job, _E.SCALED, at=BEGAN + 3830.1, cause=cause, **change)
    first, second = placement(("node-1", 0), ("node-1", 1)).allocations
    grown = structs.replace(where, allocations=(first, structs.replace(second, extra=True)), ranks_used=2, changes=1)
    cause = Cause(code=_C.GREW, sentence="worker 1 → 2: rank 1 joins on node-1")
    job = await go(
        scheduler, lease, job, _E.RESIZED, at=BEGAN + 3830.2, cause=cause, placement=grown, worked={"worker": 1}
    )
    cause = Cause(code=_C.EXITED, sentence="every rank ended with status 0")
    await go(scheduler, lease, job, _E.SUCCEEDED, at=BEGAN + 3850, cause=cause, exit_code=0)


async def _a_job_that_restarts(gateway: GatewayStore, scheduler: SchedulerStore) -> None:
    role = {"replicas": {"want": 1, "max": 2}}
    wanted = spec("saved", role=role, command=["python", "train.py"], checkpoints={"on_stop": True})
    await gateway.submit(wanted, job_id="j-8h1r", tenant="vision", key=None, at=BEGAN + 3860)
    lease = await scheduler.lease("default")
    assert lease is not None
    (job,) = await scheduler.admit(lease, load=0, pool="default", limit=10)
    job = await go(scheduler, lease, job, _E.PLACED, at=BEGAN + 3860.1, placement=placement(("node-1", 0)))
    job = await go(scheduler, lease, job, _E.STARTING, at=BEGAN + 3860.3)
    job = await go(scheduler, lease, job, _E.STARTED, at=BEGAN + 3862)
    job = await go(scheduler, lease, job, _E.SCALED, at=BEGAN + 3870, size={"worker": 2})

    larger = placement(("node-1", 0), ("node-1", 1))
    cause = Cause(code=_C.SCALE_ASKED, sentence="restarts with worker 1 → 2, as vision asked", by="vision")
    job = await go(
        scheduler,
        lease,
        job,
        _E.STOPPING,
        at=BEGAN + 3870.1,
        cause=cause,
        next_placement=larger,
        worked={"worker": 1},
    )
    cause = Cause(code=_C.SCALE_ASKED, sentence="every rank stopped; begins again with worker 2", by="vision")
    ended = {"exit_code": 0, "progress": {"step": 900.0, "checkpoint": 900.0}}
    job = await go(scheduler, lease, job, _E.RESTARTED, at=BEGAN + 3874, cause=cause, placement=larger, **ended)
    job = await go(scheduler, lease, job, _E.STARTING, at=BEGAN + 3874.2)
    job = await go(scheduler, lease, job, _E.STARTED, at=BEGAN + 3876)
    cause = Cause(code=_C.EXITED, sentence="every rank ended with status 0")
    await go(scheduler, lease, job, _E.SUCCEEDED, at=BEGAN + 3900, cause=cause, exit_code=0)


async def _a_service_that_is_updated(gateway: GatewayStore, scheduler: SchedulerStore) -> None:
    """It also borrows a GPU."""
    role = {"replicas": {"min": 0, "want": 0, "max": 4}}
    wanted = spec("chat", role=role, kind="inference", image="chat:1", command=None, service={"ready": "/healthz"})
    await gateway.submit(wanted, job_id="j-6s2v", tenant="vision", key=None, at=BEGAN + 3910)
    lease = await scheduler.lease("default")
    assert lease is not None
    (job,) = await scheduler.admit(lease, load=0, pool="default", limit=10)
    nowhere = Placement(allocations=(), why="it has no replica")
    job = await go(scheduler, lease, job, _E.PLACED, at=BEGAN + 3910.1, placement=nowhere)
    job = await go(scheduler, lease, job, _E.STARTING, at=BEGAN + 3910.1)
    job = await go(scheduler, lease, job, _E.STARTED, at=BEGAN + 3910.1)

    cause = Cause(code=_C.ENTERED, sentence="vision opened a shell in rank 0", by="vision", numbers={"rank": 0.0})
    entrance = Entrance(epoch=0, cause=cause)
    at = BEGAN + 3915
    await gateway.ask(AskKind.ENTER, subject_id=job.id, pool="default", tenant="vision", at=at, entry=entrance)
    (ask,) = await scheduler.asks(pool="default", limit=10)
    assert ask.entry == entrance
    job = await go(scheduler, lease, job, _E.ENTERED, at=at, cause=entrance.cause, ask=ask.id)

    await gateway.ask(
        AskKind.UPDATE,
        subject_id=job.id,
        pool="default",
        tenant="vision",
        at=BEGAN + 3920,
        update=Update(image="chat:2", env={"MODE": "fast"}),
    )
    (ask,) = await scheduler.asks(pool="default", limit=10)
    assert ask.update is not None
    revision = Revision(number=1, image=ask.update.image, env=ask.update.env, at=BEGAN + 3920.1, back_to=0)
    cause = Cause(code=_C.UPDATE_ASKED, sentence="revision 0 → 1 by vision: image chat:2, env MODE", by="vision")
    job = await go(scheduler, lease, job, _E.UPDATED, at=BEGAN + 3920.1, cause=cause, revisions=(revision,), ask=ask.id)
    (only,) = placement(("node-1", 1)).allocations
    grown = Placement(
        allocations=(structs.replace(only, extra=True, revision=1),), master_port=20000, ranks_used=1, changes=1
    )
    cause = Cause(code=_C.GREW, sentence="worker 0 → 1: rank 0 joins on node-1, on a GPU of elastic (j-2e6n)")
    job = await go(
        scheduler,
        lease,
        job,
        _E.RESIZED,
        at=BEGAN + 3930,
        cause=cause,
        placement=grown,
        worked={"worker": 0},
        loans=(Loan(lender="j-2e6n", rank=0, gpus=1.0, ranks=1, since=BEGAN + 3930),),
    )
    job = await go(scheduler, lease, job, _E.STOPPING, at=BEGAN + 3940)
    await go(scheduler, lease, job, _E.CANCELLED, at=BEGAN + 3941)


async def _a_node_with_a_past(scheduler: SchedulerStore) -> None:
    lease = await scheduler.lease("default")
    assert lease is not None
    gpus = tuple(
        Gpu(index=index, uuid=f"EMULATED-{index}", model="Emulated GPU", memory=16 * GIB, emulated=True)
        for index in range(2)
    )
    capacity = Capacity(cpus=16.0, memory=64 * GIB, gpus=gpus)
    past: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("joined", "joined with 2 emulated GPUs", {}),
        ("changed", "has other capacity, address or runtime than before", {"runtime": "docker"}),
        ("drained", "drained by admin", {"drain": Drain()}),
        ("resumed", "resumed by admin", {}),
        ("health", "GPU 1 is quarantined: Xid 79: it fell off the bus", {}),
        ("lost", "sent no report for 2m31s", {"ready": False}),
        ("returned", "reports again", {}),
    )
    for number, (event, sentence, fields) in enumerate(past):
        known: dict[str, Any] = {"runtime": "process", **fields}
        node = Node(
            id="node-1", pool="default", address="10.0.0.11", capacity=capacity, seen_at=BEGAN + 4000 + number, **known
        )
        await scheduler.save_node(lease, node, event=event, cause=sentence)
    sentence = "removed: sent no report for 30 days"
    await scheduler.remove_node(lease, "node-1", cause=sentence, at=BEGAN + 4000 + len(past))
