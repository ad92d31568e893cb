"""A driver that takes longer to wake up than anybody waits: its GPUs are offered, and used, once it has."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from tests.support.control_plane import ControlPlane
from tests.support.hung_driver import a_driver_that_hangs
from tests.support.nats_server import NatsServer
from tests.support.runs import order, until
from weft.gpus import inventory_in_time
from weft.messages.nodes import EndReason, LogRead, ReadLog
from weftd.executor import __main__ as executor
from weftd.executor.runs import RunKey

SEVERAL = 10  # reports: more than two tries to start


async def test_a_node_offers_its_gpus_when_its_driver_has_woken_up_and_what_runs_goes_on(
    server: NatsServer, control: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "NODE_ID": "node-1",
        "HOME": str(tmp_path / "home"),
        "CGROUPS": "0",
        "GUARD": "0",
        "SYNC_SECONDS": "0.2",
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"EXECUTOR_{name}", value)
    monkeypatch.setenv("WEFT_NATS_URL", server.url)
    monkeypatch.setattr(executor, "inventory_in_time", partial(inventory_in_time, seconds_max=0.05))
    without, with_gpu, stop = RunKey("without", 1, 0), RunKey("with", 1, 0), asyncio.Event()
    with a_driver_that_hangs() as driver:
        running = asyncio.create_task(executor.run(stop))
        try:
            # As after a restart: the other was placed here while the GPUs were known.
            placed = order("with", gpus=(0,), command=("sh", "-c", "echo $CUDA_VISIBLE_DEVICES"))
            await control.want(order("without", command=("sleep", "60")), placed)
            before = await control.hears(without, "running")
            await until(lambda: len(control.reports) > SEVERAL)
            assert {report.capacity.gpus for report in control.reports} == {()}
            assert {run.state for report in control.reports for run in report.runs} <= {"running", "starting"}
            driver.release()
            await until(lambda: control.reports[-1].capacity.gpus)
            assert [gpu.uuid for gpu in control.reports[-1].capacity.gpus] == ["GPU-0"]
            ended = await control.hears(with_gpu, "exited")
            assert (ended.reason, ended.exit_code) == (EndReason.EXIT, 0)
            ask = ReadLog(node_id="node-1", job_id="with", epoch=1, rank=0)
            assert (await control.bus.request(ask, LogRead, seconds_max=5)).data == b"GPU-0\n"
            assert control.seen[without].started_at == before.started_at
            await control.want()
            await control.hears(without, "exited")
        finally:
            stop.set()
            await running
