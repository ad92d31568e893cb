"""Real GPUs as their driver tells of them, and emulated ones of which nothing is invented.

There is no GPU here: the driver is `tests.support.fake_nvml`, which follows NVIDIA's documentation.
"""

import inspect

import pytest

from tests.support.fake_gpu import (
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    LIBRARY_DRIVER_MISMATCH,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    NOT_SUPPORTED,
    UNKNOWN,
    FakeGpu,
)
from tests.support.fake_nvml import FakeNvml
from weft.domain.cluster import Gpu
from weft.emulation.gpus import EMULATED_MEMORY, emulated_gpus
from weft.gpus import GpuWatch, inventory, sample
from weft.gpus.nvml import DRIVER, Nvml
from weft.gpus.sample import NO_XIDS, Xids, unknown
from weft.gpus.topology import Near
from weft.messages.signals import GpuSample


def gpus(count: int = 2, **values: object) -> list[FakeGpu]:
    return [FakeGpu(uuid=f"GPU-{index}", **values) for index in range(count)]  # type: ignore[arg-type]


def found(driver: FakeNvml) -> tuple[Gpu, ...]:
    return inventory(driver)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_every_function_that_we_call_is_one_of_the_real_binding_and_of_the_fake() -> None:
    called = [name for name, _ in inspect.getmembers(Nvml, inspect.isfunction) if name.startswith("nvml")]
    assert len(called) > 10
    assert [name for name in called if not hasattr(DRIVER, name)] == []
    assert [name for name in called if not hasattr(FakeNvml, name)] == []


def test_real_gpus_are_listed_as_the_driver_names_them() -> None:
    driver = FakeNvml(gpus(2, memory_total=80 * 2**30))
    assert found(driver) == (
        Gpu(index=0, uuid="GPU-0", model="NVIDIA H200", memory=80 * 2**30),
        Gpu(index=1, uuid="GPU-1", model="NVIDIA H200", memory=80 * 2**30),
    )


def test_a_node_without_a_driver_has_no_gpus() -> None:
    assert found(FakeNvml(init_fails=LIBRARY_NOT_FOUND)) == ()


@pytest.mark.parametrize("code", [DRIVER_NOT_LOADED, LIBRARY_DRIVER_MISMATCH, NO_PERMISSION, UNKNOWN])
def test_a_driver_that_does_not_open_is_said_and_leaves_no_gpus(code: int, caplog: pytest.LogCaptureFixture) -> None:
    assert found(FakeNvml(gpus(), init_fails=code)) == ()
    assert "does not work" in caplog.text


def test_emulated_gpus_are_called_emulated() -> None:
    assert emulated_gpus(2, node_id="node-1") == (
        Gpu(index=0, uuid="EMULATED-node-1-0", model="Emulated GPU", memory=EMULATED_MEMORY, emulated=True),
        Gpu(index=1, uuid="EMULATED-node-1-1", model="Emulated GPU", memory=EMULATED_MEMORY, emulated=True),
    )


def test_a_node_that_offers_emulated_gpus_says_so(caplog: pytest.LogCaptureFixture) -> None:
    emulated_gpus(1, node_id="node-1")
    assert "1 emulated GPUs are offered" in caplog.text


def test_a_lost_gpu_is_left_out_and_moves_nobody_elses_index(caplog: pytest.LogCaptureFixture) -> None:
    driver = FakeNvml(gpus(3))
    driver.gpus[1].fails = {"*": GPU_IS_LOST}
    assert [gpu.index for gpu in found(driver)] == [0, 2]
    assert "GPU 1 is not offered" in caplog.text


def test_a_driver_that_cannot_even_count_leaves_no_gpus() -> None:
    assert found(FakeNvml(gpus(), count_fails=UNKNOWN)) == ()


def test_names_in_bytes_are_read_as_text() -> None:
    driver = FakeNvml([FakeGpu(uuid="GPU-a", name=b"Tesla T4", bytes_uuid=True)])
    assert [(gpu.uuid, gpu.model) for gpu in found(driver)] == [("GPU-a", "Tesla T4")]


def test_a_gpu_that_hides_its_name_memory_and_mig_mode_is_offered_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hidden = {
        "nvmlDeviceGetName": NOT_SUPPORTED,
        "nvmlDeviceGetMemoryInfo": NOT_SUPPORTED,
        "nvmlDeviceGetMigMode": FUNCTION_NOT_FOUND,
    }
    assert found(FakeNvml(gpus(1, fails=hidden))) == (Gpu(index=0, uuid="GPU-0", model="NVIDIA GPU", memory=0),)
    assert "0 stands for unknown" in caplog.text


