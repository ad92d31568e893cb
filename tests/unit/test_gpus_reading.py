"""Every value of a sample, through the real binding and a stand-in for the driver's library, and what goes wrong there.

The protocol-level fake tells of the same GPUs, and must come to the same samples.
"""

import time
from typing import Any

import msgspec
import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fake_gpu import (
    GPU_IS_LOST,
    UNKNOWN,
    FakeGpu,
)
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_nvml_library import FakeLibrary, installed
from tests.support.gpu_reading import GPM, busy_gpu, opened, read_once, read_twice
from tests.support.tier import examples
from weft.domain.cluster import Gpu
from weft.gpus import inventory
from weft.gpus.asking import GONE_MAX
from weft.gpus.nvml import DRIVER, Nvml, provider_of
from weft.gpus.sample import GpuReader, ResetCounts
from weft.gpus.topology import topology
from weft.messages.signals import GpuProcess, GpuSample


def one_second_of_traffic(gpu: FakeGpu) -> None:
    gpu.pcie_bytes = (5_000_000, 9_000_000)
    gpu.nvlink_kib = (1_000, 2_000)


def test_a_sample_holds_all_that_the_driver_tells_in_the_units_of_its_message() -> None:
    sample = read_twice(busy_gpu(), one_second_of_traffic)
    expected = {
        "utilisation": 0.97,
        "memory_utilisation": 0.44,
        "memory_used": 40 * 2**30,
        "memory_total": 141 * 2**30,
        "power_watts": 650.5,
        "power_limit_watts": 700.0,
        "energy_joules": 12_345.678,
        "temperature": 61.0,
        "temperature_slowdown": 92.0,
        "sm_clock_mhz": 1755.0,
        "sm_clock_max_mhz": 1980.0,
        "memory_clock_mhz": 3201.0,
        "clock_events": ("sw-power-cap", "sw-thermal-slowdown"),
        "power_capped_seconds": 2.5,
        "thermal_seconds": 0.001,
        "ecc_corrected": 3,
        "ecc_uncorrected": 1,
        "ecc_uncorrected_volatile": 2,
        "recovery_action": 1,
        "resets": 0,
        "rows_remapped_corrected": 2,
        "rows_remapped_uncorrected": 1,
        "row_remap_pending": True,
        "row_remap_failed": False,
        "pcie_generation": 5,
        "pcie_width": 16,
        "pcie_replays": 7,
        "pcie_send_rate": 5e6,
        "pcie_receive_rate": 9e6,
        "nvlinks_active": 2,
        "nvlink_send_rate": 1_000 * 1024.0,
        "nvlink_receive_rate": 2_000 * 1024.0,
        "sm_active": 0.55,
        "sm_occupancy": 0.215,
        "tensor_active": 0.4,
        "dram_active": 0.33,
        "processes": (GpuProcess(pid=4242, memory_used=39 * 2**30, sm_utilisation=0.9),),
        "problem": "",
        "provider": "fake",
        "driver": "1",
    }
    found = {name: getattr(sample, name) for name in expected}
    assert _near(found) == _near(expected)


def _near(values: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 9) if isinstance(value, float) else value for name, value in values.items()}


def test_a_reset_is_seen_by_the_energy_that_is_counted_from_then_on() -> None:
    gpu = busy_gpu()
    with opened(FakeLibrary([gpu])) as found:
        resets = ResetCounts()
        readings = []
        for energy in (100, 200, 50, 60, 10):
            gpu.energy_millijoules = energy
            reader = GpuReader(found, resets=resets)  # a driver that was opened again
            readings.append(reader.read(now=0.0)[0].resets)
            reader.free()
    assert readings == [0, 0, 1, 1, 2]


def test_every_field_of_a_sample_can_come_from_a_driver() -> None:
    """So that none of the message's fields is left without anybody who fills it."""
    sample = read_twice(busy_gpu(), one_second_of_traffic)
    empty = {name for name in sample.__struct_fields__ if getattr(sample, name) in (None, (), {}, "")}
    assert empty == {"problem", "xid_errors", "last_xid"}  # of a GPU that is well


