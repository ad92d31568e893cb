"""A whole cluster for tests and benchmarks: real servers, the services as processes, emulated GPUs."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path

from msgspec import Struct

from weft.client import Client
from weft.domain.job import FINAL, JobState
from weft.messages.http import JobView
from weftd.cli.local import LocalCluster, Options, running

SECONDS_MAX = 60.0
LOOK_SECONDS = 0.05


class Cluster(Struct, frozen=True):
    local: LocalCluster
    client: Client

    async def until(self, job: str, so: Callable[[JobView], bool], *, seconds_max: float = SECONDS_MAX) -> JobView:
        """The job when it is so. Raises TimeoutError with what it is instead."""
        return await until(self.client, job, so, seconds_max=seconds_max)

    async def ended(self, job: str, *, seconds_max: float = SECONDS_MAX) -> JobView:
        return await self.until(job, lambda view: view.state in FINAL, seconds_max=seconds_max)

    async def state(self, job: str, *states: JobState, seconds_max: float = SECONDS_MAX) -> JobView:
        return await self.until(job, lambda view: view.state in states, seconds_max=seconds_max)


async def until(
    client: Client, job: str, so: Callable[[JobView], bool], *, seconds_max: float = SECONDS_MAX
) -> JobView:
    view = None
    try:
        async with asyncio.timeout(seconds_max):
            while not so(view := await client.job(job)):  # noqa: ASYNC110 -- progress is no event
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError as error:
        raise TimeoutError(f"{job} after {seconds_max:g} s: {view}") from error
    return view


@asynccontextmanager
async def embedded_cluster(
    home: Path, *, nodes: int = 2, gpus: int = 4, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Cluster]:
    """A cluster in this folder for as long as the block lasts; of its processes and its servers' data nothing stays."""
    own = dict(settings or {})
    contained = own.get("EXECUTOR_RUNTIME") == "docker" and "EXECUTOR_CLUSTER" not in own
    if contained:  # another cluster on the same engine would take these containers for its own, and remove them
        own["EXECUTOR_CLUSTER"] = f"test-{uuid.uuid4().hex[:8]}"
    options = Options(nodes=nodes, emulated_gpus=gpus, port=0, settings=own)
    try:
        async with (
            running(home, options, erase=True) as local,
            Client(local.url, local.token) as client,
        ):
            yield Cluster(local, client)
    finally:
        if contained:
            await asyncio.to_thread(_remove_network, f"{own['EXECUTOR_CLUSTER']}-alone")


def _remove_network(name: str) -> None:
    import docker  # slow, and few clusters have containers

    with closing(docker.from_env()) as engine:
        for network in engine.networks.list(names=[name]):
            network.remove()