def test_a_gpu_in_mig_mode_is_offered_as_its_instances_after_the_whole_ones() -> None:
    driver = FakeNvml(gpus(3))
    driver.gpus[1].mig = True
    driver.gpus[1].instances = {
        0: FakeGpu(uuid="MIG-a", name="NVIDIA H200 MIG 1g.18gb", memory_total=18 * 2**30),
        4: FakeGpu(uuid="MIG-b", name="NVIDIA H200 MIG 1g.18gb", memory_total=18 * 2**30),
    }
    listed = found(driver)
    assert [gpu.uuid for gpu in listed] == ["GPU-0", "GPU-2", "MIG-a", "MIG-b"]
    before = {gpu.uuid: gpu.index for gpu in listed}

    del driver.gpus[1].instances[0]  # somebody empties one place
    assert {gpu.uuid: gpu.index for gpu in found(driver)} == {uuid: before[uuid] for uuid in before if uuid != "MIG-a"}


def test_a_gpu_in_mig_mode_without_instances_is_not_offered(caplog: pytest.LogCaptureFixture) -> None:
    assert found(FakeNvml(gpus(1, mig=True))) == ()
    assert "has no instance" in caplog.text


def test_a_sample_has_the_units_that_its_message_promises() -> None:
    driver = FakeNvml(gpus(1, utilisation=87, memory_used=10**9, power_milliwatts=345_600, sm_clock=1755))
    offered = found(driver)
    driver.nvmlInit()
    (one,) = sample(offered, nvml=driver)
    assert (one.utilisation, one.memory_used, one.memory_total) == (0.87, 10**9, 141 * 2**30)
    assert (one.power_watts, one.power_limit_watts, one.temperature) == (345.6, 700.0, 30.0)
    assert (one.sm_clock_mhz, one.sm_clock_max_mhz, one.problem) == (1755.0, 1980.0, "")


def test_of_an_emulated_gpu_nothing_is_known_but_its_size() -> None:
    driver = FakeNvml(init_fails=LIBRARY_NOT_FOUND)
    (one,) = sample(emulated_gpus(1, node_id="n"), nvml=driver)
    assert one.emulated
    assert one.memory_total == EMULATED_MEMORY
    measured = (one.utilisation, one.memory_used, one.power_watts, one.temperature, one.sm_clock_mhz)
    assert measured == (None,) * 5


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetUtilizationRates", "utilisation"),
        ("nvmlDeviceGetMemoryInfo", "memory_used"),
        ("nvmlDeviceGetPowerUsage", "power_watts"),
        ("nvmlDeviceGetEnforcedPowerLimit", "power_limit_watts"),
        ("nvmlDeviceGetTemperature", "temperature"),
        ("nvmlDeviceGetClockInfo", "sm_clock_mhz"),
        ("nvmlDeviceGetMaxClockInfo", "sm_clock_max_mhz"),
    ],
)
def test_a_value_that_is_not_supported_is_unknown_and_hides_no_other(function: str, field: str) -> None:
    driver = FakeNvml(gpus(1))
    offered = found(driver)
    driver.gpus[0].fails = {function: NOT_SUPPORTED}
    driver.nvmlInit()
    (one,) = sample(offered, nvml=driver)
    fields = ("utilisation", "memory_used", "power_watts", "power_limit_watts", "temperature", "sm_clock_mhz")
    unknown = [name for name in (*fields, "sm_clock_max_mhz") if getattr(one, name) is None]
    assert unknown == [field]
    assert one.problem == ""


def test_all_ones_and_impossible_percentages_are_unknown() -> None:
    driver = FakeNvml(gpus(1, power_milliwatts=0xFFFF_FFFF, utilisation=65_535, sm_clock=0xFFFF_FFFF))
    offered = found(driver)
    driver.nvmlInit()
    (one,) = sample(offered, nvml=driver)
    assert (one.power_watts, one.utilisation, one.sm_clock_mhz) == (None, None, None)


def test_a_gpu_lost_between_samples_says_so_and_its_neighbour_is_still_measured() -> None:
    driver = FakeNvml(gpus(2, utilisation=50))
    offered = found(driver)
    driver.nvmlInit()
    driver.gpus[0].fails = {"*": GPU_IS_LOST}
    lost, well = sample(offered, nvml=driver)
    assert (lost.utilisation, lost.problem) == (None, "GPU is lost")
    assert (well.utilisation, well.problem) == (0.5, "")


async def test_watching_only_emulated_gpus_never_asks_a_driver() -> None:
    driver = FakeNvml(gpus(1))
    watch = GpuWatch(emulated_gpus(2, node_id="n"), nvml=driver)
    assert [one.emulated for one in await watch.sample()] == [True, True]
    assert driver.opened == 0