def test_the_fake_driver_and_the_fake_library_tell_the_same() -> None:
    mig = FakeGpu(uuid="GPU-m", mig=True, instances={0: FakeGpu(uuid="MIG-m", instance=5, gpm=GPM, ecc=None)})
    described = [busy_gpu(), FakeGpu(uuid="GPU-old", ecc=None, rows=None, pcie_bytes=None), mig]

    def samples(nvml: Nvml, found: tuple[Gpu, ...]) -> list[GpuSample]:
        reader = GpuReader(found, nvml=nvml, driver="x")
        return [*reader.read(now=5.0), *reader.read(now=6.0)]

    with opened(FakeLibrary(described)) as found:
        below = samples(DRIVER, found)
    driver = FakeNvml(described)
    offered = inventory(driver)
    driver.nvmlInit()
    above = samples(driver, offered)
    assert [gpu.uuid for gpu in offered] == ["GPU-a", "GPU-old", "MIG-m"]

    def told(sample: GpuSample) -> dict[str, Any]:
        values: dict[str, Any] = msgspec.to_builtins(sample)
        if sample.uuid.startswith("MIG"):  # the library knows that an instance has no rates of its own
            values.pop("utilisation", None)
            values.pop("memory_utilisation", None)
        return values

    assert [told(sample) for sample in above] == [told(sample) for sample in below]


# what old and other drivers lack


def test_an_old_driver_is_read_through_its_old_functions() -> None:
    missing = [
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetComputeRunningProcesses_v2",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlGpmQueryDeviceSupport",
        "nvmlEventSetWait_v2",
    ]
    sample = read_twice(busy_gpu(), one_second_of_traffic, missing=missing)
    assert sample.memory_used == 41 * 2**30, "the first version counts what the driver keeps"
    assert sample.clock_events == ("sw-power-cap", "sw-thermal-slowdown")
    assert sample.processes == (GpuProcess(pid=4242, memory_used=39 * 2**30, sm_utilisation=0.9),)
    assert (sample.sm_active, sample.dram_active, sample.problem) == (None, None, "")
    assert sample.pcie_send_rate == 5e6


@pytest.mark.parametrize("version", ["_v2", ""])
def test_processes_come_from_the_newest_list_that_the_driver_has(version: str) -> None:
    newer = ["_v3", "_v2", ""]
    lists = "nvmlDeviceGetComputeRunningProcesses"
    missing = [f"{lists}{name}" for name in newer[: newer.index(version)]]
    library = FakeLibrary([busy_gpu()], missing=missing)
    with opened(library) as found:
        (sample,) = GpuReader(found).read(now=0.0)
    assert [process.pid for process in sample.processes] == [4242]
    assert library.calls[f"{lists}{version}"] == 2


def test_an_idle_gpu_without_anything_special_is_known_all_the_same() -> None:
    plain = FakeGpu(uuid="GPU-p", ecc=None, rows=None, pcie_bytes=None, xids=False, clock_events=0)
    sample = read_once(plain)
    assert (sample.ecc_corrected, sample.row_remap_failed, sample.nvlinks_active) == (None, None, None)
    assert (sample.processes, sample.clock_events, sample.problem) == ((), (), "")
    assert sample.utilisation == 0.0


def test_all_ones_are_unknown_everywhere() -> None:
    ones, wide = 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF
    gpu = busy_gpu(
        power_milliwatts=ones,
        energy_millijoules=wide,
        sm_clock=ones,
        power_limit_milliwatts=ones,
        clock_events=wide,
        power_capped_nanoseconds=wide,
        utilisation=ones,
        memory_utilisation=ones,
        pcie=(ones, ones),
        memory_used=wide - 2**30,
        ecc=(wide, wide),
    )
    gpu.memory_reserved = 2**30
    sample = read_once(gpu, missing=["nvmlDeviceGetMemoryInfo_v2"])
    for name in ("power_watts", "energy_joules", "sm_clock_mhz", "power_limit_watts", "power_capped_seconds"):
        assert getattr(sample, name) is None, name
    for name in ("utilisation", "memory_utilisation", "pcie_generation", "memory_used", "ecc_corrected"):
        assert getattr(sample, name) is None, name
    assert sample.clock_events == ()
    assert sample.temperature == 61.0


