"""A strict pool: telemetry reports a run that drops the hook, the executor kills it, and its neighbour runs on.

The GPU is an emulated one; executor, arbiter, hook and telemetry are the real processes.
"""

import asyncio
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.compiled import Built
from tests.support.control_plane import ControlPlane
from tests.support.executors import executor, telemetry
from tests.support.nats_server import NatsServer
from tests.support.runs import order
from tests.support.tree import PYTHONPATH
from weft.bus.nats import NatsBus
from weft.domain.shares import Share
from weft.messages.nodes import EndReason, Leader, StartRun
from weft.messages.signals import NodeSampled
from weftd.executor.runs import RunKey

MIB = 1 << 20
LAUNCHES = """
import sys, time
from tests.support.driver_client import Driver
driver = Driver()
while True:
    driver.launch(1000)
    driver.synchronize()
"""
WAITS = """
import time
from tests.support.driver_client import Driver
driver = Driver()
time.sleep(3600)
"""


def shared(job_id: str, program: str, *before: str) -> StartRun:
    """A job with half of a GPU."""
    made = order(job_id, gpus=(0,), command=(*before, sys.executable, "-c", program), env={"PYTHONPATH": PYTHONPATH})
    return replace(made, share=Share(request=400, memory=64 * MIB, kind="batch"))


@pytest.mark.parametrize("strict", [True, False])
async def test_a_run_that_drops_the_hook_is_killed_in_a_strict_pool_and_only_told_of_in_another(
    server: NatsServer, control: ControlPlane, tmp_path: Path, built: Built, *, strict: bool
) -> None:
    control.leader, control.strict = Leader(pool="default", epoch=1, holder="s-1", seq=1), strict
    told: dict[str, list[tuple[float, int | None]]] = {"j-out": [], "j-in": [], "j-waits": []}

    async def sampled(message: NodeSampled) -> None:
        for run in message.runs:
            told[run.job_id].append((time.monotonic(), None if run.share is None else run.share.outside))

    home = tmp_path / "home"
    async with (
        executor(server, home, EXECUTOR_SHARES="hook"),
        telemetry(server, home),
        NatsBus.connect(server.url, name="watcher") as bus,
    ):
        await bus.subscribe(NodeSampled, sampled, node_id="node-1")
        out = shared("j-out", LAUNCHES, "env", "-u", "LD_PRELOAD")
        waits = replace(shared("j-waits", WAITS), gpus=(1,))
        await control.want(out, shared("j-in", LAUNCHES), waits)
        for key in (RunKey("j-out", 1, 0), RunKey("j-in", 1, 0), RunKey("j-waits", 1, 0)):
            await control.hears(key, "running")
        async with asyncio.timeout(60):
            while not any(count for _, count in told["j-out"]):  # noqa: ASYNC110 - bounded
                await asyncio.sleep(0.05)
        if strict:
            ended = await control.hears(RunKey("j-out", 1, 0), "exited")
            assert (ended.reason, ended.exit_code, ended.uncontrolled) == (EndReason.STOPPED, 137, True)
            await asyncio.sleep(2.0)
        else:
            await asyncio.sleep(8.0)
            assert control.seen[RunKey("j-out", 1, 0)].state == "running"
        for job_id in ("j-in", "j-waits"):
            assert control.seen[RunKey(job_id, 1, 0)].state == "running"
            assert {count for _, count in told[job_id][-3:]} == {0}
