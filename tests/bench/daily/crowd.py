"""A crowd: what a tenant with 20,000 queued jobs costs another, at submission and until a job starts.

A whole embedded cluster. A quota limits the crowd, so GPUs stay free for the other tenant, whose jobs come one after
the other: without the crowd, while it arrives (told, without an aim), once it is queued and its events are told, and
again without it. The machine itself changes within minutes, so what was measured before and after counts as one.
"""

import asyncio
import random
import time
from pathlib import Path

from msgspec import Struct

from tests.bench.figures import Aim, milliseconds, quantile
from tests.support.builders import spec
from tests.support.cluster import Cluster, embedded_cluster, until
from weft.client import Client
from weft.domain.job import JobState
from weft.messages.http.quotas import QuotaWanted
from weft.messages.http.tenants import TenantWanted

ARRAYS, ELEMENTS = 2, 10_000
GPUS, LIMIT = 4, 2
MORE_MAX = 1.1
ADMITTED_SECONDS_MAX = 300.0
SETTLE_SECONDS = 30.0  # the events of 20,000 submissions are published by then


class Waits(Struct, frozen=True):
    """Of each job, in seconds: its submission over HTTP, and from then until it runs."""

    submits: list[float]
    starts: list[float]


async def measure(home: Path, *, seed: int, quick: bool) -> dict[str, Aim]:
    jobs, elements, settle = (40, 1_000, 3.0) if quick else (1_000, ELEMENTS, SETTLE_SECONDS)
    name = f"bench-{random.Random(seed).randrange(10**6)}"
    async with embedded_cluster(home, nodes=1, gpus=GPUS) as cluster:
        tokens = {each: (await cluster.client.make_token(each, "bench")).token for each in ("crowd", "other")}
        await cluster.client.change_tenant("crowd", TenantWanted(jobs_open_max=10**6, spec_bytes_max=10**9))
        await cluster.client.set_quota("crowd", QuotaWanted(limit=LIMIT))
        async with (
            Client(cluster.local.url, tokens["crowd"]) as crowd,
            Client(cluster.local.url, tokens["other"]) as other,
        ):
            await _waits(other, jobs // 4)  # so that both are measured on a cluster that has worked
            before = await _waits(other, jobs)
            arrays = await _queue(cluster, crowd, name, elements)
            arriving = await _waits(other, jobs // 4)
            await asyncio.sleep(settle)
            beside = await _waits(other, jobs)
            await _cancel(cluster, crowd, arrays)
            await asyncio.sleep(settle)
            after = await _waits(other, jobs)
    alone = Waits(before.submits + after.submits, before.starts + after.starts)
    crowded = f"{ARRAYS * elements} queued"
    for what, waits in (
        ("alone before", before),
        (f"while {crowded} arrive", arriving),
        (f"beside {crowded}", beside),
        ("alone after", after),
    ):
        told = f"submission {milliseconds(waits.submits)}; start {milliseconds(waits.starts)}"
        print(f"{what}: {told}; of {len(waits.starts)} jobs")
    return {
        f"{kind} beside {crowded} jobs of another, {word}, times alone": Aim(
            value=round(quantile(there, part) / quantile(without, part), 3), aim=MORE_MAX
        )
        for kind, without, there in (
            ("submission", alone.submits, beside.submits),
            ("start", alone.starts, beside.starts),
        )
        for word, part in (("p50", 0.5), ("p99", 0.99))
    }


async def _waits(client: Client, jobs: int) -> Waits:
    waits = Waits([], [])
    for _ in range(jobs):
        began = time.perf_counter()
        made = await client.submit(spec("one", command=["true"], gpus=1))
        waits.submits.append(time.perf_counter() - began)
        view = await until(client, made.id, lambda one: one.state is JobState.SUCCEEDED)
        assert view.started_at is not None
        waits.starts.append(view.started_at - view.submitted_at)
    return waits


async def _queue(cluster: Cluster, crowd: Client, name: str, elements: int) -> list[str]:
    """Submit the crowd, and wait until the scheduler has all of it in its queue. Returns the ids of its arrays."""
    arrays = []
    for number in range(ARRAYS):
        asked = spec(f"{name}-{number}", command=["sleep", "100000"], gpus=1, array=f"0-{elements - 1}")
        arrays.append((await crowd.submit(asked)).id)
    deadline = time.monotonic() + ADMITTED_SECONDS_MAX
    while (waiting := (await cluster.client.queue(tenant="crowd", limit=1)).total) < ARRAYS * elements - LIMIT:
        assert time.monotonic() < deadline, f"{waiting} of the crowd wait"
        await asyncio.sleep(1.0)
    return arrays


async def _cancel(cluster: Cluster, crowd: Client, arrays: list[str]) -> None:
    """Cancel the crowd, and wait until nothing of it is open."""
    for array in arrays:
        await crowd.cancel_array(array)
    deadline = time.monotonic() + ADMITTED_SECONDS_MAX
    while left := (await cluster.client.queue(tenant="crowd", limit=1)).total:
        assert time.monotonic() < deadline, f"{left} of the crowd still wait"
        await asyncio.sleep(1.0)
