"""An executor as a process, on a NATS server."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from services.cli.local.leftovers import kill_runs
from tests.support.nats_server import NatsServer


@asynccontextmanager
async def executor(
    server: NatsServer, home: Path, *, keeping: bool = False, **settings: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """That of node-1, with two emulated GPUs; killed at the end, and its jobs with it unless they are for `keeping`."""
    environ = {
        "PATH": os.environ["PATH"],
        "WEFT_NATS_URL": server.url,
        "WEFT_EXIT_WITH_PARENT": "1",
        "EXECUTOR_NODE_ID": "node-1",
        "EXECUTOR_HOME": str(home),
        "EXECUTOR_EMULATED_GPUS": "2",
        "EXECUTOR_CGROUPS": "0",
        **settings,
    }
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "services.executor", env=environ)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()
        if not keeping:
            kill_runs(home.parent)
