"""XID errors, heard of by a thread of its own, through the real binding."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.support.fake_gpu import DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND, GPU_IS_LOST, TIMED_OUT, UNKNOWN, FakeGpu, Xid
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_library import FakeLibrary, installed
from weft.domain.cluster import Gpu
from weft.gpus import GpuWatch, inventory
from weft.gpus.nvml import DRIVER
from weft.gpus.source import DriverSource
from weft.gpus.xid import KINDS_MAX, OTHER, PAUSE_SECONDS, XidCounts, XidListener

PATIENCE_SECONDS = 60.0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.005)


@contextmanager
def listening(
    library: FakeLibrary, counts: XidCounts, *, retry_seconds: tuple[float, float] = (0.01, 0.05)
) -> Iterator[XidListener]:
    with installed(library):
        found = inventory()
        DRIVER.nvmlInit()
        listener = XidListener(DRIVER, found, counts, retry_seconds=retry_seconds)
        listener.start()
        try:
            yield listener
        finally:
            listener.stop()
            listener.join(PATIENCE_SECONDS)
            assert not listener.alive
            DRIVER.nvmlShutdown()


def test_xids_are_counted_by_gpu_and_kind() -> None:
    gpus, counts = [FakeGpu(uuid="GPU-0"), FakeGpu(uuid="GPU-1")], XidCounts()
    library = FakeLibrary(gpus)
    with listening(library, counts):
        for gpu, number in ((gpus[0], 13), (gpus[0], 13), (gpus[1], 79), (gpus[0], 31)):
            library.xids.put(Xid(gpu, number))
        until(lambda: counts.of("GPU-0")[1] == 31 and counts.of("GPU-1")[1] == 79)
    assert counts.of("GPU-0") == ({"13": 2, "31": 1}, 31)
    assert counts.of("GPU-1") == ({"79": 1}, 79)
    assert counts.of("GPU-2") == ({}, None)


def test_an_xid_of_a_mig_instance_is_that_ones_and_one_of_the_whole_gpu_is_everyones() -> None:
    instances = {0: FakeGpu(uuid="MIG-a", instance=1), 1: FakeGpu(uuid="MIG-b", instance=2)}
    whole, counts = FakeGpu(uuid="GPU-w", mig=True, instances=instances), XidCounts()
    library = FakeLibrary([whole])
    with listening(library, counts):
        library.xids.put(Xid(whole, 13, instance=2))
        library.xids.put(Xid(whole, 94))
        until(lambda: counts.of("MIG-b")[1] == 94)
    assert counts.of("MIG-a") == ({"94": 1}, 94)
    assert counts.of("MIG-b") == ({"13": 1, "94": 1}, 94)
    assert library.calls["nvmlDeviceRegisterEvents"] == 1, "both have the events of one device"


def test_when_the_driver_refuses_it_is_asked_again_and_the_lost_gpu_is_left_out() -> None:
    gpus, counts = [FakeGpu(uuid="GPU-0"), FakeGpu(uuid="GPU-1")], XidCounts()
    library = FakeLibrary(gpus)
    with listening(library, counts) as listener:
        until(lambda: library.calls["nvmlEventSetWait_v2"] > 0)
        gpus[0].fails = {"*": GPU_IS_LOST}
        library.fails["nvmlEventSetWait_v2"] = GPU_IS_LOST
        until(lambda: library.calls["nvmlEventSetCreate"] > 3)
        assert listener.alive
        del library.fails["nvmlEventSetWait_v2"]
        library.xids.put(Xid(gpus[1], 48))
        until(lambda: counts.of("GPU-1")[1] == 48)
        assert library.calls["nvmlEventSetFree"] >= library.calls["nvmlEventSetCreate"] - 1


def test_a_driver_that_answered_before_it_refused_is_asked_again_as_soon_as_the_first_time() -> None:
    counts, gpu = XidCounts(), FakeGpu(uuid="GPU-0")
    library = FakeLibrary([gpu])

    def heard(times: int) -> bool:
        return counts.of("GPU-0")[0].get("13") == times

    def refused_since(freed: int) -> bool:
        return library.calls["nvmlEventSetFree"] > freed

    with listening(library, counts, retry_seconds=(0.1, 300.0)):
        for round_ in range(8):  # twice as long each time, the last would come after 12.8 seconds
            library.xids.put(Xid(gpu, 13))
            until(partial(heard, round_ + 1))
            freed = library.calls["nvmlEventSetFree"]
            library.fails["nvmlEventSetWait_v2"] = GPU_IS_LOST
            until(partial(refused_since, freed))
            del library.fails["nvmlEventSetWait_v2"]


@pytest.mark.parametrize("code", [UNKNOWN, FUNCTION_NOT_FOUND, TIMED_OUT])
def test_however_fast_the_driver_answers_it_is_asked_at_a_bounded_pace(code: int) -> None:
    """A time-out that comes at once, too: some conditions make the driver return early."""
    library = FakeLibrary([FakeGpu(uuid="GPU-0")])
    library.fails["nvmlEventSetWait_v2"] = code
    begun = time.monotonic()
    with listening(library, XidCounts()):
        until(lambda: library.calls["nvmlEventSetWait_v2"] > 0)
        time.sleep(0.3)
        seconds = time.monotonic() - begun
        # A refusal is followed by a pause of 10 ms here and of 5 s in earnest, an answer by one of 50 ms.
        pause = PAUSE_SECONDS if code == TIMED_OUT else 0.01
        assert library.calls["nvmlEventSetWait_v2"] <= seconds / pause + 2


def test_gpus_that_report_none_are_not_waited_for() -> None:
    library = FakeLibrary([FakeGpu(uuid="GPU-0", xids=False)])
    with listening(library, XidCounts()):
        until(lambda: library.calls["nvmlEventSetFree"] > 1)
    assert library.calls["nvmlEventSetWait_v2"] == 0


def test_kinds_of_xid_are_bounded() -> None:
    counts = XidCounts()
    for number in range(1000):
        counts.add("GPU-0", number)
    kinds, last = counts.of("GPU-0")
    assert len(kinds) == KINDS_MAX + 1
    assert (kinds[OTHER], last) == (1000 - KINDS_MAX, 999)


def test_a_driver_is_not_closed_under_who_waits_in_it_and_counts_outlive_it() -> None:
    others = set(threading.enumerate())
    driver = FakeNvml([FakeGpu(uuid="GPU-0")])
    source = DriverSource(inventory(driver), nvml=driver)
    source.open()
    source.read()
    driver.xids.put(Xid(driver.gpus[0], 63))
    until(lambda: source.read()[0].last_xid == 63)
    (listener,) = set(threading.enumerate()) - others

    assert not source.close(), "its thread is still inside the driver"
    until(lambda: not listener.is_alive())
    assert [one.problem for one in source.read()] == [""], "and until it is closed it is read as before"
    assert set(threading.enumerate()) <= others, "but nobody goes in any more"
    assert source.close()
    assert driver.gpm_samples == 0

    source.open()
    (sample,) = source.read()
    assert (sample.xid_errors, sample.last_xid, sample.driver) == ({"63": 1}, 63, "570.86.15")
    source.close()
    until(source.close)


async def test_what_a_gpu_reported_before_it_fell_off_the_bus_is_told_on() -> None:
    driver = FakeNvml([FakeGpu(uuid="GPU-0"), FakeGpu(uuid="GPU-1")])
    clock, gpus = Clock(), inventory(driver)
    source = DriverSource(gpus, nvml=driver, clock=clock)
    watch = GpuWatch(gpus, source=source, seconds_max=10, retry_seconds=30, clock=clock)
    await watch.sample()
    driver.xids.put(Xid(driver.gpus[0], 79))
    until(lambda: source.xids("GPU-0") == ({"79": 1}, 79))

    async def told() -> tuple[str, list[tuple[dict[str, int], int | None]]]:
        samples = await watch.sample()
        return samples[0].problem, [(one.xid_errors, one.last_xid) for one in samples]

    known: list[tuple[dict[str, int], int | None]] = [({"79": 1}, 79), ({}, None)]
    driver.gpus[0].fails = {"*": GPU_IS_LOST}
    assert await told() == ("GPU is lost", known)
    driver.hang()
    watch.seconds_max = 0
    assert await told() == ("the driver does not answer", known)
    driver.release()
    driver.init_fails, watch.seconds_max, clock.now = DRIVER_NOT_LOADED, 10, 100.0
    now = await told()
    for _ in range(2000):  # until nobody is inside the driver any more
        if now[0] != "GPU is lost":
            break
        await asyncio.sleep(0.005)
        now = await told()
    assert now == ("Driver Not Loaded", known)


def test_emulated_gpus_have_no_xids() -> None:
    gpu = Gpu(index=0, uuid="EMULATED-n-0", model="Emulated GPU", memory=1, emulated=True)
    driver = FakeNvml()
    driver.nvmlInit()
    listener = XidListener(driver, (gpu,), XidCounts(), retry_seconds=(0.01, 0.01))
    listener.start()
    time.sleep(0.03)
    listener.stop()
    listener.join(PATIENCE_SECONDS)
    assert not driver.asked


def test_who_is_forgotten_without_being_closed_leaves_no_thread_behind() -> None:
    others = set(threading.enumerate())
    driver = FakeNvml([FakeGpu(uuid="GPU-0")])
    source = DriverSource(inventory(driver), nvml=driver)
    source.open()
    source.read()
    assert len(set(threading.enumerate()) - others) == 1
    del source
    gc.collect()
    until(lambda: set(threading.enumerate()) <= others)
