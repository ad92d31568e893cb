"""One GPU that is busy in every way, and its samples through the real binding and a stand-in for the library."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pynvml

from tests.support.fake_gpu import (
    FakeGpu,
    FakeProcess,
)
from tests.support.fake_nvml_library import FakeLibrary, installed
from weft.domain.cluster import Gpu
from weft.gpus import inventory
from weft.gpus.nvml import NvmlError
from weft.gpus.sample import GpuReader
from weft.messages.signals import GpuSample

GPM = {2: 55.0, 3: 21.5, 5: 40.0, 10: 33.0, 20: 100.0, 21: 200.0, 60: 300.0, 61: 400.0}


def busy_gpu(uuid: str = "GPU-a", **values: Any) -> FakeGpu:
    return replace(
        FakeGpu(
            uuid=uuid,
            memory_used=40 * 2**30,
            memory_reserved=2**30,
            utilisation=97,
            memory_utilisation=44,
            power_milliwatts=650_500,
            energy_millijoules=12_345_678,
            temperature=61,
            sm_clock=1755,
            clock_events=0x4 | 0x20,
            power_capped_nanoseconds=2_500_000_000,
            thermal_nanoseconds=1_000_000,
            ecc=(3, 1),
            ecc_volatile=2,
            recovery=1,
            rows=(2, 1, 1, 0),
            pcie_replays=7,
            nvlinks=(1, 1, 0),
            gpm=GPM,
            processes=[FakeProcess(pid=4242, used=39 * 2**30, busy=90)],
        ),
        **values,
    )


@contextmanager
def opened(library: FakeLibrary) -> Iterator[tuple[Gpu, ...]]:
    with installed(library):
        found = inventory()
        pynvml.nvmlInit()
        yield found
        with suppress(NvmlError):
            pynvml.nvmlShutdown()


def read_twice(gpu: FakeGpu, between: Callable[[FakeGpu], None], **library: Any) -> GpuSample:
    """A second apart."""
    with opened(FakeLibrary([gpu], **library)) as found:
        reader = GpuReader(found, driver="1")
        reader.read(now=100.0)
        between(gpu)
        (sample,) = reader.read(now=101.0)
        reader.free()
        return sample


def read_once(gpu: FakeGpu, **library: Any) -> GpuSample:
    with opened(FakeLibrary([gpu], **library)) as found:
        reader = GpuReader(found)
        (sample,) = reader.read(now=100.0)
        reader.free()
        return sample
