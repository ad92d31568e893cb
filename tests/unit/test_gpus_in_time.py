"""Who asks at its start which GPUs there are goes on, and ends when told to, though the driver hangs."""

import argparse
import asyncio
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from tests.support.fake_nvml import FakeGpu, FakeNvml
from tests.support.hung_driver import PATIENCE_SECONDS, a_driver_that_hangs
from weft.domain.cluster import Gpu
from weft.gpus import inventory, inventory_in_time
from weft.service import load
from weftd.cli.local import up
from weftd.executor import __main__ as executor
from weftd.telemetry import __main__ as telemetry
from weftd.telemetry.settings import TelemetrySettings

ROOT = Path(__file__).parents[2]

ENDS = """
import asyncio
from weft.gpus import inventory_in_time
from tests.support.fake_nvml import FakeNvml, FakeGpu

async def run():
    driver = FakeNvml([FakeGpu(uuid="GPU-0")])
    driver.hang()
    print(await inventory_in_time(stop=asyncio.Event(), nvml=driver, seconds_max=0.05))

asyncio.run(run())
"""


async def test_a_driver_that_answers_tells_what_the_inventory_is() -> None:
    driver = FakeNvml([FakeGpu(uuid="GPU-0"), FakeGpu(uuid="GPU-1")])
    found = await inventory_in_time(stop=asyncio.Event(), nvml=driver)
    assert found == inventory(driver)
    assert found


async def test_a_driver_that_hangs_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    driver = FakeNvml([FakeGpu(uuid="GPU-0")])
    driver.hang()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            found = await inventory_in_time(stop=asyncio.Event(), nvml=driver, seconds_max=0.05)
    finally:
        driver.release()
    assert found is None, "nobody knows"
    assert "the NVIDIA driver has not said in 0.05 s which GPUs there are" in caplog.text


async def test_a_driver_that_answers_late_tells_its_gpus() -> None:
    driver = FakeNvml([FakeGpu(uuid="GPU-0")])
    told: list[tuple[Gpu, ...]] = []
    driver.hang()
    try:
        await inventory_in_time(stop=asyncio.Event(), late=told.append, nvml=driver, seconds_max=0.05)
    finally:
        driver.release()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while any(thread.name == "gpu-inventory" for thread in threading.enumerate()):  # noqa: ASYNC110 - a thread
            await asyncio.sleep(0.01)
    for _ in range(3):  # what the thread asked of the loop in the end, and what follows from it
        await asyncio.sleep(0)
    assert told == [inventory(driver)]


async def test_telemetry_measures_gpus_whose_driver_answered_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "inventory_in_time", partial(inventory_in_time, seconds_max=0.05))
    config = load(TelemetrySettings, prefix="TELEMETRY_", environ={"TELEMETRY_NODE_ID": "n", "TELEMETRY_HOME": "."})
    with a_driver_that_hangs() as driver:
        watched = await telemetry.watch(config, stop=asyncio.Event())
        assert await watched.sample() == ()
        driver.release()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (samples := await watched.sample()) or samples[0].problem:  # noqa: ASYNC110 - a thread
                await asyncio.sleep(0.01)
        assert [one.uuid for one in samples] == ["GPU-0"]


async def test_telemetry_of_emulated_gpus_does_not_wait_for_a_driver_that_hangs() -> None:
    environ = {"TELEMETRY_NODE_ID": "n", "TELEMETRY_HOME": ".", "TELEMETRY_EMULATED_GPUS": "2"}
    config = load(TelemetrySettings, prefix="TELEMETRY_", environ=environ)
    with a_driver_that_hangs() as library:
        watched = await telemetry.watch(config, stop=asyncio.Event())
        assert [gpu.uuid for gpu in watched.gpus] == ["EMULATED-n-0", "EMULATED-n-1"]
        assert not library.calls


def test_a_process_ends_though_its_driver_still_hangs() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDS], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "None\n")


async def test_telemetry_that_waits_for_a_driver_ends_when_told_to() -> None:
    config = load(TelemetrySettings, prefix="TELEMETRY_", environ={"TELEMETRY_NODE_ID": "n", "TELEMETRY_HOME": "."})
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, stop.set)
    with a_driver_that_hangs():
        async with asyncio.timeout(PATIENCE_SECONDS):
            watch = await telemetry.watch(config, stop=stop)
        assert watch.gpus == ()


async def test_a_cluster_of_this_machine_does_not_wait_for_its_driver_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(up, "inventory_in_time", partial(inventory_in_time, seconds_max=0.05))
    commands = argparse.ArgumentParser().add_subparsers()
    up.add(commands)
    with a_driver_that_hangs():
        async with asyncio.timeout(PATIENCE_SECONDS):
            found = await up.options(commands.choices["up"].parse_args([]))
    assert found.emulated_gpus == up.EMULATED_GPUS


async def test_an_executor_that_waits_for_a_driver_ends_when_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"NODE_ID": "n", "HOME": str(tmp_path / "home"), "FENCING": "false", "CGROUPS": "false"}
    for name, value in settings.items():
        monkeypatch.setenv(f"EXECUTOR_{name}", value)
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, stop.set)
    with a_driver_that_hangs() as library:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await executor.run(stop)
        assert library.calls["nvmlInitWithFlags"] == 1
