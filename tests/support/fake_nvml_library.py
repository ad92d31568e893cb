# ruff: noqa: N802 (these are NVML's own names)
"""The driver's library for tests: what pynvml finds where libnvidia-ml.so.1 would be, over the GPUs of `fake_nvml.py`.

pynvml's own packing and unpacking, and what we do where a driver lacks a function, run as they do on a real machine:
each function here fills the ctypes arguments that it is given and returns an error code. It says that it is a fake.
"""

import ctypes
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import pynvml

from tests.support.fake_gpu import (
    EVENT_WAIT_SECONDS,
    GPU_IS_LOST,
    INSUFFICIENT_SIZE,
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
from weft.gpus.nvml import EVENT_XID, TIMEOUT

_HANDLES = 0x1000  # handles are numbers from here on, another range for each opening: old ones mean nothing
_PER_OPENING = 0x1000
_EVENTS = 0x10
_NOT_TOLD = 0xFFFF_FFFF_FFFF_FFFF


_NUMBERS: Final[dict[str, Callable[[FakeGpu], int | None]]] = {
    "nvmlDeviceGetMaxMigDeviceCount": lambda gpu: 7,
    "nvmlDeviceGetGpuInstanceId": lambda gpu: None if gpu.instance == NO_INSTANCE else gpu.instance,
    "nvmlDeviceGetPowerUsage": lambda gpu: gpu.power_milliwatts,
    "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: gpu.power_limit_milliwatts,
    "nvmlDeviceGetTotalEnergyConsumption": lambda gpu: gpu.energy_millijoules,
    "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: gpu.clock_events,
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: gpu.clock_events,
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda gpu: gpu.pcie[0],
    "nvmlDeviceGetCurrPcieLinkWidth": lambda gpu: gpu.pcie[1],
    "nvmlDeviceGetPcieReplayCounter": lambda gpu: gpu.pcie_replays,
    "nvmlDeviceGetSupportedEventTypes": lambda gpu: EVENT_XID if gpu.xids else 0,
}
"""The functions that fill one number of one GPU; None: it does not support that."""


@contextmanager
def installed(library: "FakeLibrary") -> Iterator["FakeLibrary"]:
    """pynvml uses `library` inside, and is left as if it had never been loaded."""
    _use(library)
    try:
        yield library
    finally:
        _use(None)


def _use(library: "FakeLibrary | None") -> None:
    pynvml.nvmlLib = library
    pynvml._nvmlGetFunctionPointer_cache.clear()
    pynvml._nvmlLib_refcount = 0


class FakeLibrary:
    """`fails`: by C function's name, the code it returns. `missing`: functions that this driver has not (before it
    is installed). `lost_after`: calls about a GPU after which all GPUs are lost. `calls` counts them. `hang()` makes
    every later call wait for `release()`."""

    weft_is_fake: ClassVar[bool] = True

    def __init__(self, gpus: Sequence[FakeGpu], *, driver: str = "570.86.15", missing: Sequence[str] = ()) -> None:
        self.gpus = list(gpus)
        self.driver = driver
        self.missing = frozenset(missing)
        self.fails: dict[str, int] = {}
        self.lost_after: int | None = None
        self.calls: Counter[str] = Counter()
        self.throughput_seconds = 0.0  # how long nvmlDeviceGetPcieThroughput blocks: 0.02 on real GPUs
        self.xids: queue.Queue[Xid] = queue.Queue()
        self.gpm_samples: dict[int, dict[int, float]] = {}
        self._goes_on = threading.Event()
        self._goes_on.set()
        self._users = 0
        self._opening = 0
        self._sample_next = 1

    def __getattr__(self, name: str) -> Callable[..., int]:
        method = type(self).__dict__.get(f"_{name}") if name.startswith("nvml") else None
        if name in self.missing or (method is None and name not in _NUMBERS):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls[name] += 1
            self._goes_on.wait()
            if name in self.fails:
                return self.fails[name]
            if self._users == 0 and name != "nvmlInitWithFlags":
                return UNINITIALIZED
            if method is None:
                handle, target = arguments
                return self._number(handle, target, _NUMBERS[name])
            code: int = method(self, *arguments)
            return code

        return call

    def hang(self) -> None:
        self._goes_on.clear()

    def release(self) -> None:
        self._goes_on.set()

    # the library itself

    def _nvmlInitWithFlags(self, flags: int) -> int:
        self._users += 1
        if self._users == 1:
            self._opening += 1
        return SUCCESS

    def _nvmlShutdown(self) -> int:
        self._users -= 1
        return SUCCESS

    def _nvmlSystemGetDriverVersion(self, buffer: Any, length: Any) -> int:
        buffer.value = self.driver.encode()
        return SUCCESS

    # which GPUs there are

    def _everyone(self) -> list[FakeGpu]:
        return [one for gpu in self.gpus for one in (gpu, *gpu.instances.values())]

    def _handle(self, target: Any, gpu: FakeGpu) -> int:
        place = next(place for place, one in enumerate(self._everyone()) if one is gpu)
        ctypes.c_void_p.from_buffer(target._obj).value = _HANDLES + self._opening * _PER_OPENING + place
        return self._error(gpu)

    def _gpu(self, handle: Any) -> FakeGpu:
        number = (ctypes.cast(handle, ctypes.c_void_p).value or 0) - _HANDLES - self._opening * _PER_OPENING
        gpus = self._everyone()
        if not 0 <= number < len(gpus):
            raise ValueError(f"a handle of another opening: {number}")
        return gpus[number]

    def _error(self, gpu: FakeGpu) -> int:
        if self.lost_after is not None:
            self.lost_after -= 1
            if self.lost_after < 0:
                return GPU_IS_LOST
        return gpu.fails.get("*", SUCCESS)

    def _number(self, handle: Any, target: Any, answer: Callable[[FakeGpu], float | None]) -> int:
        gpu = self._gpu(handle)
        value = answer(gpu)
        if value is None:
            return NOT_SUPPORTED
        target._obj.value = value
        return self._error(gpu)

    def _nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.gpus)
        return SUCCESS

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        return self._handle(handle, self.gpus[index.value])

    def _nvmlDeviceGetHandleByUUID(self, uuid: Any, handle: Any) -> int:
        for gpu in self._everyone():
            if gpu.uuid.encode() == uuid.value:
                return self._handle(handle, gpu)
        return NOT_FOUND

    def _nvmlDeviceGetUUID(self, handle: Any, buffer: Any, length: Any) -> int:
        buffer.value = self._gpu(handle).uuid.encode()
        return self._error(self._gpu(handle))

    def _nvmlDeviceGetName(self, handle: Any, buffer: Any, length: Any) -> int:
        name = self._gpu(handle).name
        buffer.value = name.encode() if isinstance(name, str) else name
        return self._error(self._gpu(handle))

    def _nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:
        pending._obj.value = int(self._gpu(handle).mig)
        return self._number(handle, current, lambda gpu: int(gpu.mig))

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: Any, found: Any) -> int:
        instance = self._gpu(handle).instances.get(index.value)
        return NOT_FOUND if instance is None else self._handle(found, instance)

    def _nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Any, found: Any) -> int:
        for gpu in self.gpus:
            if any(one is self._gpu(handle) for one in gpu.instances.values()):
                return self._handle(found, gpu)
        return INVALID_ARGUMENT

    # its values

    def _nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        gpu = self._gpu(handle)
        memory._obj.total, memory._obj.used = gpu.memory_total, gpu.memory_used + gpu.memory_reserved
        return self._error(gpu)

    def _nvmlDeviceGetMemoryInfo_v2(self, handle: Any, memory: Any) -> int:
        gpu = self._gpu(handle)
        if memory._obj.version != pynvml.nvmlMemory_v2:
            return INVALID_ARGUMENT
        memory._obj.total, memory._obj.used, memory._obj.reserved = (
            gpu.memory_total,
            gpu.memory_used,
            gpu.memory_reserved,
        )
        return self._error(gpu)

    def _nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:
        gpu = self._gpu(handle)
        if gpu.instance != NO_INSTANCE:
            return NOT_SUPPORTED
        rates._obj.gpu, rates._obj.memory = gpu.utilisation, gpu.memory_utilisation
        return self._error(gpu)

    def _nvmlDeviceGetTemperature(self, handle: Any, sensor: Any, degrees: Any) -> int:
        return self._number(handle, degrees, lambda gpu: gpu.temperature)

    def _nvmlDeviceGetTemperatureThreshold(self, handle: Any, kind: Any, degrees: Any) -> int:
        return self._number(handle, degrees, lambda gpu: gpu.temperature_slowdown)

    def _nvmlDeviceGetClockInfo(self, handle: Any, clock: Any, mhz: Any) -> int:
        sm = clock.value == pynvml.NVML_CLOCK_SM
        return self._number(handle, mhz, lambda gpu: gpu.sm_clock if sm else gpu.memory_clock)

    def _nvmlDeviceGetMaxClockInfo(self, handle: Any, clock: Any, mhz: Any) -> int:
        return self._number(handle, mhz, lambda gpu: gpu.sm_clock_max)

    def _nvmlDeviceGetViolationStatus(self, handle: Any, policy: Any, status: Any) -> int:
        gpu = self._gpu(handle)
        status._obj.violationTime = (gpu.power_capped_nanoseconds, gpu.thermal_nanoseconds)[policy.value]
        return self._error(gpu)

    def _nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: Any, counter: Any, count: Any) -> int:
        return self._number(handle, count, lambda gpu: gpu.ecc_of(kind.value, counter.value))

    def _nvmlDeviceGetRemappedRows(self, handle: Any, *targets: Any) -> int:
        gpu = self._gpu(handle)
        if gpu.rows is None:
            return NOT_SUPPORTED
        for target, value in zip(targets, gpu.rows, strict=True):
            target._obj.value = value
        return self._error(gpu)

    # its links

    def _nvmlDeviceGetPcieThroughput(self, handle: Any, counter: Any, kib: Any) -> int:
        time.sleep(self.throughput_seconds)
        return self._number(handle, kib, lambda gpu: gpu.pcie_kib[counter.value])

    def _nvmlDeviceGetFieldValues(self, handle: Any, count: Any, values: Any) -> int:
        gpu = self._gpu(handle)
        for value in values._obj[: count.value]:
            counter = gpu.counter(value.fieldId, value.scopeId)
            value.nvmlReturn = NOT_SUPPORTED if counter is None else SUCCESS
            if counter is not None and counter[1] == 32:
                value.valueType, value.value.uiVal = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, counter[0]
            elif counter is not None:
                value.valueType, value.value.ullVal = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, counter[0]
        return self._error(gpu)

    def _nvmlDeviceGetNvLinkState(self, handle: Any, link: int, active: Any) -> int:
        states = self._gpu(handle).nvlinks
        if link >= len(states):
            return INVALID_ARGUMENT if states else NOT_SUPPORTED
        return self._number(handle, active, lambda gpu: states[link])

    def _nvmlDeviceGetTopologyCommonAncestor(self, handle: Any, other: Any, level: Any) -> int:
        return self._number(handle, level, lambda gpu: topology_level(gpu, self._gpu(other)))

    # its processes

    def _nvmlDeviceGetComputeRunningProcesses(self, handle: Any, count: Any, found: Any) -> int:
        return self._processes(handle, count, found, mps=False)

    def _nvmlDeviceGetComputeRunningProcesses_v2(self, handle: Any, count: Any, found: Any) -> int:
        return self._processes(handle, count, found, mps=False)

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, found: Any) -> int:
        return self._processes(handle, count, found, mps=False)

    def _nvmlDeviceGetMPSComputeRunningProcesses_v3(self, handle: Any, count: Any, found: Any) -> int:
        return self._processes(handle, count, found, mps=True)

    def _processes(self, handle: Any, count: Any, found: Any, *, mps: bool) -> int:
        gpu = self._gpu(handle)
        processes = [process for process in gpu.processes if process.mps == mps]
        room = count._obj.value
        count._obj.value = len(processes)
        if len(processes) > room:
            return INSUFFICIENT_SIZE
        for place, process in enumerate(processes):
            found[place].pid = process.pid
            found[place].usedGpuMemory = _NOT_TOLD if process.used is None else process.used
        return self._error(gpu)

    def _nvmlDeviceGetProcessUtilization(self, handle: Any, samples: Any, count: Any, since: Any) -> int:
        """With nobody busy it succeeds with none, which pynvml raises as an error of the value 0."""
        gpu = self._gpu(handle)
        busy = gpu.busy_since(since.value)
        room = count._obj.value if samples is not None else 0
        count._obj.value = len(busy)
        if len(busy) > room:
            return INSUFFICIENT_SIZE
        for place, process in enumerate(busy):
            samples[place].pid, samples[place].timeStamp = process.pid, process.seen_at
            samples[place].smUtil = process.busy or 0
        return self._error(gpu)

    # what the chip counts

    def _nvmlGpmQueryDeviceSupport(self, handle: Any, support: Any) -> int:
        gpu = self._gpu(handle)
        support._obj.isSupportedDevice = int(gpu.gpm is not None)
        return self._error(gpu)

    def _nvmlGpmSampleAlloc(self, sample: Any) -> int:
        number, self._sample_next = self._sample_next, self._sample_next + 1
        self.gpm_samples[number] = {}
        ctypes.c_void_p.from_buffer(sample._obj).value = number
        return SUCCESS

    def _nvmlGpmSampleFree(self, sample: Any) -> int:
        return SUCCESS if self.gpm_samples.pop(_pointer(sample), None) is not None else INVALID_ARGUMENT

    def _nvmlGpmSampleGet(self, handle: Any, sample: Any) -> int:
        gpu = self._gpu(handle)
        if gpu.gpm is None or gpu.mig:
            return NOT_SUPPORTED
        self.gpm_samples[_pointer(sample)] = dict(gpu.gpm)
        return self._error(gpu)

    def _nvmlGpmMigSampleGet(self, handle: Any, instance: int, sample: Any) -> int:
        for one in self._gpu(handle).instances.values():
            if one.instance == instance and one.gpm is not None:
                self.gpm_samples[_pointer(sample)] = dict(one.gpm)
                return self._error(one)
        return NOT_FOUND

    def _nvmlGpmMetricsGet(self, request: Any) -> int:
        asked = request._obj
        newer = self.gpm_samples[_pointer(asked.sample2)]
        if _pointer(asked.sample1) not in self.gpm_samples or asked.version != pynvml.NVML_GPM_METRICS_GET_VERSION:
            return INVALID_ARGUMENT
        for metric in asked.metrics[: asked.numMetrics]:
            metric.nvmlReturn = SUCCESS if metric.metricId in newer else NOT_SUPPORTED
            metric.value = newer.get(metric.metricId, 0.0)
        return SUCCESS

    # its errors

    def _nvmlEventSetCreate(self, events: Any) -> int:
        ctypes.c_void_p.from_buffer(events._obj).value = _EVENTS
        return SUCCESS

    def _nvmlEventSetFree(self, events: Any) -> int:
        return SUCCESS

    def _nvmlDeviceRegisterEvents(self, handle: Any, types: Any, events: Any) -> int:
        return self._error(self._gpu(handle))

    def _nvmlEventSetWait_v2(self, events: Any, data: Any, milliseconds: Any) -> int:
        """Answers sooner than the driver, so that nobody waits for a test."""
        try:
            xid = self.xids.get(timeout=min(milliseconds.value / 1000, EVENT_WAIT_SECONDS))
        except queue.Empty:
            return TIMEOUT
        place = next(place for place, one in enumerate(self._everyone()) if one is xid.gpu)
        device = pynvml.c_nvmlDevice_t()
        ctypes.c_void_p.from_buffer(device).value = _HANDLES + self._opening * _PER_OPENING + place
        data._obj.device = device
        data._obj.eventType, data._obj.eventData, data._obj.gpuInstanceId = EVENT_XID, xid.number, xid.instance
        return SUCCESS


def _pointer(value: Any) -> int:
    return ctypes.cast(value, ctypes.c_void_p).value or 0
