"""Shells: from the wish to the first prompt, and from a key to its echo, by way of a gateway, NATS and an executor.

Each shell is a `sh` on a terminal beside a job of one node, with plain processes. All of the cluster is on this
machine, so what is measured is Weft's own part: a person's network comes on top.
"""

import random
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from tests.bench.figures import Aim, milliseconds, quantile
from tests.support.builders import spec
from tests.support.cluster import embedded_cluster
from weft.client.sessions import RunSession
from weft.domain.job import JobState

PROMPT_SECONDS_MAX = 1.0
ECHO_MILLISECONDS_MAX = 20.0
KEYS = "abcdefghijklmnopqrstuvwxyz0123456789"

Pieces = AsyncGenerator[tuple[int, bytes], None]


async def measure(home: Path, *, seed: int, quick: bool) -> dict[str, Aim]:
    shells, keys = (5, 60) if quick else (20, 200)
    dice = random.Random(seed)
    prompts: list[float] = []
    echoes: list[float] = []
    async with embedded_cluster(home, nodes=1, gpus=1) as cluster:
        made = await cluster.client.submit(spec("open", command=["sleep", "100000"], env={"PS1": "ready> "}))
        await cluster.state(made.id, JobState.RUNNING)
        for _ in range(shells):
            began = time.perf_counter()
            session = cluster.client.enter(made.id, command=["sh"], tty=True, size=(24, 80))
            async with session, aclosing(session.output()) as pieces:
                await _until(pieces, b"ready> ")
                prompts.append(time.perf_counter() - began)
                typed = dice.choices(KEYS, k=keys // shells)
                echoes += [await _echo(session, pieces, key.encode()) for key in typed]
        await cluster.client.cancel(made.id)
        await cluster.ended(made.id)
    print(f"first prompt: p50 {quantile(prompts, 0.5):.3f} s, longest {max(prompts):.3f} s of {len(prompts)}")
    print(f"echo: {milliseconds(echoes)}, of {len(echoes)}")
    return {
        "shell's first prompt, p50 (s)": Aim(value=round(quantile(prompts, 0.5), 3), aim=PROMPT_SECONDS_MAX),
        "shell's first prompt, longest (s)": Aim(value=round(max(prompts), 3), aim=PROMPT_SECONDS_MAX),
        "echo of a key, p50 (ms)": Aim(value=round(quantile(echoes, 0.5) * 1000, 1), aim=ECHO_MILLISECONDS_MAX),
    }


async def _echo(session: RunSession, pieces: Pieces, key: bytes) -> float:
    """Seconds from one key to its echo."""
    began = time.perf_counter()
    await session.write(key)
    await _until(pieces, key)
    return time.perf_counter() - began


async def _until(pieces: Pieces, wanted: bytes) -> None:
    found = b""
    async for _, data in pieces:
        found += data
        if wanted in found:
            return
    raise RuntimeError(f"the shell ended: {found!r}")
