"""A story drawn at random in which jobs take, share, change and give back GPUs, at whole seconds."""

import random
from collections.abc import Iterator
from typing import Any

from msgspec import structs

from tests.support.builders import node, spec
from tests.support.steps import GIB, go
from weft.domain.job import STEPS, Allocation, Job, JobEvent, Placement
from weft.domain.lease import Lease
from weft.domain.shares import Share
from weft.domain.spec import JobSpec
from weft.store import GatewayStore, SchedulerStore

TENANTS = ("alice", "bob", "eve")
GPUS_OF_JOB = 4  # no two jobs want the same ones
LIKELY = {JobEvent.CANCELLED: 0.1, JobEvent.FAILED: 0.1, JobEvent.SUCCEEDED: 0.3, JobEvent.REPRIORITISED: 0.2}


async def tell_at_random(
    gateway: GatewayStore, scheduler: SchedulerStore, drawn: random.Random, *, begins: float, jobs: int, things: int
) -> float:
    """Tell so many things, and return the second after the last of them. What is drawn does not depend on the store."""
    lease = await scheduler.take_lease("default", holder="me", seen=None)
    assert lease is not None
    at = begins
    for name in ("node-1", "node-2"):
        await scheduler.save_node(lease, node(name, gpus=GPUS_OF_JOB * jobs, seen_at=at), event="joined", cause="")
    there: list[Job] = []
    for number in range(things):
        at += drawn.choice([0, 0, 1, 1, 2, 7])
        if len(there) < jobs and drawn.random() < 0.2:
            await gateway.submit(_spec(drawn), job_id=f"j-{len(there)}", tenant=drawn.choice(TENANTS), key=None, at=at)
            there += await scheduler.admit(lease, load=0, pool="default", limit=10)
        elif drawn.random() < 0.1:
            await _change_a_node(scheduler, lease, drawn, at, gpus=GPUS_OF_JOB * jobs + number)
        elif there:
            place = drawn.randrange(len(there))
            there[place] = await _step(scheduler, lease, drawn, there[place], place, at)
    return at + 1


def _spec(drawn: random.Random) -> JobSpec:
    if drawn.random() < 0.3:
        return spec(role={"gpus": 0, "share": {"request": drawn.choice([0.25, 0.333, 0.001]), "memory": "1GiB"}})
    return spec(gpus=drawn.randint(0, 2), replicas=drawn.randint(1, 2))


async def _change_a_node(
    scheduler: SchedulerStore, lease: Lease, drawn: random.Random, at: float, *, gpus: int
) -> None:
    """The last node comes, goes, grows and is drained; no job is there."""
    kind = drawn.choice(["changed", "drained", "lost", "removed"])
    if kind == "removed":
        await scheduler.remove_node(lease, "node-3", cause="", at=at)
        return
    fields: dict[str, Any] = {"drained": kind == "drained", "ready": kind != "lost"}
    await scheduler.save_node(lease, node("node-3", gpus=gpus % 9, seen_at=at, **fields), event=kind, cause="")


async def _step(scheduler: SchedulerStore, lease: Lease, drawn: random.Random, job: Job, place: int, at: float) -> Job:
    events = sorted({event for state, event in STEPS if state is job.state})
    event = drawn.choices(events, [LIKELY.get(event, 1.0) for event in events])[0]
    fields = dict(_fields(drawn, job, event, place))
    return await go(scheduler, lease, job, event, at=at, **fields)


def _fields(drawn: random.Random, job: Job, event: JobEvent, place: int) -> Iterator[tuple[str, Any]]:
    if event in (JobEvent.PLACED, JobEvent.TUNED, JobEvent.RESIZED):
        yield "placement", _placement(drawn, place)
    if event is JobEvent.RESTARTED:
        yield "placement", job.next_placement or _placement(drawn, place)
    if event is JobEvent.STOPPING and drawn.random() < 0.6:
        yield "next_placement", _placement(drawn, place)


def _placement(drawn: random.Random, place: int) -> Placement:
    """Some of the job's own GPUs, each whole or in shares."""
    found: list[Allocation] = []
    for name in ("node-1", "node-2"):
        for index in range(GPUS_OF_JOB * place, GPUS_OF_JOB * (place + 1)):
            found += _ranks(drawn, name, index, len(found))
    return Placement(allocations=tuple(found), master_port=20000)


def _ranks(drawn: random.Random, node_id: str, index: int, rank: int) -> Iterator[Allocation]:
    whole = Allocation(rank=rank, role="worker", node_id=node_id, gpus=(index,), cpus=1.0, memory=GIB)
    kind = drawn.randrange(5)
    if kind == 0:
        yield whole
    elif kind == 1:
        for part in (drawn.randint(1, 500), drawn.randint(1, 500)):
            yield structs.replace(whole, rank=rank, share=Share(request=part, memory=GIB))
            rank += 1
    elif kind == 2:
        yield structs.replace(whole, gpus=())
