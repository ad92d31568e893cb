"""Orders for runs, and waiting for what becomes of them."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from msgspec import structs

from weft.messages.nodes import EndReason, JobOrder, NodeDesired, RankOrder, RoleOrder, RunState, StartRun
from weftd.executor.runs import Run, RunKey, Runtime

WAIT_SECONDS_MAX = 60.0
ENGINE_TRIES = 3


def order(job_id: str = "job-1", *, epoch: int = 1, rank: int = 0, **fields: Any) -> StartRun:
    return StartRun(
        **{
            "job_id": job_id,
            "name": "train",
            "tenant": "alice",
            "epoch": epoch,
            "rank": rank,
            "role": "worker",
            "role_rank": rank,
            "world_size": 1,
            "command": ("true",),
            "cpus": 1.0,
            "memory": 256 << 20,
            "shm": 0,
            "grace": 10.0,
            "master_address": "127.0.0.1",
            "master_port": 0,
            "peers": {fields.get("role", "worker"): ()},
            **fields,
        }
    )


def desired(*orders: StartRun, seq: int = 1, **fields: Any) -> NodeDesired:
    """The answer to a node by which it should run these, and no others."""
    return NodeDesired(seq=seq, jobs=tuple(map(_job_order, orders)), **fields)


def _job_order(run: StartRun) -> JobOrder:
    """The order of one rank from which an executor makes this run."""
    places = {address: place for place, address in enumerate({one for row in run.peers.values() for one in row})}
    roles = [
        RoleOrder(name=name, shm=run.shm, nodes=tuple((places[address], 1) for address in row))
        for name, row in run.peers.items()
    ]
    rank = RankOrder(
        role=list(run.peers).index(run.role),
        **{name: getattr(run, name) for name in RankOrder.__struct_fields__ if name != "role"},
    )
    shared = {name: part for name, part in structs.asdict(run).items() if name in JobOrder.__struct_fields__}
    return JobOrder(**shared, addresses=tuple(places), roles=tuple(roles), ranks=(rank,))


async def until(true: Callable[[], Any], *, seconds_max: float = WAIT_SECONDS_MAX, every: float = 0.02) -> None:
    """Wait until it is true; fail loudly when it does not become so."""
    async with asyncio.timeout(seconds_max):
        while not true():  # noqa: ASYNC110 - what is waited for is of another process
            await asyncio.sleep(every)


async def find(runtime: Runtime, key: RunKey) -> Run | None:
    return next((run for run in await runtime.runs() if run.key == key), None)


async def in_state(runtime: Runtime, key: RunKey, state: RunState) -> Run:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while True:
            run = await find(runtime, key)
            if run is not None and run.state is state:
                return run
            await asyncio.sleep(0.02)


async def whole_log(runtime: Runtime, key: RunKey) -> bytes:
    """All that it wrote, read until the runtime says that there is no more."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        data = b""
        while True:
            chunk = await runtime.read_log(key, offset=len(data), limit=65536)
            data += chunk.data
            if chunk.ended or chunk.missing:
                return data
            await asyncio.sleep(0.02)


async def logged(runtime: Runtime, key: RunKey, text: bytes) -> bytes:
    """The log once `text` is in it."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while True:
            chunk = await runtime.read_log(key, offset=0, limit=1 << 20)
            if text in chunk.data:
                return chunk.data
            await asyncio.sleep(0.02)


def processes_of(asked: StartRun) -> list[int]:
    """All processes that carry this run's environment, in whatever namespace."""
    marker = f"WEFT_JOB_ID={asked.job_id}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdecimal() or marker not in (entry / "environ").read_bytes():
                continue
            if (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(int(entry.name))
        except OSError:
            continue
    return found


async def killed_for_memory(runtime: Runtime, begin: Callable[[], Awaitable[RunKey]], *, engine: bool) -> RunKey:
    """Begin a run that uses more than its memory, and return its key once it has ended as such.

    An engine that is busy does not mark every container that the kernel killed for its memory: 1 of 330 was seen as a
    plain exit with status 137. So it has more than one try.
    """
    key = await begin()
    run = await in_state(runtime, key, RunState.EXITED)
    for _ in range(ENGINE_TRIES - 1 if engine else 0):
        if run.reason is EndReason.OOM:
            break
        assert run.exit_code == 137, run
        key = await begin()
        run = await in_state(runtime, key, RunState.EXITED)
    assert run.reason is EndReason.OOM, run
    return key
