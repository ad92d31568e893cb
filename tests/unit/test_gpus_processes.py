"""Which processes are on a GPU, and how busy each is, as far as its driver says."""

import pytest

from tests.support.fake_gpu import (
    FUNCTION_NOT_FOUND,
    INSUFFICIENT_SIZE,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_SUPPORTED,
    FakeProcess,
)
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_library import FakeLibrary
from tests.support.gpu_reading import busy_gpu, opened, read_once
from weft.gpus import inventory
from weft.gpus.processes import PROCESSES_MAX
from weft.gpus.sample import GpuReader
from weft.messages.signals import GpuProcess


def test_pids_that_are_none_are_dropped_and_memory_that_is_not_told_is_unknown() -> None:
    gpu = busy_gpu(
        processes=[
            FakeProcess(pid=0, used=1),
            FakeProcess(pid=0xFFFF_FFFF, used=1),
            FakeProcess(pid=7, used=None),
            FakeProcess(pid=8, used=5, mps=True, busy=300),
        ]
    )
    assert read_once(gpu).processes == (
        GpuProcess(pid=7, memory_used=None, sm_utilisation=0.0),
        GpuProcess(pid=8, memory_used=5, sm_utilisation=0.0),
    )


def test_who_was_busy_is_read_on_from_where_it_was_left_and_is_idle_after_a_while() -> None:
    gpu = busy_gpu(processes=[FakeProcess(pid=5, used=1, busy=60, seen_at=10_000_000)])
    with opened(FakeLibrary([gpu])) as found:
        reader = GpuReader(found)

        def busy(now: float) -> float | None:
            return reader.read(now=now)[0].processes[0].sm_utilisation

        assert busy(0.0) == 0.6
        assert busy(1.0) == 0.6, "the driver has said nothing new yet"
        assert busy(2.0) == 0.0
        gpu.processes[0].busy, gpu.processes[0].seen_at = 20, 11_000_000
        assert busy(3.0) == 0.2


@pytest.mark.parametrize("code", [0, NOT_FOUND])
def test_a_log_of_busy_processes_without_entries_means_idle(code: int) -> None:
    """The real driver and pynvml have two ways of raising that there is nothing."""
    library = FakeLibrary([busy_gpu()])
    with opened(library) as found:
        library.fails["nvmlDeviceGetProcessUtilization"] = code
        (sample,) = GpuReader(found).read(now=0.0)
    assert [process.sm_utilisation for process in sample.processes] == [0.0]
    assert sample.problem == ""


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, INSUFFICIENT_SIZE])
def test_a_log_of_busy_processes_that_is_not_to_be_had_is_unknown(code: int) -> None:
    driver = FakeNvml([busy_gpu(fails={"nvmlDeviceGetProcessUtilization": code})])
    offered = inventory(driver)
    driver.nvmlInit()
    (sample,) = GpuReader(offered, nvml=driver).read(now=0.0)
    assert [process.sm_utilisation for process in sample.processes] == [None]
    assert sample.problem == ""


def test_so_many_processes_that_they_would_not_fit_are_cut_to_those_with_most_memory() -> None:
    sample = read_once(busy_gpu(processes=[FakeProcess(pid=n, used=n) for n in range(1, 1000)]))
    assert [process.pid for process in sample.processes] == list(range(1000 - PROCESSES_MAX, 1000))
