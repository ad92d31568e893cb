"""A real cluster of one node whose jobs are containers, and an ear on its bus."""

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from msgspec import Struct

from tests.bench.nearchus.image import make_image, remove_network
from tests.support.cluster import Cluster
from weft.bus.nats import NatsBus
from weft.client import Client
from weft.domain.job import JobState
from weft.domain.spec import JobSpec
from weft.messages.http import EventView, JobView
from weft.messages.nodes import ProgressSeen, RunProgressed
from weft.messages.signals import NodeSampled, PoolReviewed
from weft.servers import status
from weftd.cli.local import LocalCluster, Options, running

CPUS = 2.0
START_SECONDS_MAX = 180.0  # on a busy machine an engine takes long
END_SECONDS_MAX = 60.0
HEARD_KEPT = 200_000

# A window is as long as a run here allows: these are minutes, where a job's own are hours.
SETTINGS = {
    "EXECUTOR_RUNTIME": "docker",
    "TELEMETRY_RUNTIME": "docker",
    "EXECUTOR_PULL": "0",
    "REALLOCATOR_WINDOW_SECONDS": "5",
    "REALLOCATOR_REVIEW_SECONDS": "2",
}


class Heard(Struct, frozen=True):
    """What came over the bus, and when, on a clock that does not jump and on the one that dates."""

    at: float
    wall: float
    message: NodeSampled | ProgressSeen | PoolReviewed


class Lab:
    def __init__(self, cluster: Cluster, image: str) -> None:
        self.image = image
        self.client = cluster.client
        self.heard: list[Heard] = []
        self._cluster = cluster

    async def hear(self, message: NodeSampled | ProgressSeen | PoolReviewed) -> None:
        self.heard.append(Heard(time.monotonic(), time.time(), message))
        del self.heard[:-HEARD_KEPT]

    @asynccontextmanager
    async def job(self, spec: JobSpec) -> AsyncIterator[str]:
        """Its id, once every rank runs; cancelled at the end."""
        submitted = await self.client.submit(spec)
        try:
            await self.until(submitted.id, JobState.RUNNING, seconds_max=START_SECONDS_MAX)
            yield submitted.id
        finally:
            await self.end(submitted.id)

    async def until(self, job: str, *states: JobState, seconds_max: float) -> JobView:
        """Raises TimeoutError when it is none of these in time, or has ended otherwise."""
        ended = (*states, JobState.FAILED, JobState.CANCELLED)
        view = await self._cluster.state(job, *ended, seconds_max=seconds_max)
        if view.state not in states:
            log = await self.client.read_log(job, tail=2000)
            raise TimeoutError(f"{view.name} is {view.state}: {view.waiting_for or view.stopping_for} {log.decode()}")
        return view

    async def end(self, job: str) -> None:
        view = await self.client.job(job)
        if not view.state.final:
            await self.client.cancel(job)
        await self._cluster.ended(job, seconds_max=END_SECONDS_MAX)

    async def story(self, job: str) -> tuple[EventView, ...]:
        return await self.client.story(job)

    def progress(self, job: str) -> dict[int, list[tuple[float, RunProgressed]]]:
        """What each rank told, with when it was heard."""
        found: dict[int, list[tuple[float, RunProgressed]]] = {}
        for heard in self.heard:
            if isinstance(heard.message, ProgressSeen):
                for run in heard.message.runs:
                    if run.job_id == job:
                        found.setdefault(run.rank, []).append((heard.at, run))
        return found

    def speed(self, job: str, began: float, ended: float) -> float:
        """Samples per second of all its ranks between two moments of the clock that does not jump."""
        total = 0.0
        for told in self.progress(job).values():
            points = [(at, run.progress["samples"]) for at, run in told if "samples" in run.progress]
            total += _at(points, ended) - _at(points, began)
        return total / (ended - began)


def _at(points: list[tuple[float, float]], moment: float) -> float:
    """Between two reports it went on evenly; before the first there was nothing."""
    before = (points[0][0], 0.0) if points else (moment, 0.0)
    for point in points:
        if point[0] >= moment:
            part = (moment - before[0]) / (point[0] - before[0]) if point[0] > before[0] else 1.0
            return before[1] + max(0.0, part) * (point[1] - before[1])
        before = point
    return before[1]


@asynccontextmanager
async def lab(
    *,
    cpus: float = CPUS,
    settings: Mapping[str, str] | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> AsyncIterator[Lab]:
    """One for as long as the block lasts; nothing of it stays. Raises ImageMissingError."""
    image = await asyncio.to_thread(make_image)
    with ExitStack() as leaving:
        folder = leaving.enter_context(tempfile.TemporaryDirectory(prefix="weft-nearchus-", ignore_cleanup_errors=True))
        home = Path(folder)
        os.chmod(home, 0o711)  # so that Postgres' own user reaches its folder
        mine = {**SETTINGS, "EXECUTOR_CLUSTER": home.name, **(settings or {})}
        leaving.callback(remove_network, f"{home.name}-alone")
        options = Options(nodes=1, emulated_gpus=1, cpus=cpus, port=0, settings=mine)
        async with (
            running(home / "home", options, tell=tell, erase=True) as local,
            Client(local.url, local.token) as client,
            _ear(local) as bus,
        ):
            made = Lab(Cluster(local, client), image)
            for kind in (NodeSampled, ProgressSeen, PoolReviewed):
                await bus.subscribe(kind, made.hear)
            yield made


@asynccontextmanager
async def _ear(local: LocalCluster) -> AsyncIterator[NatsBus]:
    nats = (await status(local.home.root)).nats
    assert nats is not None
    password = local.credentials.nats_password_file("operator").read_text().strip()
    async with NatsBus.connect(
        f"nats://127.0.0.1:{nats.port}", name="nearchus", user="operator", password=password
    ) as bus:
        yield bus
