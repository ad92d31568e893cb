"""A whole cluster of real processes on emulated GPUs, services in it, and clients in processes of their own."""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from tests.bench.serving.client import Answer, Plan, read
from tests.support.builders import spec
from tests.support.cluster import Cluster, embedded_cluster
from tests.support.programs import program
from weft.domain.job import FINAL, JobState
from weft.domain.spec import JobSpec
from weft.messages.http import JobView

NODES, GPUS = 2, 4
SETTINGS = {
    "REALLOCATOR_PARTITION": "on",
    "REALLOCATOR_PARTITION_SECONDS": "2",
    "REALLOCATOR_PARTITION_COOL_DOWN_SECONDS": "4",
    "REALLOCATOR_REVIEW_SECONDS": "1",
}
BEGIN_S = 3.0  # until a client that was started sends its first request


def model(
    name: str,
    *,
    milliseconds: float,
    least: int = 0,
    want: int = 1,
    most: int = 8,
    gpus: int = 1,
    slots: int = 2,
    load_s: float = 1.0,
    latency: str | None = None,
    rate: float = 10.0,
    **rules: object,
) -> JobSpec:
    """A service that serves the emulated model; a request takes that long."""
    replicas = {"min": least, "want": want, "max": most}
    objective: dict[str, Any] = {}
    if latency is not None:
        objective["objective"] = {"latency": latency, "percentile": 99, "rate": rate}
    return spec(
        name,
        kind="inference",
        command=list(program("model")),
        env={"SERVICE_MS": f"{milliseconds:g}", "SLOTS": str(slots), "LOAD_SECONDS": f"{load_s:g}"},
        roles={"worker": {"gpus": gpus, "cpus": 0.1, "memory": "128MiB", "replicas": replicas}},
        grace="2s",
        service={"ready": "/healthz", "concurrency": slots, "drain": "5s", "start": "60s", **rules},
        **objective,
    )


class Rig:
    def __init__(self, cluster: Cluster, home: Path) -> None:
        self.cluster, self.client = cluster, cluster.client
        self._home = home
        self._clients = 0

    async def serve(self, made: JobSpec) -> tuple[str, str]:
        """The job and its URL; ready, if it wants replicas."""
        job_id = (await self.client.submit(made)).id
        wanted = made.roles["worker"].replicas.want
        await self.cluster.until(job_id, lambda job: is_ready(job, wanted))
        return job_id, f"{self.cluster.local.router_url}/s/{job_id}/v1/generate"

    @asynccontextmanager
    async def load(
        self, url: str, steps: Sequence[tuple[float, float]], seconds: float, *, seed: int, timeout_s: float = 30.0
    ) -> AsyncIterator["Load"]:
        """A client that sends these rates while the block runs, and until it has all its answers."""
        self._clients += 1
        plan_file, out = self._home / f"plan-{self._clients}", self._home / f"answers-{self._clients}"
        plan = Plan(
            url=url,
            token=self.cluster.local.token,
            steps=tuple(steps),
            seconds=seconds,
            seed=seed,
            begins_at=time.time() + BEGIN_S,
            timeout_s=timeout_s,
        )
        plan_file.write_bytes(msgspec.json.encode(plan))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.bench.serving.client", str(plan_file), str(out)
        )
        load = Load(plan)
        try:
            yield load
            async with asyncio.timeout(seconds + timeout_s + 60.0):
                assert await process.wait() == 0, "the client failed"
            load.answers = read(out)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def end(self, *job_ids: str) -> None:
        for job_id in job_ids:
            await self.client.cancel(job_id)
        for job_id in job_ids:
            await self.cluster.until(job_id, lambda job: job.state in FINAL)

    async def replicas(self, job_id: str) -> list[tuple[str, int]]:
        """Of each ready replica its node, and its process by the port where it listens."""
        endpoints = (await self.client.endpoints(job_id)).endpoints
        return [(each.node_id, listener(each.port)) for each in endpoints if each.ready]


class Load:
    """What a client sent, and, after the block, what came of it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.answers: list[Answer] = []

    def at(self, seconds: float) -> float:
        """How long until so many seconds after its first possible request."""
        return max(0.0, self.plan.begins_at + seconds - time.time())


def is_ready(job: JobView, wanted: int) -> bool:
    assert job.state not in FINAL, f"{job.name} ended: {job.state}"
    return job.service is not None and (job.service.ready or 0) >= wanted and job.state is JobState.RUNNING


def listener(port: int) -> int:
    """The process that listens on this port of this machine."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                if any(os.readlink(fd) in inodes for fd in (process / "fd").iterdir()):
                    return int(process.name)
    raise AssertionError(f"nothing listens on port {port}")


@asynccontextmanager
async def rig(settings: Mapping[str, str] | None = None, *, nodes: int = NODES, gpus: int = GPUS) -> AsyncIterator[Rig]:
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as home:
        folder = Path(home)
        async with embedded_cluster(
            folder / "cluster", nodes=nodes, gpus=gpus, settings={**SETTINGS, **(settings or {})}
        ) as made:
            yield Rig(made, folder)
