"""An executor and a telemetry as processes, on a NATS server."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.nats_server import NatsServer
from weftd.cli.local.leftovers import kill_runs


@asynccontextmanager
async def executor(
    server: NatsServer, home: Path, *, keeping: bool = False, **settings: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The executor of node-1, with two emulated GPUs. It is killed at the end, and its jobs too unless `keeping`."""
    environ = {**_environ(server, home, "EXECUTOR"), "EXECUTOR_CGROUPS": "0", **settings}
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "weftd.executor", env=environ)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()
        if not keeping:
            kill_runs(home.parent)


@asynccontextmanager
async def telemetry(server: NatsServer, home: Path) -> AsyncIterator[None]:
    """The telemetry of node-1, killed at the end."""
    environ = _environ(server, home, "TELEMETRY")
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "weftd.telemetry", env=environ)
    try:
        yield
    finally:
        process.kill()
        await process.wait()


def _environ(server: NatsServer, home: Path, prefix: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "WEFT_NATS_URL": server.url,
        "WEFT_EXIT_WITH_PARENT": "1",
        f"{prefix}_NODE_ID": "node-1",
        f"{prefix}_HOME": str(home),
        f"{prefix}_EMULATED_GPUS": "2",
    }
