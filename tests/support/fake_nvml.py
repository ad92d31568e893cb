# ruff: noqa: N802 (these are NVML's own names)
"""A driver for tests: the functions of NVML that we call, over GPUs that a test describes and breaks.

It follows NVIDIA's documentation and its users' reports, not a recording, and raises the real binding's own errors.
`fake_nvml_library.py` tells of the same GPUs one layer lower, as the driver's library does to the binding.
"""

import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar

from tests.support.fake_gpu import (
    EVENT_WAIT_SECONDS,
    INVALID_ARGUMENT,
    NO_INSTANCE,
    NOT_FOUND,
    NOT_SUPPORTED,
    SUCCESS,
    UNINITIALIZED,
    FakeGpu,
    Xid,
    topology_level,
)
from weft.gpus.nvml import EVENT_XID, MEMORY_V2, MIG_ENABLED, TIMEOUT, Handle, NvmlError

T = TypeVar("T")


@dataclass
class FakeNvml:
    """`init_fails` and `count_fails` are error codes. `hang()` makes every later question wait for `release()`."""

    weft_is_fake: ClassVar[bool] = True

    gpus: list[FakeGpu] = field(default_factory=list)
    driver: str | bytes = "570.86.15"
    init_fails: int | None = None
    count_fails: int | None = None
    events_fail: int | None = None  # how waiting for events ends
    xids: "queue.Queue[Xid]" = field(default_factory=queue.Queue)
    opened: int = 0  # times nvmlInit succeeded
    asked: Counter[str] = field(default_factory=Counter)  # calls about a GPU, by function
    gpm_samples: int = 0  # that are allocated
    _users: int = 0
    _goes_on: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._goes_on.set()

    def hang(self) -> None:
        self._goes_on.clear()

    def release(self) -> None:
        self._goes_on.set()

    def nvmlInit(self) -> None:
        if self.init_fails is not None:
            raise NvmlError(self.init_fails)
        self._users += 1
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self._need_open()
        self._users -= 1

    def nvmlSystemGetDriverVersion(self) -> str | bytes:
        self._need_open()
        return self.driver

    def nvmlDeviceGetCount(self) -> int:
        self._need_open()
        if self.count_fails is not None:
            raise NvmlError(self.count_fails)
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> Handle:
        return self._asked(self.gpus[index], "nvmlDeviceGetHandleByIndex", lambda gpu: gpu)

    def nvmlDeviceGetHandleByUUID(self, uuid: str, /) -> Handle:
        self._need_open()
        for whole in self.gpus:
            for gpu in (whole, *whole.instances.values()):
                if gpu.uuid == uuid:
                    return self._asked(gpu, "nvmlDeviceGetHandleByUUID", lambda found: found)
        raise NvmlError(NOT_FOUND)

    def nvmlDeviceGetUUID(self, handle: Handle, /) -> str | bytes:
        return self._asked(handle, "nvmlDeviceGetUUID", lambda gpu: gpu.uuid.encode() if gpu.bytes_uuid else gpu.uuid)

    def nvmlDeviceGetName(self, handle: Handle, /) -> str | bytes:
        return self._asked(handle, "nvmlDeviceGetName", lambda gpu: gpu.name)

    def nvmlDeviceGetMemoryInfo(self, handle: Handle, version: int | None = None, /) -> Any:
        reserved = handle.memory_reserved if version != MEMORY_V2 else 0
        return self._asked(
            handle,
            "nvmlDeviceGetMemoryInfo",
            lambda gpu: SimpleNamespace(total=gpu.memory_total, used=gpu.memory_used + reserved),
        )

    def nvmlDeviceGetUtilizationRates(self, handle: Handle, /) -> Any:
        return self._asked(
            handle,
            "nvmlDeviceGetUtilizationRates",
            lambda gpu: SimpleNamespace(gpu=gpu.utilisation, memory=gpu.memory_utilisation),
        )

    def nvmlDeviceGetPowerUsage(self, handle: Handle, /) -> int:
        return self._asked(handle, "nvmlDeviceGetPowerUsage", lambda gpu: gpu.power_milliwatts)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Handle, /) -> int:
        return self._asked(handle, "nvmlDeviceGetEnforcedPowerLimit", lambda gpu: gpu.power_limit_milliwatts)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Handle, /) -> int:
        return self._asked(handle, "nvmlDeviceGetTotalEnergyConsumption", lambda gpu: gpu.energy_millijoules)

    def nvmlDeviceGetTemperature(self, handle: Handle, sensor: int, /) -> int:
        return self._asked(handle, "nvmlDeviceGetTemperature", lambda gpu: gpu.temperature)

    def nvmlDeviceGetClockInfo(self, handle: Handle, clock: int, /) -> int:
        return self._asked(
            handle, "nvmlDeviceGetClockInfo", lambda gpu: gpu.sm_clock if clock == 1 else gpu.memory_clock
        )

    def nvmlDeviceGetMaxClockInfo(self, handle: Handle, clock: int, /) -> int:
        return self._asked(handle, "nvmlDeviceGetMaxClockInfo", lambda gpu: gpu.sm_clock_max)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Handle, /) -> int:
        return self._asked(handle, "nvmlDeviceGetCurrentClocksEventReasons", lambda gpu: gpu.clock_events)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Handle, /) -> int:
        return self._asked(handle, "nvmlDeviceGetCurrentClocksThrottleReasons", lambda gpu: gpu.clock_events)

    def nvmlDeviceGetViolationStatus(self, handle: Handle, policy: int, /) -> Any:
        return self._asked(
            handle,
            "nvmlDeviceGetViolationStatus",
            lambda gpu: SimpleNamespace(violationTime=(gpu.power_capped_nanoseconds, gpu.thermal_nanoseconds)[policy]),
        )

    def nvmlDeviceGetTotalEccErrors(self, handle: Handle, kind: int, counter: int, /) -> int:
        return self._supported(handle, "nvmlDeviceGetTotalEccErrors", lambda gpu: gpu.ecc_of(kind, counter))

    def nvmlDeviceGetRemappedRows(self, handle: Handle, /) -> tuple[int, int, int, int]:
        return self._supported(handle, "nvmlDeviceGetRemappedRows", lambda gpu: gpu.rows)

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: Handle, /) -> int:
        return self._asked(handle, "nvmlDeviceGetCurrPcieLinkGeneration", lambda gpu: gpu.pcie[0])

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: Handle, /) -> int:
        return self._asked(handle, "nvmlDeviceGetCurrPcieLinkWidth", lambda gpu: gpu.pcie[1])

    def nvmlDeviceGetTemperatureThreshold(self, handle: Handle, kind: int, /) -> int:
        return self._asked(handle, "nvmlDeviceGetTemperatureThreshold", lambda gpu: gpu.temperature_slowdown)

    def nvmlDeviceGetPcieReplayCounter(self, handle: Handle, /) -> int:
        return self._asked(handle, "nvmlDeviceGetPcieReplayCounter", lambda gpu: gpu.pcie_replays)

    def nvmlDeviceGetPcieThroughput(self, handle: Handle, counter: int, /) -> int:
        return self._asked(handle, "nvmlDeviceGetPcieThroughput", lambda gpu: gpu.pcie_kib[counter])

    def nvmlDeviceGetFieldValues(self, handle: Handle, fields: Sequence[tuple[int, int]], /) -> Sequence[Any]:
        return self._asked(
            handle,
            "nvmlDeviceGetFieldValues",
            lambda gpu: [_field_value(gpu.counter(number, scope)) for number, scope in fields],
        )

    def nvmlDeviceGetNvLinkState(self, handle: Handle, link: int, /) -> int:
        states = self._asked(handle, "nvmlDeviceGetNvLinkState", lambda gpu: gpu.nvlinks)
        if link >= len(states):
            raise NvmlError(INVALID_ARGUMENT if states else NOT_SUPPORTED)
        return states[link]

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: Handle, link: int, /) -> Any:
        peers = self._asked(handle, "nvmlDeviceGetNvLinkRemotePciInfo", lambda gpu: gpu.peers)
        if link >= len(peers):
            raise NvmlError(NOT_SUPPORTED)
        return SimpleNamespace(busId=peers[link])

    def nvmlDeviceGetPciInfo(self, handle: Handle, /) -> Any:
        return SimpleNamespace(busId=self._asked(handle, "nvmlDeviceGetPciInfo", lambda gpu: gpu.address))

    def nvmlDeviceGetTopologyCommonAncestor(self, handle: Handle, other: Handle, /) -> int:
        return self._asked(handle, "nvmlDeviceGetTopologyCommonAncestor", lambda gpu: topology_level(gpu, other))

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Handle, /) -> Sequence[Any]:
        return self._processes(handle, "nvmlDeviceGetComputeRunningProcesses_v3", mps=False)

    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: Handle, /) -> Sequence[Any]:
        return self._processes(handle, "nvmlDeviceGetComputeRunningProcesses_v2", mps=False)

    def nvmlDeviceGetComputeRunningProcesses_v1(self, handle: Handle, /) -> Sequence[Any]:
        return self._processes(handle, "nvmlDeviceGetComputeRunningProcesses_v1", mps=False)

    def nvmlDeviceGetMPSComputeRunningProcesses_v3(self, handle: Handle, /) -> Sequence[Any]:
        return self._processes(handle, "nvmlDeviceGetMPSComputeRunningProcesses_v3", mps=True)

    def nvmlDeviceGetProcessUtilization(self, handle: Handle, since: int, /) -> Sequence[Any]:
        busy = self._asked(handle, "nvmlDeviceGetProcessUtilization", lambda gpu: gpu.busy_since(since))
        if not busy:
            raise NvmlError(NOT_FOUND)
        return [SimpleNamespace(pid=one.pid, timeStamp=one.seen_at, smUtil=one.busy) for one in busy]

    def nvmlGpmQueryDeviceSupport(self, handle: Handle, /) -> Any:
        return self._asked(
            handle,
            "nvmlGpmQueryDeviceSupport",
            lambda gpu: SimpleNamespace(isSupportedDevice=int(gpu.gpm is not None)),
        )

    def nvmlGpmSampleAlloc(self) -> Any:
        self._need_open()
        self.gpm_samples += 1
        return SimpleNamespace(metrics={})

    def nvmlGpmSampleFree(self, sample: Any, /) -> None:
        self._need_open()
        self.gpm_samples -= 1

    def nvmlGpmSampleGet(self, handle: Handle, sample: Any, /) -> Any:
        sample.metrics = self._asked(handle, "nvmlGpmSampleGet", lambda gpu: gpu.gpm)
        return sample

    def nvmlGpmMigSampleGet(self, handle: Handle, instance: int, sample: Any, /) -> Any:
        (one,) = (one for one in handle.instances.values() if one.instance == instance)
        return self.nvmlGpmSampleGet(one, sample)

    def gpm_metrics(self, older: Any, newer: Any, numbers: Sequence[int], /) -> list[float | None]:
        self._need_open()
        return [newer.metrics.get(number) for number in numbers]

    def nvmlEventSetCreate(self) -> Any:
        self._need_open()
        return SimpleNamespace(gpus=[])

    def nvmlEventSetFree(self, events: Any, /) -> None:
        self._need_open()

    def nvmlDeviceGetSupportedEventTypes(self, handle: Handle, /) -> int:
        return self._asked(handle, "nvmlDeviceGetSupportedEventTypes", lambda gpu: EVENT_XID if gpu.xids else 0)

    def nvmlDeviceRegisterEvents(self, handle: Handle, types: int, events: Any, /) -> None:
        events.gpus.append(self._asked(handle, "nvmlDeviceRegisterEvents", lambda gpu: gpu))

    def nvmlEventSetWait_v2(self, events: Any, milliseconds: int, /) -> Any:
        """Answers sooner than the driver, so that nobody waits for a test."""
        self._need_open()
        if self.events_fail is not None:
            raise NvmlError(self.events_fail)
        try:
            xid = self.xids.get(timeout=min(milliseconds / 1000, EVENT_WAIT_SECONDS))
        except queue.Empty:
            raise NvmlError(TIMEOUT) from None
        return SimpleNamespace(device=xid.gpu, eventType=EVENT_XID, eventData=xid.number, gpuInstanceId=xid.instance)

    def nvmlDeviceGetMigMode(self, handle: Handle, /) -> list[int]:
        return self._asked(
            handle, "nvmlDeviceGetMigMode", lambda gpu: [MIG_ENABLED, MIG_ENABLED] if gpu.mig else [0, 0]
        )

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Handle, /) -> int:
        return self._asked(handle, "nvmlDeviceGetMaxMigDeviceCount", lambda gpu: 7)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Handle, index: int, /) -> Handle:
        instances = self._asked(handle, "nvmlDeviceGetMigDeviceHandleByIndex", lambda gpu: gpu.instances)
        if index not in instances:
            raise NvmlError(NOT_FOUND)
        return instances[index]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Handle, /) -> Handle:
        name = "nvmlDeviceGetDeviceHandleFromMigDeviceHandle"
        whole = [gpu for gpu in self.gpus if handle in gpu.instances.values()]
        return self._supported(handle, name, lambda _: whole[0] if whole else None)

    def nvmlDeviceGetGpuInstanceId(self, handle: Handle, /) -> int:
        name = "nvmlDeviceGetGpuInstanceId"
        return self._supported(handle, name, lambda gpu: None if gpu.instance == NO_INSTANCE else gpu.instance)

    def _processes(self, gpu: FakeGpu, function: str, *, mps: bool) -> Sequence[Any]:
        processes = self._asked(gpu, function, lambda asked: [one for one in asked.processes if one.mps == mps])
        return [SimpleNamespace(pid=one.pid, usedGpuMemory=one.used) for one in processes]

    def _supported(self, gpu: FakeGpu, function: str, answer: Callable[[FakeGpu], T | None]) -> T:
        value = self._asked(gpu, function, answer)
        if value is None:
            raise NvmlError(NOT_SUPPORTED)
        return value

    def _asked(self, gpu: FakeGpu, function: str, answer: Callable[[FakeGpu], T]) -> T:
        """One call about one GPU: it may hang, find the driver closed, or fail as the test says."""
        self.asked[function] += 1
        self._goes_on.wait()
        self._need_open()
        code = gpu.fails.get(function, gpu.fails.get("*"))
        if code is not None:
            raise NvmlError(code)
        return answer(gpu)

    def _need_open(self) -> None:
        if self._users <= 0:
            raise NvmlError(UNINITIALIZED)


def _field_value(counter: tuple[int, int] | None) -> Any:
    if counter is None:
        return SimpleNamespace(nvmlReturn=NOT_SUPPORTED, valueType=0, value=SimpleNamespace(dVal=0.0))
    value, bits = counter
    kind, name = (1, "uiVal") if bits == 32 else (3, "ullVal")
    return SimpleNamespace(nvmlReturn=SUCCESS, valueType=kind, value=SimpleNamespace(**{name: value}))
