"""Jobs on a node that holds shares by MPS: what takes the whole GPU is ended, and what loses its daemon is told of it.

Executor and telemetry are the real processes. GPU, driver and daemon are emulated ones.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from libs.domain.cluster import LIMITS_STAY, SHARES_ARE_CEILINGS
from libs.domain.shares import Share
from libs.messages.nodes import EndReason, StartRun
from libs.sharing.native import Built
from services.executor.runs import RunKey
from services.executor.shares.mps import LOST
from tests.support.control_plane import ControlPlane
from tests.support.executors import executor, telemetry
from tests.support.mps import LAUNCHES, daemons, no_daemon_is_left
from tests.support.nats_server import NatsServer
from tests.support.runs import order, until

pytestmark = pytest.mark.alone

MIB = 1 << 20
PIPE = "CUDA_MPS_PIPE_DIRECTORY"
DROPS_IN_PYTHON = f'import os; del os.environ["{PIPE}"]'  # not to be seen in its environment from outside


def shared(job_id: str, *before: str, program: str = LAUNCHES) -> StartRun:
    """A job with a share of a GPU, whose command begins with `before`."""
    path = str(Path(__file__).parents[2])
    made = order(job_id, gpus=(0,), command=(*before, sys.executable, "-c", program), env={"PYTHONPATH": path})
    return replace(made, share=Share(request=300, limit=500, memory=64 * MIB, kind="batch"))


@asynccontextmanager
async def mps_node(server: NatsServer, home: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    settings = {"EXECUTOR_SHARES": "mps", "EXECUTOR_STOP_JOBS_ON_EXIT": "1"}
    with no_daemon_is_left(home):
        async with executor(server, home, **settings) as process, telemetry(server, home):
            yield process


@pytest.mark.parametrize(
    "out",
    [
        shared("j-out", "env", "-u", PIPE),
        shared("j-out", "env", f"{PIPE}=/nowhere"),
        shared("j-out", program=f"{DROPS_IN_PYTHON}\n{LAUNCHES}"),
    ],
    ids=["unset", "wrong", "unset-in-python"],
)
async def test_a_job_that_is_no_client_is_killed_in_any_pool_and_its_neighbours_run_on(
    server: NatsServer, control: ControlPlane, tmp_path: Path, built: Built, out: StartRun
) -> None:
    assert built.hook.is_file()
    async with mps_node(server, tmp_path / "home"):
        await control.want(out, shared("j-in"))
        ended = await control.hears(RunKey("j-out", 1, 0), "exited", seconds_max=30)
        assert (ended.reason, ended.exit_code, ended.uncontrolled) == (EndReason.STOPPED, 137, True)
        await control.hears(RunKey("j-in", 1, 0), "running")
        await asyncio.sleep(4.0)
        assert control.seen[RunKey("j-in", 1, 0)].state == "running"


async def test_a_dead_daemon_is_started_again_and_ends_its_clients_alone_which_are_told_as_lost(
    server: NatsServer, control: ControlPlane, tmp_path: Path, built: Built
) -> None:
    assert built.hook.is_file()
    home = tmp_path / "home"
    async with mps_node(server, home) as process:
        idle = shared("j-idle", program="import time; time.sleep(3600)")
        other = replace(shared("j-other"), gpus=(1,))
        await control.want(shared("j-1"), idle, other)
        keys = [RunKey(job_id, 1, 0) for job_id in ("j-1", "j-idle", "j-other")]
        for key in keys:
            await control.hears(key, "running")
        assert set(control.reports[-1].not_enforced) >= {SHARES_ARE_CEILINGS, LIMITS_STAY}
        await asyncio.sleep(3.0)
        before = daemons(home)
        assert len(before) == 2
        killed = min(before)  # that of GPU 0
        os.kill(before[killed], signal.SIGKILL)
        ended = await control.hears(keys[0], "exited")
        assert (ended.reason, ended.detail, ended.uncontrolled) == (EndReason.LOST, LOST, False)
        await until(lambda: daemons(home).get(killed, before[killed]) != before[killed])
        await control.want(replace(shared("j-1"), epoch=2), idle, other)
        await control.hears(RunKey("j-1", 2, 0), "running")
        await asyncio.sleep(4.0)
        states = {key: control.seen[key].state for key in (RunKey("j-1", 2, 0), *keys[1:])}
        assert set(states.values()) == {"running"}, "each is a client again, or was none"
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 60) == 0
        await until(lambda: not daemons(home))


async def test_an_executor_that_is_killed_leaves_daemons_and_jobs_and_the_next_one_has_them(
    server: NatsServer, control: ControlPlane, tmp_path: Path, built: Built
) -> None:
    assert built.hook.is_file()
    home, key = tmp_path / "home", RunKey("j-1", 1, 0)
    with no_daemon_is_left(home):
        async with executor(server, home, keeping=True, EXECUTOR_SHARES="mps"):
            await control.want(shared("j-1"))
            await control.hears(key, "running")
        before = daemons(home)
        assert len(before) == 1
        async with mps_node(server, home):
            count = len(control.reports)
            await until(lambda: len(control.reports) > count + 2)
            await asyncio.sleep(4.0)
            assert control.seen[key].state == "running"
            assert daemons(home) == before
