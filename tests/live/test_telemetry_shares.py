"""Telemetry beside a real arbiter, with processes that speak with it as the hook does."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.sharing.rig import GPU, ready, rig
from tests.support import compiled
from tests.support.arbiters import arbiter, saturating, shared, within
from tests.support.tree import PYTHONPATH
from weft.domain.cluster import Gpu
from weft.emulation.device import EmulatedDevices
from weft.gpus import GpuWatch
from weft.messages.signals import RunSample, ShareSample
from weft.sharing import native, slots
from weft.sharing.places import device_of, slot_of
from weft.sharing.slots import read_seen
from weftd.telemetry.processes import started_at
from weftd.telemetry.service import Telemetry
from weftd.telemetry.shares import ShareReader
from weftd.telemetry.thinking.readings import FoundRun
from weftd.telemetry.thinking.shares import ShareRates

pytestmark = pytest.mark.alone


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A short path, as sockets need."""
    link = Path(f"/tmp/weft-seen-{os.getpid()}-{time.monotonic_ns() % 1_000_000}")
    link.symlink_to(tmp_path)
    (link / "r").mkdir()
    yield link / "r"
    link.unlink()


class Ours:
    """Two runs, which this process stands for."""

    async def find(self) -> list[FoundRun]:
        return [FoundRun(job_id=job_id, epoch=1, rank=0, pid=os.getpid(), cgroups={}) for job_id in ("a", "b")]


def of_job(runs: tuple[RunSample, ...], job_id: str) -> ShareSample:
    (run,) = (run for run in runs if run.job_id == job_id)
    assert run.share is not None
    return run.share


async def test_what_two_saturating_runs_got_is_seen_and_that_one_is_idle_then_and_the_arbiter_gone(root: Path) -> None:
    telemetry = Telemetry(
        node_id="node-1", pool="default", finder=Ours(), gpus=GpuWatch(()), disk=root, shares=ShareReader(root)
    )
    await telemetry.look()

    async def sampled(seconds: float) -> list[tuple[RunSample, ...]]:
        found = []
        for _ in range(round(seconds)):
            found.append((await telemetry.sample(at=time.time())).runs)
            await asyncio.sleep(1.0)
        return found

    with arbiter(root):
        a = slots.make_slot(root, slot_of("a", 1, 0), shared(700))
        b = slots.make_slot(root, slot_of("b", 1, 0), shared(200, memory=1 << 30))
        both = [saturating(a, 6.0), saturating(b, 10.0)]
        busy = await sampled(6)
        for name, least, most in (("a", 0.55, 0.9), ("b", 0.1, 0.35)):
            used = [one for runs in busy[3:] if (one := of_job(runs, name).used) is not None]
            assert used, f"nothing was seen of {name}"
            assert least <= sorted(used)[len(used) // 2] <= most
        assert of_job(busy[-1], "b").memory_limit == 1 << 30
        assert (of_job(busy[-1], "b").wait_p99_seconds or 0.0) > 0.0
        alone = await sampled(5)
        assert of_job(alone[-1], "a").used == 0.0
        borrowed, lent = of_job(alone[-2], "b").borrowed, of_job(alone[-2], "a").lent
        for process in both:
            process.communicate(timeout=30)
    assert borrowed is not None
    assert borrowed > 0.4
    assert lent is not None
    await asyncio.sleep(2.1)
    (gone,) = await sampled(1)
    assert of_job(gone, "b").used is None
    assert of_job(gone, "b").request == 0.2


def test_what_telemetry_tells_is_what_the_emulated_device_did() -> None:
    """The device's own file is written by the emulated driver alone."""
    if isinstance(built := compiled.build(), native.NotBuilt):
        pytest.skip(built.reason)
    with rig() as made:
        slots_of = {name: slot_of(name, 1, 0) for name in ("a", "b")}
        made.share(slots_of["a"], 700)
        made.share(slots_of["b"], 300)
        jobs = {
            "a": made.job(slots_of["a"], "burst", 5_000, every_us=50_000, seconds=30.0),
            "b": made.job(slots_of["b"], "saturate", 1_000),
        }
        ready(*jobs.values())
        runs = [FoundRun(job_id=name, epoch=1, rank=0, pid=job.pid) for name, job in jobs.items()]
        reader, rates = ShareReader(made.root), ShareRates()
        time.sleep(1.5)
        used: dict[str, list[float]] = {"a": [], "b": []}
        first = made.ledger()
        for _ in range(7):
            for (name, _, _), sample in rates.sampled(reader.read(runs)).items():
                if sample.used is not None:
                    used[name].append(sample.used)
            time.sleep(1.0)
        last = made.ledger()
    for name, job in jobs.items():
        did = (last.of[job.pid] - first.of[job.pid]) / (last.at - first.at)
        assert sum(used[name]) / len(used[name]) == pytest.approx(did, abs=0.12), f"the device gave {name} {did:.3f}"
    assert sum(used["b"]) / len(used["b"]) > 0.5


async def test_a_process_outside_the_share_of_its_run_is_told_of_at_the_second_look(tmp_path: Path) -> None:
    """Telemetry looks once a second, and one look may see a process that the arbiter has still to write down."""
    if isinstance(built := compiled.build(), native.NotBuilt):
        pytest.skip(built.reason)
    with rig() as made:
        device_of(tmp_path, GPU).symlink_to(made.device)
        jobs = {}
        for name, slot in (("within", slot_of("within", 1, 0)), ("outside", None)):
            made.share(slot_of(name, 1, 0), 300)
            jobs[name] = made.job(slot, "saturate", 1_000)
        ready(*jobs.values())

        class Jobs:
            async def find(self) -> list[FoundRun]:
                return [FoundRun(job_id=name, epoch=1, rank=0, pid=job.pid, cgroups={}) for name, job in jobs.items()]

        telemetry = Telemetry(
            node_id="node-1",
            pool="default",
            finder=Jobs(),
            gpus=GpuWatch((Gpu(index=0, uuid=GPU, model="emulated", memory=1 << 30, emulated=True),)),
            disk=tmp_path,
            shares=ShareReader(made.root),
            devices=EmulatedDevices(tmp_path, started_at=started_at).with_processes,
        )
        await telemetry.look()
        within(10, lambda: (seen := read_seen(made.root / slot_of("within", 1, 0))) is not None and seen.pids)
        within(10, lambda: made.kernels(jobs["outside"].pid) > 0)
        told = []
        for _ in range(3):
            runs = (await telemetry.sample(at=time.time())).runs
            told.append([of_job(runs, name).outside for name in jobs])
            await asyncio.sleep(1.0)
    assert told == [[0, 0], [0, 1], [0, 1]]


HOLDS = """
import time
from tests.support.driver_client import Driver
driver = Driver()
driver.allocate(16 << 20)
driver.launch(1000)
driver.synchronize()
print("ready", flush=True)
time.sleep(60)
"""


def holding(environ: dict[str, str]) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HOLDS]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True)


