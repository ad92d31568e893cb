"""What telemetry itself takes: the real process at 1 Hz beside 8 GPUs and 32 real runs, and what it says on the bus.

Each run is a process with a few threads that do a little now and then, in cgroups and in a network namespace of its
own where this machine lets us make some; which it was is said with the figures. The GPUs are emulated.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import msgspec

from tests.bench.figures import Figures
from tests.support.nats_server import NatsServer
from weft.bus.nats import NatsBus
from weft.messages.signals import GpuProcess, GpuSample, NodeSampled

RUNS, GPUS, THREADS = 32, 8, 4
SETTLE_SECONDS, SECONDS = 8.0, 40.0
CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuacct", "memory", "blkio", "unified")
PROGRAM = f"""
import sys, threading, time
def work():
    while True:
        sum(range(5000))
        time.sleep(0.2)
for _ in range({THREADS - 1}):
    threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
work()
"""
Groups: TypeAlias = dict[str, str]


@contextmanager
def groups() -> Iterator[list[Groups]]:
    """Cgroups for each run: of version 2 or of version 1, or none."""
    name = f"weft-bench-{os.getpid()}"
    if (CGROUPS / "cgroup.controllers").exists():
        roots = {"unified": CGROUPS / name}
    else:
        roots = {one: CGROUPS / one / name for one in CONTROLLERS if (CGROUPS / one).is_dir()}
    made = [root / str(number) for root in roots.values() for number in range(RUNS)]
    try:
        for folder in made:
            folder.mkdir(parents=True)
            if (quota := folder / "cpu.cfs_quota_us").exists():
                quota.write_text("100000")
        yield [{one: str(root / str(number)) for one, root in roots.items()} for number in range(RUNS)]
    except PermissionError:
        yield [{}] * RUNS
    finally:
        for folder in (*made, *roots.values()):
            if folder.exists():
                folder.rmdir()


def start(home: Path, number: int, where: Groups, *, isolated: bool) -> "subprocess.Popen[str]":
    command = [*(("unshare", "-n") if isolated else ()), sys.executable, "-S", "-c", PROGRAM]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    for folder in where.values():
        Path(folder, "cgroup.procs").write_text(str(process.pid))
    folder = home / "runs" / f"job-{number}-1-0"
    folder.mkdir(parents=True)
    record = {"job_id": f"job-{number}", "epoch": 1, "rank": 0, "pid": process.pid, "cgroups": where}
    (folder / "run.json").write_text(json.dumps(record))
    return process


def full_gpu(index: int) -> GpuSample:
    """One whose every number is told, as a GPU of the largest kind may."""
    numbers = {field.name: 0.12345 for field in msgspec.structs.fields(GpuSample) if "float" in str(field.type)}
    counts = {field.name: 12345 for field in msgspec.structs.fields(GpuSample) if "int |" in str(field.type)}
    processes = tuple(
        GpuProcess(pid=100_000 + index, memory_used=1 << 33, sm_utilisation=0.25, job_id=f"job-{index}", epoch=1)
        for _ in range(4)
    )
    uuid = f"GPU-{index:08d}-0000-0000-0000-000000000000"
    told = {**numbers, **counts, "processes": processes, "driver": "570.0"}
    return GpuSample(index=index, uuid=uuid, model="the largest GPU", **told)  # type: ignore[arg-type]


def can_isolate() -> bool:
    return os.geteuid() == 0 and subprocess.run(["unshare", "-n", "true"], check=False).returncode == 0


def used(pid: int) -> tuple[float, float]:
    """CPU seconds of a process so far, and what it has resident, in bytes."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks, pages = int(fields[11]) + int(fields[12]), int(fields[21])
    return ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE")


def telemetry(home: Path, url: str) -> "subprocess.Popen[bytes]":
    settings = {
        "WEFT_NATS_URL": url,
        "TELEMETRY_NODE_ID": "bench",
        "TELEMETRY_HOME": str(home),
        "TELEMETRY_EMULATED_GPUS": str(GPUS),
    }
    return subprocess.Popen([sys.executable, "-m", "weftd.telemetry"], env={**os.environ, **settings})


async def watch(server: NatsServer, process: "subprocess.Popen[bytes]", figures: Figures, how: str) -> None:
    heard: list[NodeSampled] = []

    async def hear(sampled: NodeSampled) -> None:
        heard.append(sampled)

    async with NatsBus.connect(server.url, name="bench") as bus:
        await bus.subscribe(NodeSampled, hear)
        await asyncio.sleep(SETTLE_SECONDS)
        heard.clear()
        before, _ = used(process.pid)
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(SECONDS)
        seconds = asyncio.get_running_loop().time() - began
        after, resident = used(process.pid)
    if not heard or len(heard[-1].runs) != RUNS or len(heard[-1].gpus) != GPUS:
        raise RuntimeError("telemetry did not see all that is there")
    run = heard[-1].runs[0]
    told = [name for name in run.__struct_fields__ if getattr(run, name) is not None]
    sizes = [len(msgspec.json.encode(sampled)) for sampled in heard]
    full = msgspec.structs.replace(heard[-1], gpus=tuple(full_gpu(index) for index in range(GPUS)))
    figures.add(
        f"telemetry, 1 Hz, {GPUS} emulated GPUs, {RUNS} runs of {THREADS} threads ({how}), {seconds:.0f} s: CPU",
        f"{100 * (after - before) / seconds:.2f} % of a core, {resident / 2**20:.0f} MiB resident",
        "< 2 %",
    )
    figures.add(
        "… samples heard, bytes of one",
        f"{len(heard)}, {sum(sizes) // len(sizes)} ({len(told)} of {len(run.__struct_fields__)} fields of a run told)",
    )
    figures.add(
        "… bytes of one whose GPUs tell every field, four processes each (made, not measured)",
        f"{len(msgspec.json.encode(full))}",
    )


async def measure(home: Path, figures: Figures) -> None:
    isolated = can_isolate()
    (home / "nats").mkdir()
    server = NatsServer(home / "nats")
    runs: list[subprocess.Popen[str]] = []
    with groups() as places:
        try:
            runs += [start(home, number, where, isolated=isolated) for number, where in enumerate(places)]
            for one in runs:
                assert one.stdout is not None
                await asyncio.to_thread(one.stdout.readline)
            process = telemetry(home, server.url)
            try:
                how = f"cgroups: {', '.join(places[0]) or 'none'}; {'own' if isolated else 'shared'} network"
                await watch(server, process, figures, how)
            finally:
                process.terminate()
                process.wait()
        finally:
            for one in runs:
                one.kill()
                one.wait()
            server.stop()
