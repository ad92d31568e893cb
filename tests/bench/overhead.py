"""What watching costs: a real scorer, reallocator, NATS and Postgres, and more and more emulated GPUs.

A node of 8 emulated GPUs says each second what telemetry would, and how its 8 single-GPU ranks go on, two jobs of four.
All nodes are one publisher here. Run one size alone: `python -m tests.bench.overhead 512`.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import msgspec
from msgspec import Struct
from nats.aio.client import Client as Nats

from tests.bench.figures import Figures
from tests.support.builders import capacity
from tests.support.nats_server import NatsServer
from tests.support.postgres import Server, embedded
from weft.domain.job import Allocation, Placement
from weft.domain.spec import JobSpec, Role
from weft.messages.nodes import Pace, ProgressSeen, RunProgressed
from weft.messages.signals import GpuSample, HostSample, NodeSampled, RunSample

GPUS = 8  # of a node
RANKS = 4  # of a job
SIZES = (8, 64, 512, 4096, 8192)
WARM_SECONDS, SECONDS = 20, 40
TICKS = os.sysconf("SC_CLK_TCK")
SERVICES = ("scorer", "reallocator")
TABLES = ("gpu_scores", "workload_classes", "curves", "envelopes", "asks", "events")


class Cost(Struct, frozen=True, kw_only=True):
    """Of one size. CPU in parts of a core, memory in MiB, bus in bytes per second, rows written per second."""

    gpus: int
    cpu: dict[str, float]
    memory: dict[str, float]
    bus: float
    said: float  # by the two services, messages per second
    rows: dict[str, int]
    written: float
    behind: float  # how much later than each second the publisher was, at most


async def measure(home: Path, figures: Figures) -> None:
    for gpus in SIZES:
        with tempfile.TemporaryDirectory(dir=home) as folder:
            tell(figures, await cost_of(gpus, Path(folder)))


def tell(figures: Figures, cost: Cost) -> None:
    services = "; ".join(
        f"{name} {cost.cpu[name]:.1%} of a core ({cost.cpu[name] / cost.gpus * 1e6:.0f} µs per GPU and second),"
        f" {cost.memory[name]:.0f} MiB"
        for name in SERVICES
    )
    rows = ", ".join(f"{count} {table}" for table, count in cost.rows.items() if count)
    figures.add(
        f"watching {cost.gpus} emulated GPUs and {cost.gpus // RANKS} jobs, over {SECONDS} s",
        f"{services}; heard {cost.bus / cost.gpus:.0f} B per GPU and second, said {cost.said:.1f} messages/s;"
        f" {cost.written:.1f} rows/s written, there are {rows or 'none'}"
        + (f"; the publisher was {cost.behind:.1f} s late at most" if cost.behind > 1 else ""),
        "the cost per GPU does not grow",
    )


async def cost_of(gpus: int, home: Path) -> Cost:
    (home / "nats").mkdir()
    nats = NatsServer(home / "nats")
    try:
        async with embedded(home) as postgres:
            await postgres.migrate()
            await _populate(postgres, gpus // GPUS)
            async with _services(home, nats.url, postgres) as pids:
                return await _watch(gpus, nats.url, postgres, pids)
    finally:
        nats.stop()


async def _watch(gpus: int, url: str, postgres: Server, pids: dict[str, int]) -> Cost:
    bus = Nats()
    await bus.connect(url)
    said = 0

    async def hear(_: object) -> None:
        nonlocal said
        said += 1

    for subject in ("weft.scores.*", "weft.paces.*", "weft.classes.*", "weft.findings.*", "weft.asks.*"):
        await bus.subscribe(subject, cb=hear)
    owner = await postgres.connect()
    dice, behind, heard = Random(1), 0.0, 0
    began = time.monotonic()
    for second in range(WARM_SECONDS + SECONDS):
        if second == WARM_SECONDS:
            heard = said = 0
            cpu, written, since = (
                {name: _cpu(pid) for name, pid in pids.items()},
                await _written(owner),
                time.monotonic(),
            )
        for node in range(gpus // GPUS):
            for subject, payload in _said(node, second, dice):
                await bus.publish(subject, payload)
                heard += len(subject) + len(payload)
        await bus.flush(30)
        left = began + second + 1 - time.monotonic()
        behind = max(behind, -left)
        await asyncio.sleep(max(0.0, left))
    took = time.monotonic() - since
    cost = Cost(
        gpus=gpus,
        cpu={name: (_cpu(pid) - cpu[name]) / took for name, pid in pids.items()},
        memory={name: _resident(pid) / 2**20 for name, pid in pids.items()},
        bus=heard / took,
        said=said / took,
        rows={table: await owner.fetchval(f"SELECT count(*) FROM {table}") for table in TABLES},
        written=(await _written(owner) - written) / took,
        behind=behind,
    )
    await owner.close()
    await bus.close()
    return cost


def _said(node: int, second: int, dice: Random) -> list[tuple[str, bytes]]:
    node_id, at = f"node-{node}", time.time()
    gpus = tuple(
        GpuSample(
            index=index, uuid=f"EMULATED-{node_id}-{index}", model="Emulated GPU", emulated=True, provider="emulated",
            utilisation=round(dice.uniform(0.9, 1.0), 3), memory_used=12 << 30, memory_total=16 << 30,
            power_watts=round(dice.uniform(290, 300), 1), power_limit_watts=300.0, temperature=66.0,
            sm_clock_mhz=1410.0, sm_clock_max_mhz=1410.0, memory_clock_mhz=1215.0, sm_active=0.8, dram_active=0.4,
        )
        for index in range(GPUS)
    )  # fmt: skip
    runs = tuple(
        RunSample(
            job_id=_job(node, rank // RANKS), epoch=0, rank=rank % RANKS, source="cgroup2",
            cpus_used=round(dice.uniform(0.7, 0.75), 3), cpu_throttled=0.0, cpus_limit=1.0,
            memory_used=700 << 20, memory_limit=1 << 30, disk_read_rate=0.0, disk_write_rate=0.0,
            network_receive_rate=1e6, network_send_rate=1e6, memory_failures_rate=0.0,
        )
        for rank in range(GPUS)
    )  # fmt: skip
    host = HostSample(cpus=64.0, cpus_used=8.0, memory_total=1 << 38, memory_used=1 << 35)
    sampled = NodeSampled(
        node_id=node_id, pool="default", at=at, host=host, gpus=gpus, runs=runs, boot="bench", seq=second + 1
    )
    told = ProgressSeen(
        node_id=node_id,
        runs=tuple(
            RunProgressed(
                job_id=run.job_id, epoch=0, rank=run.rank, at=at, progress={"step": 10.0 * second},
                pace=Pace(
                    window_seconds=30.0, steps=300, steps_rate=10.0, samples_rate=640.0,
                    step_seconds=round(0.1 * dice.lognormvariate(0, 0.01), 5), step_spread=0.01,
                ),
            )
            for run in runs
        ),
    )  # fmt: skip
    return [
        (f"weft.telemetry.{node_id}", msgspec.json.encode(sampled)),
        (f"weft.progress.{node_id}", msgspec.json.encode(told)),
    ]


def _job(node: int, which: int) -> str:
    return f"job-{node}-{which}"


async def _populate(postgres: Server, nodes: int) -> None:
    """Nodes, and jobs that run there, as a scheduler would have left them."""
    spec = msgspec.json.encode(
        JobSpec(name="emulated", command=("train",), roles={"worker": Role(gpus=1)}, labels={"weft/workload": "bench"})
    ).decode()
    has = msgspec.json.encode(capacity(gpus=GPUS)).decode()
    owner = await postgres.connect()
    await owner.execute("SET session_replication_role = replica")  # jobs are not born running
    await owner.executemany(
        "INSERT INTO nodes (id, pool, address, capacity, runtime, not_enforced, ready, version, seen_at)"
        " VALUES ($1, 'default', '127.0.0.1', $2::text::jsonb, 'process', '[]', true, 1, now())",
        [(f"node-{node}", has) for node in range(nodes)],
    )
    ids = [(node, which) for node in range(nodes) for which in range(GPUS // RANKS)]
    await owner.executemany(
        "INSERT INTO submissions (id, tenant, pool, name, spec, spec_hash, submitted_at)"
        " VALUES ($1, 'bench', 'default', 'emulated', $2::text::json, '', now())",
        [(_job(*one), spec) for one in ids],
    )
    await owner.executemany(
        "INSERT INTO jobs (id, tenant, pool, state, last_event, epoch, version, priority, since, started_at, placement)"
        " VALUES ($1, 'bench', 'default', 'running', 'started', 0, 4, 0, now() - interval '1 hour',"
        " now() - interval '1 hour', $2::text::jsonb)",
        [(_job(*one), _placement(*one)) for one in ids],
    )
    await owner.close()


def _placement(node: int, which: int) -> str:
    allocations = tuple(
        Allocation(
            rank=rank, role="worker", node_id=f"node-{node}", gpus=(which * RANKS + rank,), cpus=1.0, memory=1 << 30
        )
        for rank in range(RANKS)
    )
    return msgspec.json.encode(Placement(allocations=allocations)).decode()


@asynccontextmanager
async def _services(home: Path, nats_url: str, postgres: Server) -> AsyncIterator[dict[str, int]]:
    processes: dict[str, asyncio.subprocess.Process] = {}
    try:
        for name in SERVICES:
            secret = home / f"{name}.password"
            secret.write_text(postgres.passwords[name])
            place = postgres.dsn.rpartition("@")[2]
            settings = {
                "WEFT_NATS_URL": nats_url,
                "WEFT_PG_DSN": f"postgresql://weft_{name}@{place}",
                "WEFT_PG_PASSWORD_FILE": str(secret),
            }
            with (home / f"{name}.log").open("wb") as log:
                processes[name] = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", f"weftd.{name}", env={**os.environ, **settings}, stdout=log, stderr=log
                )
        yield {name: process.pid for name, process in processes.items()}
    finally:
        for name, process in processes.items():
            assert process.returncode is None, (home / f"{name}.log").read_text()[-2000:]
            process.terminate()
        for process in processes.values():
            await process.wait()


async def _written(owner: object) -> int:
    """Rows inserted, updated and deleted so far, as Postgres counts them."""
    await owner.execute("SELECT pg_stat_clear_snapshot()")  # type: ignore[attr-defined]
    query = "SELECT COALESCE(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint FROM pg_stat_user_tables"
    return int(await owner.fetchval(query))  # type: ignore[attr-defined]


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def main(sizes: Sequence[int]) -> None:
    figures = Figures()
    for gpus in sizes:
        with tempfile.TemporaryDirectory(prefix="weft-overhead-") as folder:
            tell(figures, await cost_of(gpus, Path(folder)))
    figures.show()


if __name__ == "__main__":
    asyncio.run(main([int(size) for size in sys.argv[1:]] or SIZES))