def test_what_counts_more_than_whole_is_whole_and_what_is_no_number_is_unknown() -> None:
    sample = read_twice(busy_gpu(gpm={2: 100.4, 3: float("nan"), 5: -1.0}), one_second_of_traffic)
    assert (sample.sm_active, sample.sm_occupancy, sample.tensor_active, sample.dram_active) == (1.0, None, None, None)


def test_a_mig_instance_has_its_own_counts_and_none_of_the_whole_gpus() -> None:
    instance = FakeGpu(uuid="MIG-1", memory_total=18 * 2**30, memory_used=5, instance=3, gpm={2: 25.0}, xids=False)
    whole = FakeGpu(uuid="GPU-w", mig=True, instances={1: instance}, gpm={2: 99.0})
    with opened(FakeLibrary([whole])) as found:
        reader = GpuReader(found)
        reader.read(now=0.0)
        (sample,) = reader.read(now=1.0)
    assert (sample.uuid, sample.memory_used, sample.memory_total) == ("MIG-1", 5, 18 * 2**30)
    assert (sample.utilisation, sample.memory_utilisation) == (None, None)
    assert sample.sm_active == 0.25


# rates


def test_a_counter_that_began_anew_gives_no_rate_once() -> None:
    gpu = busy_gpu(pcie_bytes=(10**9, 10**9), gpm=None)
    with opened(FakeLibrary([gpu])) as found:
        reader = GpuReader(found)
        rates = []
        for now, sent in enumerate((10**9, 2 * 10**9, 5, 1005)):
            gpu.pcie_bytes = (sent, sent)
            rates.append(reader.read(now=float(now))[0].pcie_send_rate)
    assert rates == [None, 1e9, None, 1000.0]


def test_counters_of_32_bits_are_not_believed_where_the_chip_counts_itself() -> None:
    sample = read_twice(busy_gpu(pcie_counter_bits=32), one_second_of_traffic)
    assert (sample.pcie_send_rate, sample.pcie_receive_rate) == (100.0 * 2**20, 200.0 * 2**20)


def test_the_throughput_that_blocks_is_asked_of_one_gpu_every_ten_seconds_and_only_without_counters() -> None:
    old = [busy_gpu(f"GPU-{n}", gpm=None, pcie_bytes=None, pcie_kib=(10, 20)) for n in range(3)]
    library = FakeLibrary([*old, busy_gpu("GPU-new", pcie_kib=(10, 20))])
    blocking = "nvmlDeviceGetPcieThroughput"
    with opened(library) as found:
        reader = GpuReader(found)
        measured = []
        for second in range(40):
            before = library.calls[blocking]
            samples = reader.read(now=float(second))
            if library.calls[blocking] > before:
                measured.append((second, [n for n in range(3) if samples[n].pcie_send_rate == 10 * 1024.0]))
        assert library.calls[blocking] == 2 * len(measured)
    assert [second for second, _ in measured] == [1, 11, 21, 31]
    assert sorted(n for _, turns in measured[:3] for n in turns) == [0, 1, 2]
    with opened(FakeLibrary([busy_gpu()])) as found:
        reader = GpuReader(found)
        for second in range(20):
            reader.read(now=float(second))
        assert pynvml.nvmlLib.calls[blocking] == 0


def test_gpm_waits_for_two_samples_apart_and_frees_what_it_took() -> None:
    library = FakeLibrary([busy_gpu()])
    with opened(library) as found:
        reader = GpuReader(found)
        active = [reader.read(now=now)[0].sm_active for now in (0.0, 0.05, 0.2, 1.2)]
        assert active == [None, None, 0.55, 0.55]
        assert len(library.gpm_samples) == 2
        reader.free()
        assert library.gpm_samples == {}


# what goes wrong

