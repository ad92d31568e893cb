"""The parts of a day on real hardware. Each returns what it found, or raises `WrongError`."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from msgspec import Struct, structs

from tests.gpu.found import Found, WrongError
from tests.gpu.torch_parts import TORCH_PARTS, Opener, torch_on
from weft.domain.cluster import Gpu
from weft.gpus.nvml import DRIVER, Nvml
from weft.gpus.source import DriverSource, Samples
from weft.health.preflight import why_failed
from weft.messages.signals import GpuSample, HostSample, NodeSampled
from weft.samples.benchmark_result import Measurement, measurement_of, spread
from weft.threads import aside
from weftd.executor.preflight import Checked, LinksChecked, check_gpu, links_of
from weftd.executor.thinking.health import SignWatch

ANSWER_SECONDS_MAX = 30.0
BENCH_TIMES, BENCH_SECONDS = 3, 10.0
KILLED_AFTER_SECONDS, FREED_SECONDS_MAX = 3.0, 50.0
FREED_BYTES = 512 << 20  # more than this, left by a program that was killed, is a sign of sickness
BETWEEN_MAX = 0.05  # the spread of the medians of several measurements
_IDENTITY = frozenset({"index", "uuid", "model", "emulated", "problem", "provider", "driver"})
_EMPTY: Sequence[Any] = (None, (), {})


class Machine(Struct, frozen=True):
    """The GPUs and how they are asked. `bench`: more arguments of the benchmark; `folder`: for the recorded session."""

    gpus: tuple[Gpu, ...]
    folder: Path
    nvml: Nvml = DRIVER
    bench: tuple[str, ...] = ()
    check: Callable[[Gpu, str], Awaitable[Checked]] = check_gpu
    sleep: Callable[[float], None] = time.sleep
    between_max: float = BETWEEN_MAX
    torch: Opener = torch_on
    links: Callable[[Sequence[Gpu], str], Awaitable[LinksChecked]] = links_of

    def source(self) -> DriverSource:
        return DriverSource(self.gpus, nvml=self.nvml)


def signals(machine: Machine, until: float) -> Found:
    """Every value that the driver gives, why it does not give the others, and what a reading costs."""
    del until
    source, times = machine.source(), list[float]()
    _in_time(source.open)
    try:
        samples: Samples = ()
        for reading in range(3):  # the first has no rates
            if reading:
                machine.sleep(1.0)
            began = time.perf_counter()
            samples = _in_time(source.read)
            times.append(time.perf_counter() - began)
        errors, near = source.errors(), dict(source.near)
    finally:
        _close(source, machine.sleep)
    if problems := [f"GPU {each.index}: {each.problem}" for each in samples if each.problem]:
        raise WrongError("; ".join(problems))
    return {
        "reading_ms": [round(each * 1000, 2) for each in times],
        "gpus": {each.index: _given(each) for each in samples},
        "not_given": {each.index: errors[each.uuid] for each in samples},
        "topology": {f"{one}-{other}": str(level) for (one, other), level in near.items()},
    }


def benchmark(machine: Machine, until: float) -> Found:
    """The speed of each GPU several times: how far one measurement differs from the next."""
    found: Found = {}
    for gpu in machine.gpus:
        measured: list[Measurement] = []
        while len(measured) < BENCH_TIMES and (not measured or time.monotonic() < until):
            measured.append(_bench(machine, gpu))
        between = spread([each.compute_s for each in measured])
        found[str(gpu.index)] = {
            "compute_s": median(each.compute_s for each in measured),
            "memory_s": median(each.memory_s for each in measured),
            "spread_within": max(each.compute_spread for each in measured),
            "spread_between": between,
            "times": len(measured),
        }
        if between > machine.between_max:
            raise WrongError(f"GPU {gpu.index}: its measurements differ by {between:.1%}")
    return found


def preflight(machine: Machine, until: float) -> Found:
    """The check before a gang passes GPUs that are well, all at once as a node checks them; then their links."""
    del until

    async def checked() -> list[Checked]:
        return list(await asyncio.gather(*(machine.check(gpu, "") for gpu in machine.gpus)))

    began = time.monotonic()
    results = asyncio.run(checked())
    links = asyncio.run(_links(machine))
    seconds, found = time.monotonic() - began, Found()
    for gpu, each in zip(machine.gpus, results, strict=True):
        why = each.failed or ("it was not measured" if each.measured is None else why_failed(each.measured, ()))
        if why:
            raise WrongError(f"GPU {gpu.index}: {why}")
        found[str(gpu.index)] = msgspec.to_builtins(each.measured)
    if links.failed:
        raise WrongError(links.failed)
    linked = "not measured" if links.measured is None else msgspec.to_builtins(links.measured)
    return {"seconds": round(seconds, 1), "gpus": found, "links": linked}


async def _links(machine: Machine) -> LinksChecked:
    return await machine.links(machine.gpus, "")


def killed(machine: Machine, until: float) -> Found:
    """A program that is killed on the GPU leaves no memory behind, and the next one runs."""
    del until
    gpu = machine.gpus[0]
    before = _memory(machine)
    process = subprocess.Popen(_command(machine, 60.0), env=_environment(gpu), stdout=subprocess.DEVNULL)
    try:
        machine.sleep(KILLED_AFTER_SECONDS)
        if process.poll() is not None:
            raise WrongError(f"the benchmark ended with status {process.returncode} before it was killed")
        during = _memory(machine)
    finally:
        process.kill()
        process.wait()
    began = time.monotonic()
    while (left := _memory(machine) - before) > FREED_BYTES:
        if time.monotonic() - began > FREED_SECONDS_MAX:
            raise WrongError(f"{left} bytes are in use {FREED_SECONDS_MAX:g} s after the program was killed")
        machine.sleep(0.2)
    freed = time.monotonic() - began
    _bench(machine, gpu, seconds=1.0)
    return {"bytes_in_use": during - before, "freed_after_s": round(freed, 2)}


def session(machine: Machine, until: float) -> Found:
    """Record the samples of GPUs at work and idle, as lines of JSON for replay, and judge them: GPUs that are well show
    no sign of sickness."""
    path, watch, source = machine.folder / "session.jsonl", SignWatch(), machine.source()
    host = HostSample(cpus=1, memory_total=1, memory_used=0, disk_total=100, disk_used=1)
    process = subprocess.Popen(_command(machine, 10.0), env=_environment(machine.gpus[0]), stdout=subprocess.DEVNULL)
    _in_time(source.open)
    count, signs = 0, set[str]()
    try:
        with path.open("wb") as file:
            while count < 2 or time.monotonic() < until:
                samples = _in_time(source.read)
                told = NodeSampled(node_id="gpu-day", pool="default", at=time.time(), host=host, gpus=samples)
                file.write(msgspec.json.encode(told) + b"\n")
                watch.see(told, time.monotonic(), {machine.gpus[0].index})
                for each in () if watch.signs is None else watch.signs.gpus:
                    signs |= {*each.levels, *(f"xid-{xid}" for xid in each.xids)}
                count += 1
                machine.sleep(1.0)
    finally:
        process.kill()
        process.wait()
        _close(source, machine.sleep)
    if signs:
        raise WrongError(f"signs of sickness: {', '.join(sorted(signs))}")
    return {"samples": count, "file": path.name}


def _with_torch(name: str, machine: Machine, until: float) -> Found:
    return TORCH_PARTS[name](machine.gpus[0], machine.torch, until)


PARTS: dict[str, Callable[[Machine, float], Found]] = {
    "signals": signals,
    "preflight": preflight,
    "benchmark": benchmark,
    "killed": killed,
    "session": session,
    **{name: partial(_with_torch, name) for name in TORCH_PARTS},
}


def _in_time(ask: Callable[[], Any]) -> Any:
    try:
        return aside(ask, name="gpu-day").result(ANSWER_SECONDS_MAX)
    except TimeoutError:
        raise WrongError(f"the NVIDIA driver has not answered in {ANSWER_SECONDS_MAX:g} s") from None


def _close(source: DriverSource, sleep: Callable[[float], None]) -> None:
    for _ in range(40):
        if _in_time(source.close):
            return
        sleep(0.05)


def _given(sample: GpuSample) -> Found:
    told = structs.asdict(sample)
    return {name: value for name, value in told.items() if name not in _IDENTITY and value not in _EMPTY}


def _memory(machine: Machine) -> int:
    source = machine.source()
    _in_time(source.open)
    try:
        return int(_in_time(source.read)[0].memory_used or 0)
    finally:
        _close(source, machine.sleep)


def _environment(gpu: Gpu) -> dict[str, str]:
    return {**os.environ, "CUDA_VISIBLE_DEVICES": gpu.uuid}


def _command(machine: Machine, seconds: float) -> list[str]:
    return [sys.executable, "-m", "weft.gpus.bench", "--seconds", f"{seconds:g}", *machine.bench]


def _bench(machine: Machine, gpu: Gpu, seconds: float = BENCH_SECONDS) -> Measurement:
    done = subprocess.run(
        _command(machine, seconds), env=_environment(gpu), capture_output=True, text=True, timeout=10 * seconds + 120
    )
    lines = done.stdout.strip().splitlines() or [""]
    told: dict[str, float] = {}
    with suppress(ValueError):
        told = {name: float(value) for name, _, value in (each.partition("=") for each in lines[-1].split())}
    measured = measurement_of(told)
    if done.returncode or measured is None:
        raise WrongError(f"GPU {gpu.index}: {lines[-1] or done.stderr.strip()[-200:]}")
    return measured