async def test_a_watch_opens_the_driver_once() -> None:
    driver = FakeNvml(gpus(1, utilisation=40))
    watch = GpuWatch(found(driver), nvml=driver, seconds_max=10)
    opened = driver.opened
    for _ in range(3):
        assert [one.utilisation for one in await watch.sample()] == [0.4]
    assert driver.opened == opened + 1


async def test_a_watch_knows_how_near_gpus_are_to_each_other_once_the_driver_was_asked() -> None:
    driver = FakeNvml([FakeGpu(uuid=f"GPU-{n}", bus=n // 2) for n in range(3)])
    watch = GpuWatch(found(driver), nvml=driver, seconds_max=10)
    assert watch.near == {}
    await watch.sample()
    assert watch.near == {(0, 1): "single", (0, 2): "system", (1, 2): "system"}


async def test_a_driver_that_hangs_is_asked_once_and_holds_up_nobody() -> None:
    driver = FakeNvml(gpus(1, utilisation=40))
    watch = GpuWatch(found(driver), nvml=driver, seconds_max=0)
    driver.hang()
    for _ in range(5):
        (one,) = await watch.sample()
        assert (one.utilisation, one.problem) == (None, "the driver does not answer")
    driver.release()
    watch.seconds_max = 10
    assert [one.utilisation for one in await watch.sample()] == [0.4]
    assert driver.asked["nvmlDeviceGetUtilizationRates"] == 1


async def test_a_driver_that_does_not_open_is_tried_again_later() -> None:
    driver, clock = FakeNvml(gpus(1, utilisation=40)), Clock()
    watch = GpuWatch(found(driver), nvml=driver, seconds_max=10, retry_seconds=30, clock=clock)
    driver.init_fails = DRIVER_NOT_LOADED
    assert [one.problem for one in await watch.sample()] == ["Driver Not Loaded"]
    driver.init_fails = None
    clock.now = 29
    assert [one.problem for one in await watch.sample()] == ["Driver Not Loaded"]
    clock.now = 30
    assert [one.utilisation for one in await watch.sample()] == [0.4]


class Scripted:
    """A source that opens, reads and closes as told, and counts."""

    provider = "fake"
    near: Near = {}  # noqa: RUF012 - never changed

    def __init__(self, gpus: tuple[Gpu, ...]) -> None:
        self.gpus, self.problem, self.closes_at_once = gpus, "", True
        self.opened = 0

    def xids(self, uuid: str) -> Xids:
        return NO_XIDS

    def open(self) -> None:
        self.opened += 1

    def read(self) -> tuple[GpuSample, ...]:
        return tuple(unknown(gpu, problem=self.problem) for gpu in self.gpus)

    def close(self) -> bool:
        return self.closes_at_once


async def test_after_a_problem_the_driver_is_opened_again_less_and_less_often() -> None:
    clock, source = Clock(), Scripted(found(FakeNvml(gpus(1))))
    watch = GpuWatch(source.gpus, source=source, seconds_max=10, retry_seconds=30, retry_seconds_max=200, clock=clock)
    await watch.sample()
    source.problem = "GPU is lost"
    opened_at = []
    for clock.now in range(1, 1000):
        before = source.opened
        assert [one.problem for one in await watch.sample()] == ["GPU is lost"]
        opened_at += [clock.now] * (source.opened - before)
    assert opened_at == [31, 62, 123, 244, 445, 646, 847]
    source.problem = ""
    assert [one.problem for one in await watch.sample()] == [""]
    source.problem = "GPU is lost"
    await watch.sample()
    clock.now = 1100  # well again in between: the first new opening is not held back by the old ones
    before = source.opened
    for _ in range(2):
        await watch.sample()
    assert source.opened == before + 1


async def test_a_driver_that_cannot_be_closed_yet_is_still_read_and_closed_later() -> None:
    clock, source = Clock(), Scripted(found(FakeNvml(gpus(1))))
    watch = GpuWatch(source.gpus, source=source, seconds_max=10, clock=clock)
    await watch.sample()
    source.problem, source.closes_at_once, clock.now = "GPU is lost", False, 100
    for _ in range(3):
        assert [one.problem for one in await watch.sample()] == ["GPU is lost"]
    assert source.opened == 1
    source.closes_at_once, source.problem = True, ""
    assert [one.problem for one in await watch.sample()] == [""]
    assert source.opened == 2


def test_this_machine_answers_too() -> None:
    """With the real binding, whatever is here; it must neither raise nor call a real GPU emulated."""
    assert not any(gpu.emulated for gpu in inventory())
