"""The Python interface on one machine: `python -m tests.bench python [--quick] [--seed N]`.

A cluster of its own with emulated GPUs. `import weft` is timed in processes of their own. Functions and commands start
in turns, each when the one before it has ended. The plain copy is one of aiohttp's own server of the same file to the
same client, in the same minute.
"""

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

import weft
from tests.bench.figures import Aim, line_of
from tests.bench.metrics_of_jobs import memory_of_reports, read_back
from tests.bench.programs_of_python import nothing
from tests.support.cluster import Cluster, embedded_cluster
from weft.client import Client
from weft.domain.job import JobState

IMPORTS, STARTS, CALLS = 15, 15, 1000
FILE_BYTES = 1 << 30
QUICK = 8  # times less of each
LOOK_SECONDS = 0.002
AIMS = {
    "import weft, ms": (150.0, False),
    "import weft and its client, ms": (150.0, False),
    "spawn to running beside weft run, ms": (100.0, False),
    "1,000 results of map, s": (15.0, False),
    "rows of arrays for a map": (1.0, False),
    "fetch beside a plain copy": (0.6, True),
    "bytes that a cut fetch received twice": (0.0, False),
    "10,000 points of 100 series read back, s": (0.2, False),
    "gateway with 1,000 jobs that report, MiB more": (64.0, False),
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench python", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer imports and starts, and a file of an eighth")
    parser.add_argument("--seed", type=int, default=1, help="random seed of the order of the starts and of the file")
    asked = parser.parse_args(arguments)
    found = asyncio.run(_measured(asked.seed, QUICK if asked.quick else 1))
    aims = {name: Aim(value=found[name], aim=aim, at_least=least) for name, (aim, least) in AIMS.items()}
    for name, aim in aims.items():
        print(f"{name}: {aim.value:g}   (aim: {'at least' if aim.at_least else 'at most'} {aim.aim:g})")
    print(line_of(aims, seed=asked.seed))
    return 0 if all(aim.met for aim in aims.values()) else 1


