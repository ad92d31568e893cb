"""The whole cluster, end to end: HTTP in, real processes run, events out. 64 emulated GPUs, the process runtime."""

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from libs.client import Client
from libs.domain.job import FINAL, JobState
from libs.domain.spec import JobSpec
from tests.bench.figures import Figures, milliseconds
from tests.support.builders import spec
from tests.support.cluster import Cluster, embedded_cluster

GPUS = 64
STEADY_SECONDS, STEADY_RATE = 20, 50
NO_OPS = 2000
BACKLOG = 10_000


async def measure(home: Path, figures: Figures) -> None:
    async with embedded_cluster(home, nodes=1, gpus=GPUS, settings={"EXECUTOR_CPUS": "256"}) as cluster:
        await _steady(cluster, figures)
        await _no_ops(cluster, figures)
        await _backlog(cluster, figures)


async def _steady(cluster: Cluster, figures: Figures) -> None:
    """Fifty submissions a second, each a no-op on one GPU: how long until it has its place, until it runs?"""
    wanted = _no_op("steady")
    began = time.monotonic()
    took: list[float] = []
    ids: list[str] = []

    async def one(at: float) -> None:
        await asyncio.sleep(max(0.0, began + at - time.monotonic()))
        asked = time.monotonic()
        ids.append((await cluster.client.submit(wanted)).id)
        took.append(time.monotonic() - asked)

    await asyncio.gather(*(one(n / STEADY_RATE) for n in range(STEADY_SECONDS * STEADY_RATE)))
    await _drained(cluster.client)
    placed, started = await _delays(cluster.client, ids)
    figures.add(f"submit (HTTP, durable) at {STEADY_RATE}/s", milliseconds(took))
    figures.add(f"submit → placed at {STEADY_RATE}/s, by the stamps in the story", milliseconds(placed))
    figures.add(f"submit → started at {STEADY_RATE}/s, by the stamps in the story", milliseconds(started))


async def _no_ops(cluster: Cluster, figures: Figures) -> None:
    """As many no-ops as go through: submitted, run and finished, from an empty queue."""
    began = time.monotonic()
    took = await _submit(cluster.client, [_no_op("noop")] * NO_OPS, at_once=16)
    submitted = time.monotonic() - began
    await _drained(cluster.client)
    whole = time.monotonic() - began
    figures.add(
        f"no-op jobs submitted, run and finished ({NO_OPS}, {GPUS} emulated GPUs)",
        f"{NO_OPS / whole:.0f} jobs/s; submit while busy {milliseconds(took)} ({NO_OPS / submitted:.0f}/s)",
        "> 93 jobs/s; p50 2 ms, p99 200 ms",
    )


async def _backlog(cluster: Cluster, figures: Figures) -> None:
    """The same with ten thousand queued behind a full cluster, and then let go."""
    blocker = _job("blocker", ["sleep", "600"], gpus=GPUS)
    blocking = (await cluster.client.submit(blocker)).id
    await cluster.state(blocking, JobState.RUNNING)
    began = time.monotonic()
    await _submit(cluster.client, [_no_op("backlog")] * BACKLOG, at_once=64)
    figures.add(
        "submissions made durable (HTTP, 64 at once, everything on this machine)",
        f"{BACKLOG / (time.monotonic() - began):.0f}/s",
    )
    await cluster.client.cancel(blocking)
    before = (await cluster.client.cluster()).states
    await asyncio.sleep(30)
    after = (await cluster.client.cluster()).states
    done = before.get(JobState.QUEUED, 0) - after.get(JobState.QUEUED, 0)
    figures.add(f"no-op jobs finished with {BACKLOG} queued, over 30 s", f"{done / 30:.0f} jobs/s", "> 54 jobs/s")


async def _submit(client: Client, specs: Sequence[JobSpec], *, at_once: int) -> list[float]:
    took: list[float] = []
    limit = asyncio.Semaphore(at_once)

    async def one(wanted: JobSpec) -> None:
        async with limit:
            asked = time.monotonic()
            await client.submit(wanted)
            took.append(time.monotonic() - asked)

    await asyncio.gather(*(one(wanted) for wanted in specs))
    return took


async def _drained(client: Client) -> None:
    """Until no job is open."""
    opened = [state for state in JobState if state not in FINAL]
    async with asyncio.timeout(300):
        while (await client.jobs(states=opened, limit=1)).jobs:  # noqa: ASYNC110 -- an empty queue is no event
            await asyncio.sleep(0.2)


async def _delays(client: Client, ids: Sequence[str]) -> tuple[list[float], list[float]]:
    """From the stamps in each job's story: when it was submitted, placed, seen to run by its node."""
    placed: list[float] = []
    started: list[float] = []
    for job_id in ids[:: max(1, len(ids) // 500)]:
        at = {event.type: datetime.fromisoformat(event.time).timestamp() for event in await client.story(job_id)}
        placed.append(at["weft.jobs.placed"] - at["weft.jobs.submitted"])
        started.append(at["weft.jobs.started"] - at["weft.jobs.submitted"])
    return placed, started


def _no_op(name: str) -> JobSpec:
    return _job(name, ["true"], gpus=1)


def _job(name: str, command: list[str], *, gpus: int) -> JobSpec:
    return spec(name, gpus=gpus, command=command, role={"cpus": 1, "memory": "64MiB"})
