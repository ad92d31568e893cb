"""Fair shares over an hour of a saturated cluster in virtual time, by the scheduler's own core; and what a tenant with
20,000 queued jobs costs another, as a ratio within one run: submissions, and the time to start."""

import asyncio
import time
from pathlib import Path
from random import Random

from libs.client import Client
from libs.domain.job import JobState
from libs.domain.quotas import Quota
from libs.planning.policy import Policy
from services.scheduler.thinking.core import Settings
from tests.bench.figures import Aim, quantile
from tests.support.builders import spec
from tests.support.cluster import Cluster, embedded_cluster
from tests.support.scheduler import world

HOUR = 3600.0
STEP_SECONDS = 5.0
WEIGHTS = {"a": 4, "b": 3, "c": 2, "d": 1}
NODES, GPUS = 4, 8
WAITING = 6  # jobs of each tenant that wait at any time: each of them could fill the cluster alone
CROWD = 20_000
AT_ONCE = 16


async def measure(home: Path, *, seed: int, quick: bool) -> dict[str, Aim]:
    farthest = fair_shares(Random(seed))
    submit, start = await crowded(home, crowd=2_000 if quick else CROWD, tries=60 if quick else 300)
    return {
        "fair share of four tenants, farthest from its due over an hour (points)": Aim(value=farthest, aim=3.0),
        "submit p99 of another tenant beside 20,000 queued jobs (ratio)": Aim(value=submit, aim=1.10),
        "time to start of another tenant beside 20,000 queued jobs (ratio)": Aim(value=start, aim=1.10),
    }


def fair_shares(chance: Random) -> float:
    """How far the tenant that is farthest from its due is, in hundredths of all that was held."""
    w = world(nodes=NODES, gpus=GPUS, settings=Settings(policy=Policy("fair", "packed-sticky", "easy")))
    w.core.picture.limit([Quota(name=name, weight=weight) for name, weight in WEIGHTS.items()], w.now)
    held = dict.fromkeys(WEIGHTS, 0.0)
    ends: dict[str, float] = {}
    count = 0
    began = w.now
    while w.now < began + HOUR:
        jobs = list(w.core.picture.jobs.values())
        for name in WEIGHTS:
            for _ in range(WAITING - sum(job.tenant == name and job.state is JobState.QUEUED for job in jobs)):
                count += 1
                w.submit(f"j-{count}", tenant=name, gpus=chance.choice([1, 1, 2, 4]), spec={"time_limit": "6m"})
        for job in jobs:
            if job.state is JobState.RUNNING and job.id not in ends:
                ends[job.id] = w.now + chance.uniform(30.0, 300.0)
            if job.state is JobState.RUNNING and w.now >= ends[job.id]:
                for allocation in job.held:
                    w.nodes[allocation.node_id].end((job.id, job.epoch, allocation.rank), 0)
        w.tick(STEP_SECONDS)
        for node_id in (*w.nodes, *w.nodes):
            w.sync(node_id)
        for job in w.core.picture.jobs.values():
            held[job.tenant] += job.gpus_held * STEP_SECONDS
    total, weights = sum(held.values()), sum(WEIGHTS.values())
    print(
        f"  of {total / HOUR:.1f} GPUs held: " + ", ".join(f"{name} {part / total:.1%}" for name, part in held.items())
    )
    return max(abs(held[name] / total - WEIGHTS[name] / weights) for name in WEIGHTS) * 100


async def crowded(home: Path, *, crowd: int, tries: int) -> tuple[float, float]:
    """Submit p99 and median time to start of a quiet tenant beside the crowd, each over the same without it."""
    async with embedded_cluster(
        home / "weft", nodes=1, gpus=8, settings={"GATEWAY_JOBS_PER_SECOND": "1000"}
    ) as cluster:
        admin = cluster.client
        for name in ("quiet", "crowd"):
            await admin.make_token(name, "bench")
        quiet_token = (await admin.make_token("quiet", "quiet")).token
        crowd_token = (await admin.make_token("crowd", "crowd")).token
        async with Client(cluster.local.url, quiet_token) as quiet, Client(cluster.local.url, crowd_token) as other:
            await _window(quiet, tries // 4)  # the first requests open connections
            submit, start = await _window(quiet, tries)
            await _crowd(cluster, other, crowd)
            beside_submit, beside_start = await _window(quiet, tries)
    print(f"  alone: submit p99 {submit * 1e3:.1f} ms, start {start * 1e3:.0f} ms")
    print(f"  beside {crowd:,} queued jobs: {beside_submit * 1e3:.1f} ms, {beside_start * 1e3:.0f} ms")
    return beside_submit / submit, beside_start / start


async def _crowd(cluster: Cluster, client: Client, crowd: int) -> None:
    """Queue so many jobs that all wait: each wants more GPUs than the node has free beside the quiet tenant's."""
    del cluster
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with gate:
            await client.submit(spec(f"crowd-{number}", gpus=8, command=["sleep", "9999"]))

    await asyncio.gather(*(one(number) for number in range(crowd)))


async def _window(client: Client, tries: int) -> tuple[float, float]:
    """Seconds: the p99 of submissions, one after another, and the median from submission to running."""
    submits: list[float] = []
    starts: list[float] = []
    for number in range(tries):
        began = time.perf_counter()
        job = await client.submit(spec(f"quiet-{number}", gpus=0, command=["true"], priority=10))
        submits.append(time.perf_counter() - began)
        if number % 10 == 0:
            async with asyncio.timeout(60):
                while True:
                    seen = await client.job(job.id)
                    if seen.state not in (JobState.QUEUED, JobState.PLACED, JobState.STARTING):
                        break
                    await asyncio.sleep(0.005)
            starts.append(time.perf_counter() - began)
    return quantile(submits, 0.99), quantile(starts, 0.5)
