"""A job that writes 100 MB a second: what its neighbours notice. Run: `python -m tests.bench.loud [docker]`."""

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from msgspec import Struct

from tests.support.cluster import Cluster, embedded_cluster
from weft.domain.job import JobState
from weft.domain.spec import JobSpec, Role

SECONDS = 20.0
RATE = 100 << 20
LIMIT = 256 << 20
LOUD = f"""
import os, time
line = b"x" * 99 + b"\\n"
chunk, began, written = line * 10486, time.monotonic(), 0
while True:
    os.write(1, chunk) == len(chunk) or exit("short")
    written += len(chunk)
    time.sleep(max(0.0, began + written / {RATE} - time.monotonic()))
"""
NEIGHBOUR = """
import time
count = 0
while True:
    sum(range(100_000))
    count += 1
    print(count, flush=True)
    time.sleep(0.02)
"""


class Seen(Struct):
    """What was noticed in SECONDS."""

    steps: int
    read_ms: list[float]
    start_seconds: list[float]

    def text(self) -> str:
        self.read_ms.sort()
        half, late = (self.read_ms[int(len(self.read_ms) * part)] for part in (0.5, 0.99))
        start = sorted(self.start_seconds)[len(self.start_seconds) // 2]
        return (
            f"neighbour {self.steps / SECONDS:.1f} steps/s; its log read in {half:.1f} ms (p50), {late:.1f} ms (p99);"
            f" a new job runs after {start:.2f} s (median of {len(self.start_seconds)})"
        )


async def last_step(cluster: Cluster, job: str) -> int:
    return int((await cluster.client.read_log(job, tail=64)).split(b"\n")[-2])


async def watch(cluster: Cluster, neighbour: str) -> Seen:
    began, first, reads, starts = time.monotonic(), await last_step(cluster, neighbour), list[float](), list[float]()
    while time.monotonic() - began < SECONDS:
        asked = time.monotonic()
        await last_step(cluster, neighbour)
        reads.append((time.monotonic() - asked) * 1000)
        if len(reads) % 50 == 25:
            asked = time.monotonic()
            job = await cluster.client.submit(one("short", "pass"))
            await cluster.ended(job.id)
            starts.append(time.monotonic() - asked)
        await asyncio.sleep(0.02)
    seconds = time.monotonic() - began
    return Seen(round((await last_step(cluster, neighbour) - first) * SECONDS / seconds), reads, starts)


def one(name: str, program: str) -> JobSpec:
    command = ("python3", "-u", "-c", program)
    return JobSpec(name=name, command=command, roles={"worker": Role(cpus=0.5, memory="256MiB")}, grace="1s")


async def measure(home: Path) -> None:
    settings = {"EXECUTOR_LOG_BYTES_MAX": str(LIMIT)}
    async with embedded_cluster(home, nodes=1, gpus=2, settings=settings) as cluster:
        neighbour = (await cluster.client.submit(one("neighbour", NEIGHBOUR))).id
        await cluster.state(neighbour, JobState.RUNNING)
        await asyncio.sleep(1)
        print("alone: ", (await watch(cluster, neighbour)).text(), flush=True)
        loud = (await cluster.client.submit(one("loud", LOUD))).id
        await cluster.state(loud, JobState.RUNNING)
        await asyncio.sleep(1)
        (log,) = home.glob(f"**/logs/{loud}-*.log")  # noqa: ASYNC240 - a small folder
        most, running = 0, True

        async def look() -> None:
            nonlocal most
            while running:
                most = max(most, log.stat().st_blocks * 512)
                await asyncio.sleep(0.05)

        looking, began, size = asyncio.create_task(look()), time.monotonic(), log.stat().st_size
        print("beside:", (await watch(cluster, neighbour)).text(), flush=True)
        running = False
        await looking
        rate = (log.stat().st_size - size) / (time.monotonic() - began) / 1e6
        print(
            f"the loud job wrote {rate:.0f} MB/s; its log took {most >> 20} MiB at most, the limit is {LIMIT >> 20} MiB"
        )
        for job in (loud, neighbour):
            await cluster.client.cancel(job)
            await cluster.ended(job)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
        asyncio.run(measure(Path(folder)))
