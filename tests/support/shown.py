"""A scripted cluster with a little of everything that the dashboard shows, over a real gateway: six nodes of every
state, jobs of two tenants in every state, a service with a loan, and texts that would like to be markup."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from msgspec import Struct, structs

from tests.support.builders import GIB, node, spec
from tests.support.gateway import WAIT_SECONDS_MAX, Place, admitted
from tests.support.gateway_world import World, opened
from tests.support.steps import placement
from weft.domain.job import Cause, CauseCode, Job, JobEvent, Loan, Placement
from weft.domain.shares import Share
from weft.messages.files import JobFile
from weft.messages.nodes import Pace, ProgressSeen, RunProgressed
from weft.messages.serving import Endpoint, EndpointsSeen, ServiceServed, ServicesServed
from weft.messages.signals import (
    Curve,
    CurvePoint,
    Finding,
    GpuSample,
    GpuScore,
    HostSample,
    NodeSampled,
    PoolReviewed,
    RankVerdict,
)

EVIL = (
    "<img src=x onerror=\"alert('img')\"><script>alert('script')</script>'\"><svg onload=alert(3)>"
    "\x1b[31;1mred\x1b]0;title\x07\u202egnorw ${alert(4)} javascript:alert(5) {{1234*5678}} &lt;b&gt;"
)
"""Markup, escapes of a terminal, a change of direction. Nothing of it may be more than text."""

NODES: dict[str, dict[str, Any]] = {
    "node-1": {},
    "node-2": {},
    "node-3": {"gpus": 8, "model": f"Emulated GPU {EVIL}"[:250]},
    "node-4": {"drained": True},
    "node-5": {"ready": False},
    "node-6": {"gpus": 0},
}
REPORTING = ("node-1", "node-2", "node-3", "node-4")  # node-5 is lost, and node-6 falls silent
WHY = "the first that was free"
SAMPLE_SECONDS = 0.5
QUEUED = 40
SERVES: dict[str, Any] = {
    "kind": "inference",
    "service": {"port": 8000, "ready": "/healthz"},
    "objective": {"latency": "200ms", "percentile": 95, "rate": 40},
    "role": {"replicas": {"min": 0, "want": 2, "max": 4}},
}


class Shown(Struct):
    """The jobs by name, all of alice but `secret-of-bob` and `waits-of-bob`."""

    world: World
    jobs: dict[str, Job]

    @property
    def url(self) -> str:
        return self.world.gateway.url

    def id(self, name: str) -> str:
        return self.jobs[name].id


@asynccontextmanager
async def shown(servers: Place, *, queued: int = QUEUED) -> AsyncIterator[Shown]:
    async with opened(servers) as world:
        more = [node(name, **fields) for name, fields in NODES.items() if name not in ("node-1", "node-2")]
        lease = await servers.stores.scheduler.take_lease("scheduler/default", holder="test", seen=None)
        for each in more:
            found = structs.replace(each, seen_at=time.time() - (0 if each.ready else 300))
            await servers.stores.scheduler.save_node(lease or world.lease, found, event="joined", cause="it reported")
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while len((await world.admin.nodes()).nodes) < len(NODES):  # noqa: ASYNC110 - it looks now and then
                await asyncio.sleep(0.05)
        made = Shown(world, {})
        await _jobs(made)
        await _queue(made, queued)
        await _scores(made)
        for name, node_id in (("chat", "node-2"), ("major", "node-1"), ("broken", "node-1"), ("done", "node-1")):
            job = made.jobs[name]
            await world.nodes[node_id].write(job.id, b"ready\n", end=job.state.final)
        log = f"plain\n\x1b[31mred\x1b[0m {EVIL}\n\x1b]8;;javascript:alert(6)\x07link\x1b]8;;\x07\n"
        for rank in (0, 1):
            await world.nodes["node-1"].write(made.id("mnist"), log.encode(), rank=rank)
        model = JobFile(path="results/model.pt", bytes=2048, modified_at=time.time())
        world.nodes["node-1"].files[made.id("mnist")] = model
        over = asyncio.Event()
        telling = asyncio.create_task(_tell(made, over))  # a fixture ends in another task: no group may span it
        yield made
        over.set()
        await telling


async def _jobs(made: Shown) -> None:
    world, jobs = made.world, made.jobs
    jobs["mnist"] = await world.running(
        name="mnist",
        placement=placement(("node-1", 0), ("node-1", 1), why="the two GPUs of node-1 that were free"),
        replicas=2,
        role={"replicas": {"min": 1, "want": 2, "max": 4}},
        resize={"how": "live"},
        labels={"team": "vision", "note": EVIL},
        env={"NOTE": EVIL.replace("\x1b", "").replace("\x07", "")},
        command=["python3", "train.py", EVIL],
    )
    jobs["lender"] = await world.running(name="lender", placement=placement(("node-2", 0), ("node-2", 1)), replicas=2)
    chat = await world.running(name="chat", placement=_extra(("node-2", 2), ("node-2", 3)), **SERVES)
    load = Cause(code=CauseCode.LOAD, sentence="41 requests/s need 3 replicas")
    chat = await world.go(chat, JobEvent.SCALED, cause=load, size={"worker": 3})
    loan = Loan(lender=jobs["lender"].id, rank=1, gpus=1, ranks=1, since=time.time() - 30)
    where = structs.replace(_extra(("node-2", 2), ("node-2", 3)), changes=1)
    jobs["chat"] = await world.go(chat, JobEvent.RESIZED, placement=where, loans=(loan,))
    for name, request in (("major", 700), ("minor", 300)):
        one = placement(("node-1", 2), why=WHY)
        share = Share(request=request, memory=4 * GIB)
        one = structs.replace(one, allocations=(structs.replace(one.allocations[0], share=share),))
        role = {"share": {"request": request / 1000, "memory": "4GiB"}}
        jobs[name] = await world.running(name=name, placement=one, gpus=0, role=role, kind="batch")
    broken = await world.running(name="broken", placement=placement(("node-1", 3), why=WHY))
    ended = Cause(code=CauseCode.EXITED, sentence=f"rank 0 ended with status 3: {EVIL}", numbers={"exit_code": 3})
    jobs["broken"] = await world.go(broken, JobEvent.FAILED, cause=ended, exit_code=3)
    done = await world.running(name="done", placement=placement(("node-1", 3), why=WHY))
    jobs["done"] = await world.go(done, JobEvent.SUCCEEDED, exit_code=0)
    again = await world.running(name="again", placement=placement(("node-3", 1)))
    again = await world.go(again, JobEvent.STOPPING, JobEvent.REQUEUED)
    again = await world.go(again, JobEvent.PLACED, placement=placement(("node-3", 2)))
    jobs["again"] = await world.go(again, JobEvent.STARTING, JobEvent.STARTED)
    jobs["secret-of-bob"] = await _of_bob(made, "secret-of-bob")
    theirs = await world.go(jobs["secret-of-bob"], JobEvent.PLACED, placement=placement(("node-3", 4), ("node-3", 5)))
    jobs["secret-of-bob"] = await world.go(theirs, JobEvent.STARTING, JobEvent.STARTED)


async def _of_bob(made: Shown, name: str) -> Job:
    accepted = await made.world.bob.submit(spec(name, replicas=2, labels={"whose": "bobs-label"}))
    return await admitted(made.world.place, made.world.lease, accepted.id)


async def _queue(made: Shown, queued: int) -> None:
    wants = await made.world.submitted(name="wants-eight", gpus=8, priority=5, labels={"team": "vision"})
    why = Cause(
        code=CauseCode.NO_ROOM,
        sentence="wants 8 GPUs on one node; the most free is 5, on node-3",
        numbers={"wanted": 8.0, "most_free": 5.0},
    )
    made.jobs["wants-eight"] = await made.world.go(wants, JobEvent.WAITING, cause=why)
    made.jobs["waits-of-bob"] = await _of_bob(made, "waits-of-bob")
    for number in range(queued):
        await made.world.alice.submit(spec(f"queued-{number}", gpus=1 + number % 8, labels={"team": f"t-{number % 3}"}))
    await admitted(made.world.place, made.world.lease, wants.id)


async def _scores(made: Shown) -> None:
    now, stores = time.time(), made.world.place.stores
    known: dict[str, Any] = {
        "job_class": "compute",
        "source": "jobs",
        "confidence": 0.9,
        "samples": 40,
        "measured_at": now - 60,
    }
    slow = GpuScore(node_id="node-1", gpu_index=1, score=1.42, **known)
    away = GpuScore(node_id="node-3", gpu_index=7, score=2.5, quarantined_until=now + 3600, **known)
    await stores.scorer.save_scores([slow, away], at=now)
    points = tuple(CurvePoint(replicas=n, cpus=float(n), speed=60.0 * n**0.8, windows=4) for n in (1, 2, 3))
    await stores.scorer.save_curves([Curve(subject=f"job:{made.id('mnist')}", pool="default", points=points, at=now)])


async def _tell(made: Shown, over: asyncio.Event) -> None:
    """What executors, telemetry, the router and the reallocator would tell, again and again until it is over."""
    place, began = made.world.place, time.time()
    mnist, chat = made.id("mnist"), made.id("chat")
    verdict = RankVerdict(
        job_id=mnist,
        epoch=0,
        rank=0,
        code="cpu-quota-bound",
        sentence=f"rank 0 is held back by its CPUs {EVIL}",
        since=began,
    )
    finding = Finding(code="cpu-quota-bound", job_id=mnist, node_id="node-1", sentence="mnist would go faster")
    ends = tuple(
        Endpoint(job_id=chat, epoch=0, rank=rank, port=4000 + rank, ready=True, ready_at=began) for rank in (0, 1)
    )
    async with AsyncExitStack() as stack:
        users = ("executor-node-1", "executor-node-2", "telemetry-node-1", "telemetry-node-2", "router", "reallocator")
        buses = {user: await stack.enter_async_context(place.bus(user)) for user in users}
        seq = 0
        while not over.is_set():
            seq, now = seq + 1, time.time()
            step = (now - began) * 20 + 100
            pace = Pace(window_seconds=30.0, steps=60, steps_rate=20.0, samples_rate=640.0, step_seconds=0.05)
            progress = {"step": float(int(step)), "steps": 20_000.0, "loss": 2.0 / math.sqrt(step / 100), "epoch": 1.0}
            runs = tuple(
                RunProgressed(job_id=mnist, epoch=0, rank=rank, progress=progress, pace=pace, at=now) for rank in (0, 1)
            )
            await buses["executor-node-1"].publish(ProgressSeen(node_id="node-1", runs=runs))
            seen = EndpointsSeen(node_id="node-2", incarnation=1, seq=seq, at=now, endpoints=ends)
            await buses["executor-node-2"].publish(seen)
            await place.stores.scheduler.touch_nodes(made.world.lease, REPORTING, at=now)
            for name in ("node-1", "node-2"):
                await buses[f"telemetry-{name}"].publish(_sampled(name, seq, now))
            served = ServiceServed(job_id=chat, arrived=20 * seq, queued=seq % 3)
            await buses["router"].publish(ServicesServed(router="r-1", boot="a", seq=seq, at=now, services=(served,)))
            reviewed = PoolReviewed(pool="default", at=now, verdicts=(verdict,), findings=(finding,))
            await buses["reallocator"].publish(reviewed)
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), SAMPLE_SECONDS)


def _sampled(name: str, seq: int, now: float) -> NodeSampled:
    gpus = tuple(
        GpuSample(
            index=index,
            uuid=f"EMULATED-{index}",
            model="Emulated GPU",
            emulated=True,
            provider="emulated",
            utilisation=0.5 + 0.4 * math.sin(now / 7 + index),
            memory_used=(index + 1) * 3 * GIB,
            memory_total=16 * GIB,
        )
        for index in range(4)
    )
    host = HostSample(cpus=64, cpus_used=20 + 5 * math.sin(now / 5), memory_total=256 * GIB, memory_used=90 * GIB)
    return NodeSampled(node_id=name, pool="default", at=now, host=host, gpus=gpus, boot="a", seq=seq)


def _extra(*gpus: tuple[str, int]) -> Placement:
    found = placement(*gpus, why=WHY)
    return structs.replace(found, allocations=tuple(structs.replace(one, extra=True) for one in found.allocations))
