"""Starts runs of the process runtime as fast as it can, to be killed while it does. A test runs it."""

import asyncio
import os
import sys
from pathlib import Path

from tests.support.runs import order
from weftd.executor.files.home import Home
from weftd.executor.machine.node import NodeFacts
from weftd.executor.runtime.limits.cgroup import NoCgroups, find_cgroups
from weftd.executor.runtime.process.runtime import ProcessRuntime


async def main(folder: Path, node_id: str, kind: str, attempt: str) -> None:
    runtime = await ProcessRuntime.open(
        Home(folder / "home"),
        NodeFacts(node_id=node_id, checkpoints=str(folder / "checkpoints"), results=str(folder / "results")),
        inherited=os.environ,
        cgroups=find_cgroups(node_id) if kind == "process-cgroups" else NoCgroups(),
    )
    count = folder / "count"
    script = f'mkdir "{count}/$WEFT_JOB_ID" || echo again >>"{count}/twice"'
    for number in range(60):
        await runtime.start(order(f"job-{attempt}-{number}", command=("sh", "-c", script)))
    await asyncio.sleep(60)


asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
