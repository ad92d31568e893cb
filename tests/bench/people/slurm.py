"""`squeue` and `sacct` over many jobs, each a process as a person starts it."""

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.bench.figures import Aim
from tests.support.filled import fill_ended, fill_queued
from tests.support.gateway import place
from tests.support.gateway_world import World, opened
from weftd.cli.slurm.numbers import number_of

JOBS, QUICK_JOBS, RUNS, QUICK_RUNS = 20_000, 20_000, 11, 5
SECONDS_AIM = 0.5
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "squeue -j ID": ("squeue", "-j", "{job}"),
    "squeue -t RUNNING": ("squeue", "-t", "RUNNING"),
    "squeue": ("squeue",),
    "sacct -j ID": ("sacct", "-j", "{job}"),
    "sacct": ("sacct", "-S", "now-1hours", "-n", "-P", "-o", "JobID,State"),
}


async def measure(home: Path, *, quick: bool, seed: int) -> dict[str, Aim]:
    """A job of each kind is asked for by its number; the lists have all."""
    commands = home / "commands"
    install = [sys.executable, "-m", "weftd.cli", "slurm", "install", str(commands)]
    await asyncio.to_thread(subprocess.run, install, check=True, stdout=subprocess.DEVNULL)
    found: dict[str, Aim] = {}
    async with place(home / "servers") as servers, opened(servers) as world:
        owner, now, count = servers.stores.owner, time.time(), QUICK_JOBS if quick else JOBS
        await fill_ended(owner, count // 2, began=now - 1800.0, lasting=1700.0)
        await fill_queued(owner, count // 2, at=now - 60.0)
        job = await world.submitted()
        await owner.execute("ANALYZE", timeout=600)
        for name, command in COMMANDS.items():
            typed = [str(commands / command[0]), *(part.format(job=number_of(job.id)) for part in command[1:])]
            took = [await _seconds(world, typed) for _ in range(QUICK_RUNS if quick else RUNS)]
            value = round(statistics.median(took), 3)
            found[f"{name} over {count} jobs, p50, s"] = Aim(value=value, aim=SECONDS_AIM)
    return found


async def _seconds(world: World, command: list[str]) -> float:
    environment = {**os.environ, "WEFT_URL": world.gateway.url, "WEFT_TOKEN": world.tokens["admin"]}
    pipe = asyncio.subprocess.PIPE
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=pipe, stderr=pipe)
    _, error = await process.communicate()
    assert process.returncode == 0, error.decode()[-2000:]
    return time.perf_counter() - began
