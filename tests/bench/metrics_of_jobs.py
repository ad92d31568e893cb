"""Metrics read back, and what the gateway keeps of jobs that report: parts of `python -m tests.bench python`."""

import asyncio
import random
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

import weft
from tests.bench.cpu import memory_of
from tests.support.cluster import Cluster
from weft.bus.nats import NatsBus
from weft.messages.nodes import ProgressSeen, RunProgressed
from weft.servers.nats import configured_port

POINTS, SERIES, READS = 10_000, 100, 5
JOBS, VALUES = 1000, 20
REPORT_SECONDS, REPORTS = 0.5, 60  # as an executor reports


async def read_back(cluster: Cluster, folder: Path, seed: int) -> Mapping[str, float]:
    """The time and the gateway's memory for an answer with every point, whose file is written as an executor does."""
    job = await weft.aio.run(["sh", "-c", 'echo x >"$WEFT_RESULTS/x"'], name="metrics", cpus=0.1)
    await job.result()
    view = await cluster.client.job(job.id)
    await asyncio.to_thread(_write, folder, f"{job.id}/{view.epoch}-0.jsonl", seed)
    gateway = cluster.local.pids["gateway"]
    await cluster.client.metrics(job.id, points=10)
    before = memory_of(gateway)
    _count_peak(gateway)
    took: dict[int, list[float]] = {1000: [], POINTS: []}
    for points in sorted(took) * READS:
        began = time.perf_counter()
        found = await cluster.client.metrics(job.id, points=points)
        took[points].append(time.perf_counter() - began)
        assert (found.points, len(found.at), len(found.series)) == (POINTS, points, SERIES)
    each = {points: statistics.median(those) for points, those in took.items()}
    print(f"{POINTS} points of {SERIES} series: all {each[POINTS]:.2f} s, every tenth {each[1000]:.2f} s")
    return {
        "10,000 points of 100 series read back, s": round(each[POINTS], 3),
        "1,000 of 10,000 points of 100 series, s": round(each[1000], 3),
        "gateway meanwhile, MiB more at its peak": round(_peak_mib(gateway) - before, 1),
    }


async def memory_of_reports(cluster: Cluster, folder: Path) -> Mapping[str, float]:
    """The growth of the gateway's memory while a node reports the newest 20 metrics of each of 1,000 runs."""
    local = cluster.local
    gateway, user = local.pids["gateway"], "executor-node-1"
    before = memory_of(gateway)
    url = f"nats://127.0.0.1:{configured_port(folder / 'cluster' / 'nats')}"
    async with NatsBus.connect(url, name="bench", user=user, password=local.credentials.nats_password(user)) as bus:
        for report in range(REPORTS):
            runs = tuple(
                RunProgressed(
                    job_id=f"j-bench{number:05}",
                    epoch=1,
                    rank=0,
                    progress={f"metric-{name}": report + name / VALUES for name in range(VALUES)},
                    at=time.time(),
                )
                for number in range(JOBS)
            )
            await bus.publish(ProgressSeen(node_id="node-1", runs=runs))
            await asyncio.sleep(REPORT_SECONDS)
    more = memory_of(gateway) - before
    print(f"gateway with {JOBS} jobs that report {VALUES} metrics: {before:.0f} MiB, and {more:.0f} MiB more")
    return {"gateway with 1,000 jobs that report, MiB more": round(more, 1)}


def _write(folder: Path, name: str, seed: int) -> None:
    """Where the node of the job, which left one file among its results, has its metrics."""
    drawn = random.Random(seed)
    (results,) = folder.rglob(f"results/{name.partition('/')[0]}")
    file = results.parents[1] / "metrics" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as rows:
        for row in range(POINTS):
            values = {f"metric-{number}": drawn.random() for number in range(SERIES)}
            rows.write(msgspec.json.encode((1.8e9 + row, values)) + b"\n")


def _count_peak(pid: int) -> None:
    """Count the peak of its memory from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _peak_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))