async def _measured(seed: int, less: int) -> Mapping[str, float]:
    found = {
        "import weft, ms": _import_ms("import weft", IMPORTS // less + 1),
        "import weft and its client, ms": _import_ms("import weft; weft.run", IMPORTS // less + 1),
    }
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
        async with embedded_cluster(Path(folder) / "cluster", nodes=2, gpus=8) as cluster:
            os.environ |= {"WEFT_URL": cluster.local.url, "WEFT_TOKEN": cluster.local.token}
            found |= await _starts(cluster, STARTS // less + 1, seed)
            found |= await _map(cluster, CALLS)
            found |= await _fetch(cluster, Path(folder), FILE_BYTES // less, seed)
            found |= await memory_of_reports(cluster, Path(folder))
            found |= await read_back(cluster, Path(folder), seed)
    return found


def _import_ms(program: str, times: int) -> float:
    """The median of a process that imports, less that of one that does nothing."""

    def took(what: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", what], check=True)
        return time.perf_counter() - began

    took(program)  # its byte code is written
    pairs = [(took(program), took("pass")) for _ in range(times)]
    return round(1000 * (statistics.median(a for a, _ in pairs) - statistics.median(b for _, b in pairs)), 1)


async def _starts(cluster: Cluster, times: int, seed: int) -> Mapping[str, float]:
    """From the call to the state running, of a spawned function and of a command, alternately."""
    took: dict[str, list[float]] = {"spawn": [], "run": []}
    await asyncio.to_thread(nothing.remote, 0)
    for _ in range(times):
        for how in random.Random(f"{seed}/{len(took['run'])}").sample(sorted(took), 2):
            began = time.perf_counter()
            job = await asyncio.to_thread(_started, how)
            await _running(cluster.client, job.id)
            took[how].append(time.perf_counter() - began)
            await asyncio.to_thread(job.wait)
    spawn, run = (statistics.median(took[how]) for how in ("spawn", "run"))
    print(f"to running, p50: spawn {spawn * 1000:.0f} ms, weft.run {run * 1000:.0f} ms")
    return {"spawn to running beside weft run, ms": round(1000 * (spawn - run), 1)}


def _started(how: str) -> "weft.Job[Any]":
    return nothing.spawn(0) if how == "spawn" else weft.run("true", cpus=0.1)


async def _running(client: Client, job: str) -> None:
    while True:
        view = await client.job(job)
        if view.state is JobState.RUNNING or view.state.final:
            return
        await asyncio.sleep(LOOK_SECONDS)


async def _map(cluster: Cluster, calls: int) -> Mapping[str, float]:
    before = len((await cluster.client.arrays()).arrays)
    began = time.perf_counter()
    results = await asyncio.to_thread(lambda: list(nothing.map(range(calls))))
    seconds = time.perf_counter() - began
    assert results == list(range(calls)), "in order, and whole"
    rows = len((await cluster.client.arrays()).arrays) - before
    print(f"map: {calls} results in {seconds:.1f} s")
    return {"1,000 results of map, s": round(seconds, 2), "rows of arrays for a map": float(rows)}


async def _fetch(cluster: Cluster, folder: Path, size: int, seed: int) -> Mapping[str, float]:
    script = f'{sys.executable} -c "import random,sys; r=random.Random({seed}); b=r.randbytes(1<<20)\n'
    script += f'for _ in range({size >> 20}): sys.stdout.buffer.write(b)" >"$WEFT_RESULTS/large"'
    job = await weft.aio.run(["sh", "-c", script], name="large")
    await job.result()
    async with _plain_server(folder, size) as url:
        speeds: dict[str, list[float]] = {"plain": [], "fetch": []}
        for turn in range(3):
            began = time.perf_counter()
            await _copy(url, folder / "plain-copy")
            speeds["plain"].append(size / (time.perf_counter() - began))
            began = time.perf_counter()
            await job.fetch("large", folder / f"fetched-{turn}")
            speeds["fetch"].append(size / (time.perf_counter() - began))
            (folder / f"fetched-{turn}").unlink()
    plain, fetch = (statistics.median(speeds[how]) for how in ("plain", "fetch"))
    print(f"copies of {size >> 20} MiB: plain {plain / 1e6:.0f} MB/s, fetch {fetch / 1e6:.0f} MB/s")
    twice = await _cut(cluster, job.id, folder / "cut", size)
    return {"fetch beside a plain copy": round(fetch / plain, 3), "bytes that a cut fetch received twice": float(twice)}


async def _cut(cluster: Cluster, job: str, target: Path, size: int) -> int:
    """How many bytes came twice in a fetch that was cut in the middle and begun again."""
    came, half = 0, asyncio.Event()

    def took(count: int) -> None:
        nonlocal came
        came += count
        if came > size // 2:
            half.set()

    fetching = asyncio.create_task(cluster.client.fetch_file(job, "large", target, took=took))
    await half.wait()
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)
    await cluster.client.fetch_file(job, "large", target, took=took)
    assert os.path.getsize(target) == size  # noqa: ASYNC240 -- one look
    return came - size


@asynccontextmanager
async def _plain_server(folder: Path, size: int) -> AsyncIterator[str]:
    """A server of a file of this size, as a process of its own."""
    file = folder / "plain"
    piece = random.Random(0).randbytes(1 << 20)
    with file.open("wb") as written:
        for _ in range(size >> 20):
            written.write(piece)
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.python", str(file)), stdout=asyncio.subprocess.PIPE
    )
    assert server.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(await server.stdout.readline())}/"
    finally:
        server.kill()
        await server.wait()


async def _copy(url: str, target: Path) -> None:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        with target.open("wb", buffering=0) as file:
            async for chunk in response.content.iter_any():
                file.write(chunk)


async def _serve(path: str) -> None:
    async def file(_: web.Request) -> web.FileResponse:
        return web.FileResponse(path)

    app = web.Application()
    app.router.add_get("/", file)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
