"""Two of eight emulated GPUs turn slow by a third while jobs run: when it is known, avoided and, later, forgiven.

A whole cluster with real servers; the jobs are stand-ins whose steps last as long as their emulated GPU says. What is
slowed is a file that an emulated GPU's jobs read: neither scorer nor scheduler sees it.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.figures import Figures
from tests.support.cluster import Cluster, embedded_cluster
from tests.support.programs import PROGRAMS
from weft.domain.job import JobState
from weft.domain.spec import JobSpec, Kind, Role
from weft.emulation.slowdowns import slow_down
from weft.messages.http import GpuView

NODES, GPUS = 2, 4
SLOW = (("node-1", 1), ("node-2", 2))
SLOWDOWN, KNOWN, FORGIVEN = 4 / 3, 1.2, 1.1
BASE_SECONDS = 0.2
WARM_SECONDS = 75.0  # jobs run that long before anything is slowed
SECONDS_MAX = 600.0
COMMAND = ("sh", "-c", f'exec "$WEFT_PYTHON" {PROGRAMS / "paced.py"} --base {BASE_SECONDS}')

Place = tuple[str, int]


async def measure(home: Path, figures: Figures) -> None:
    async with embedded_cluster(home, nodes=NODES, gpus=GPUS) as cluster:
        jobs = [await _start(cluster) for _ in range(NODES * GPUS)]
        await asyncio.sleep(WARM_SECONDS)
        false = max((_score(gpu) for gpu in await _gpus(cluster)), default=1.0)
        _slow(cluster, SLOWDOWN)
        known = await _until(cluster, lambda scores: min(scores[one] for one in SLOW) > KNOWN)
        others = max(score for place, score in (await _scores(cluster)).items() if place not in SLOW)
        avoided, slow_taken, explained = await _probe(cluster, jobs)
        _slow(cluster, 1.0)
        forgiven = await _until(cluster, lambda scores: max(scores[one] for one in SLOW) < FORGIVEN)
    slowed = f"{len(SLOW)} of {NODES * GPUS} emulated GPUs, with a job on each, slowed {SLOWDOWN:.2f} times"
    figures.add(f"{slowed}: until both scores are above {KNOWN:g}", f"{known:.0f} s")
    figures.add(
        f"{slowed}: then both and two others are freed, and four jobs come one by one",
        f"the first {avoided} avoid the slow ones; the next take them all the same: {slow_taken}",
        "2; True (slow is not dead)",
    )
    figures.add(f"{slowed}: the largest score of the others then, and of all before", f"{others:.3f}, {false:.3f}")
    figures.add(f"as fast again: until both scores are below {FORGIVEN:g}", f"{forgiven:.0f} s")
    figures.add("what weft explain says of the first job then", explained)


async def _start(cluster: Cluster) -> str:
    role = Role(gpus=1, cpus=0.5, memory="128MiB")
    spec = JobSpec(name="paced", kind=Kind.TRAINING, command=COMMAND, roles={"worker": role})
    job = (await cluster.client.submit(spec)).id
    await cluster.state(job, JobState.RUNNING)
    return job


async def _probe(cluster: Cluster, jobs: list[str]) -> tuple[int, bool, str]:
    """How many of the jobs that come find a fast GPU before one takes a slow one; and whether the others do then."""
    at = {place: job for job in jobs for place in await _places(cluster, job)}
    fast = [place for place in sorted(at) if place not in SLOW][: len(SLOW)]
    for place in (*SLOW, *fast):
        await cluster.client.cancel(at[place])
    for place in (*SLOW, *fast):
        await cluster.ended(at[place])
    new = [await _start(cluster) for _ in range(2 * len(SLOW))]
    taken = [place for job in new for place in await _places(cluster, job)]
    avoided = next((number for number, place in enumerate(taken) if place in SLOW), len(taken))
    explained = (await cluster.client.explain(new[0])).sentence
    return avoided, set(taken[len(SLOW) :]) == set(SLOW), explained


async def _places(cluster: Cluster, job: str) -> list[Place]:
    view = await cluster.client.job(job)
    return [(run.node_id, gpu) for run in view.runs for gpu in run.gpus]


async def _gpus(cluster: Cluster) -> list[GpuView]:
    return list((await cluster.client.gpus()).gpus)


def _score(gpu: GpuView) -> float:
    return next((score.score for score in gpu.scores if score.job_class == "compute"), 1.0)


async def _scores(cluster: Cluster) -> dict[Place, float]:
    return {(gpu.node_id, gpu.index): _score(gpu) for gpu in await _gpus(cluster)}


def _slow(cluster: Cluster, slowdown: float) -> None:
    for node_id, index in SLOW:
        slow_down(cluster.local.home.node(node_id) / "emulated", index, slowdown)


async def _until(cluster: Cluster, so: Callable[[dict[Place, float]], bool]) -> float:
    """How many seconds it takes."""
    began = time.monotonic()
    async with asyncio.timeout(SECONDS_MAX):
        while not so(await _scores(cluster)):  # noqa: ASYNC110 -- what is stored is no event
            await asyncio.sleep(0.5)
    return time.monotonic() - began