async def test_memory_on_the_gpu_that_a_run_does_not_count_is_told(tmp_path: Path) -> None:
    if isinstance(built := compiled.build(), native.NotBuilt):
        pytest.skip(built.reason)
    with rig() as made:
        device_of(tmp_path, GPU).symlink_to(made.device)
        jobs = {}
        for name, slot in (("counted", slot_of("counted", 1, 0)), ("uncounted", None)):
            made.share(slot_of(name, 1, 0), 300)
            environ = {**made.environment(slot), "PYTHONPATH": PYTHONPATH}
            jobs[name] = holding(environ)
        try:
            for job in jobs.values():
                assert job.stdout is not None
                assert await asyncio.to_thread(job.stdout.readline) == "ready\n"

            found = [FoundRun(job_id=name, epoch=1, rank=0, pid=job.pid, cgroups={}) for name, job in jobs.items()]

            class Jobs:
                async def find(self) -> list[FoundRun]:
                    return found

            telemetry = Telemetry(
                node_id="node-1",
                pool="default",
                finder=Jobs(),
                gpus=GpuWatch((Gpu(index=0, uuid=GPU, model="emulated", memory=1 << 30, emulated=True),)),
                disk=tmp_path,
                shares=ShareReader(made.root),
                devices=EmulatedDevices(tmp_path, started_at=started_at).with_processes,
            )
            await telemetry.look()
            within(10, lambda: (seen := read_seen(made.root / slot_of("counted", 1, 0))) is not None and seen.memory)
            runs = (await telemetry.sample(at=time.time())).runs
        finally:
            for job in jobs.values():
                job.kill()
                job.communicate()
    assert [(of_job(runs, name).memory_used, of_job(runs, name).uncounted) for name in jobs] == [
        (16 << 20, 0),
        (0, 16 << 20),
    ]