# What each C function's failure may take away, and nothing else. One that is not named here takes nothing.
TAKES: dict[str, set[str]] = {
    "nvmlDeviceGetUtilizationRates": {"utilisation", "memory_utilisation"},
    "nvmlDeviceGetPowerUsage": {"power_watts"},
    "nvmlDeviceGetTotalEnergyConsumption": {"energy_joules"},
    "nvmlDeviceGetTemperature": {"temperature"},
    "nvmlDeviceGetTemperatureThreshold": {"temperature_slowdown"},
    "nvmlDeviceGetClockInfo": {"sm_clock_mhz", "memory_clock_mhz"},
    "nvmlDeviceGetViolationStatus": {"power_capped_seconds", "thermal_seconds"},
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit_watts"},
    "nvmlDeviceGetMaxClockInfo": {"sm_clock_max_mhz"},
    "nvmlDeviceGetTotalEccErrors": {"ecc_corrected", "ecc_uncorrected", "ecc_uncorrected_volatile"},
    "nvmlDeviceGetRemappedRows": {
        *("rows_remapped_corrected", "rows_remapped_uncorrected", "row_remap_pending", "row_remap_failed")
    },
    "nvmlDeviceGetCurrPcieLinkGeneration": {"pcie_generation"},
    "nvmlDeviceGetCurrPcieLinkWidth": {"pcie_width"},
    "nvmlDeviceGetPcieReplayCounter": {"pcie_replays"},
    "nvmlDeviceGetNvLinkState": {"nvlinks_active", "nvlink_send_rate", "nvlink_receive_rate"},
    "nvmlDeviceGetFieldValues": {
        *("pcie_send_rate", "pcie_receive_rate", "nvlink_send_rate", "nvlink_receive_rate", "recovery_action")
    },
    "nvmlDeviceGetProcessUtilization": {"processes"},
    "nvmlGpmQueryDeviceSupport": {"sm_active", "sm_occupancy", "tensor_active", "dram_active"},
    "nvmlGpmSampleAlloc": {"sm_active", "sm_occupancy", "tensor_active", "dram_active"},
    "nvmlGpmSampleGet": {"sm_active", "sm_occupancy", "tensor_active", "dram_active"},
    "nvmlGpmMetricsGet": {"sm_active", "sm_occupancy", "tensor_active", "dram_active"},
}
FALLS_BACK = {  # to another function, which may tell something else
    "nvmlDeviceGetMemoryInfo_v2": {"memory_used"},
    "nvmlDeviceGetFieldValues": {"pcie_send_rate", "pcie_receive_rate", "nvlink_send_rate", "nvlink_receive_rate"},
    "nvmlDeviceGetNvLinkState": {"nvlink_send_rate", "nvlink_receive_rate"},
}
HARMLESS = (
    *("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"),
    *("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
    *("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2"),
    *("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3"),
    *("nvmlGpmSampleFree", "nvmlDeviceGetPcieThroughput", "nvmlSystemGetDriverVersion"),
)
FUNCTIONS = [*TAKES, *HARMLESS, "nvmlDeviceGetHandleByUUID"]


@settings(max_examples=examples(300), deadline=None)
@given(function=st.sampled_from(FUNCTIONS), code=st.one_of(st.integers(0, 40), st.sampled_from([999, 77, 123456])))
def test_whatever_one_function_says_there_is_a_sample_and_the_other_values_are_in_it(function: str, code: int) -> None:
    def last_of_two_readings(fails: dict[str, int]) -> GpuSample:
        gpu = busy_gpu()
        library = FakeLibrary([gpu, busy_gpu("GPU-b")])
        with opened(library) as found:
            library.fails = fails
            reader = GpuReader(found)
            reader.read(now=0.0)
            one_second_of_traffic(gpu)
            first, second = reader.read(now=1.0)
            assert (first.uuid, second.uuid) == ("GPU-a", "GPU-b")
            return first

    expected = msgspec.structs.asdict(last_of_two_readings({}))
    told = msgspec.structs.asdict(last_of_two_readings({function: code} if code else {}))
    if function == "nvmlDeviceGetHandleByUUID" and code:
        assert told["problem"]
        assert told["memory_total"]
        return
    may_differ = TAKES.get(function, set()) | FALLS_BACK.get(function, set()) | {"problem"} if code else set()
    assert {name for name in told if told[name] != expected[name]} <= may_differ
    for name in TAKES.get(function, set()) - FALLS_BACK.get(function, set()) - {"processes"} if code else ():
        assert told[name] is None, name


def test_one_function_that_fails_strangely_is_a_quirk_and_two_are_a_problem() -> None:
    def problem(*functions: str) -> str:
        library = FakeLibrary([busy_gpu()])
        with opened(library) as found:
            library.fails = dict.fromkeys(functions, UNKNOWN)
            return GpuReader(found).read(now=0.0)[0].problem

    assert problem("nvmlDeviceGetTemperature") == ""
    assert problem("nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage") == "Unknown Error"


def test_a_gpu_that_is_gone_is_not_asked_on_and_on() -> None:
    gpus = [busy_gpu("GPU-lost"), busy_gpu("GPU-well")]
    library = FakeLibrary(gpus)
    with opened(library) as found:
        reader = GpuReader(found)
        reader.read(now=0.0)
        gpus[0].fails = {"*": GPU_IS_LOST}
        library.calls.clear()
        lost, well = reader.read(now=1.0)
        assert (lost.problem, lost.utilisation, lost.memory_total) == ("GPU is lost", None, 141 * 2**30)
        assert (well.problem, well.utilisation) == ("", 0.97)
        assert library.calls["nvmlDeviceGetTemperature"] == 1, "of the one that is well"

        gpus[0].fails = {}
        library.lost_after = 2  # calls from now on: the handle and the rates, and then never again
        library.calls.clear()
        lost, _ = reader.read(now=2.0)
        assert (lost.problem, lost.utilisation) == ("GPU is lost", 0.97)
        assert sum(library.calls.values()) == 2 + GONE_MAX + 1 + 1, "one of them falls back to another"


def test_a_driver_that_was_opened_anew_is_asked_by_new_handles() -> None:
    """The stand-in refuses a handle of an earlier opening as an error of the test."""
    with opened(FakeLibrary([busy_gpu()])) as found:
        reader = GpuReader(found)
        reader.read(now=0.0)
        pynvml.nvmlShutdown()
        (closed,) = reader.read(now=1.0)
        assert (closed.problem, closed.utilisation) == ("Uninitialized", None)
        pynvml.nvmlInit()
        (sample,) = GpuReader(found).read(now=2.0)
        assert (sample.problem, sample.utilisation) == ("", 0.97)


def test_a_stand_in_is_never_taken_for_the_driver() -> None:
    assert provider_of(FakeNvml()) == "fake"
    with installed(FakeLibrary([])):
        assert provider_of(DRIVER) == "fake"
    assert provider_of(DRIVER) == "nvml"
    assert read_once(busy_gpu()).provider == "fake"


def test_topology_is_told_of_each_pair_that_the_driver_knows() -> None:
    gpus = [FakeGpu(uuid=f"GPU-{n}", bus=n // 2) for n in range(4)]
    with opened(FakeLibrary(gpus)) as found:
        near = topology(found)
        gpus[3].fails = {"*": GPU_IS_LOST}
        without = topology(found)
    assert near[0, 1] == near[2, 3] == "single"
    assert {near[pair] for pair in [(0, 2), (0, 3), (1, 2), (1, 3)]} == {"system"}
    assert sorted(without) == [(0, 1), (0, 2), (1, 2)]


# what it costs


def test_a_second_costs_few_calls_and_slow_values_are_read_seldom_and_not_all_at_once() -> None:
    library = FakeLibrary([busy_gpu(f"GPU-{n}") for n in range(8)])
    with opened(library) as found:
        reader = GpuReader(found)
        reader.read(now=0.0)
        library.calls.clear()
        seldom, per_second = [], []
        for second in range(1, 61):
            before = library.calls.copy()
            reader.read(now=float(second))
            made = library.calls - before
            seldom.append(made["nvmlDeviceGetEnforcedPowerLimit"])
            per_second.append(sum(made.values()))
    assert sum(seldom) == 8 * 2, "each GPU twice a minute"
    assert max(seldom) <= 2
    assert sum(per_second) / 60 / 8 < 20
    assert library.calls["nvmlDeviceGetPcieThroughput"] == 0


def test_eight_gpus_cost_less_than_a_hundredth_of_a_core() -> None:
    """Python's part of it: what the driver's own calls take is seen on a real GPU (`tests.support.gpu_check`)."""
    library = FakeLibrary([busy_gpu(f"GPU-{n}") for n in range(8)])
    with opened(library) as found:
        reader = GpuReader(found)
        reader.read(now=0.0)
        begun = time.process_time()
        for second in range(1, 61):
            reader.read(now=float(second))
        assert (time.process_time() - begun) / 60 < 0.01
