# ruff: noqa: N802 (these are NVML's own names)
"""NVIDIA's driver library as we use it. Only this module and the fake of the library import pynvml (no types).

Any value may be missing on any GPU, so each is read through `known`, which turns "not supported here" into None and
raises the errors that mean that the GPU or the driver is gone. An `Asker` survives these errors, too.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

import pynvml

T = TypeVar("T")

Handle: TypeAlias = Any
"""The driver's opaque handle of a device; invalid once the GPU was reset or lost."""


class MemoryInfo(Protocol):
    """In bytes. `total` includes the driver's own memory; `used` includes it in version 1 only."""

    total: int
    used: int


class Utilisation(Protocol):
    """Parts of the last sampling period in %: `gpu` while any kernel ran, `memory` while memory was read or written."""

    gpu: int
    memory: int


class Nvml(Protocol):
    """The functions of NVML that we call, as pynvml has them: they raise NvmlError, and block."""

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlSystemGetDriverVersion(self) -> str | bytes: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> Handle: ...
    def nvmlDeviceGetHandleByUUID(self, uuid: str, /) -> Handle: ...
    def nvmlDeviceGetUUID(self, handle: Handle, /) -> str | bytes: ...
    def nvmlDeviceGetName(self, handle: Handle, /) -> str | bytes: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Handle, version: int | None = None, /) -> MemoryInfo: ...
    def nvmlDeviceGetUtilizationRates(self, handle: Handle, /) -> Utilisation: ...
    def nvmlDeviceGetPowerUsage(self, handle: Handle, /) -> int: ...
    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Handle, /) -> int: ...
    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Handle, /) -> int: ...
    def nvmlDeviceGetTemperature(self, handle: Handle, sensor: int, /) -> int: ...
    def nvmlDeviceGetTemperatureThreshold(self, handle: Handle, kind: int, /) -> int: ...
    def nvmlDeviceGetClockInfo(self, handle: Handle, clock: int, /) -> int: ...
    def nvmlDeviceGetMaxClockInfo(self, handle: Handle, clock: int, /) -> int: ...
    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Handle, /) -> int: ...
    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Handle, /) -> int: ...
    def nvmlDeviceGetViolationStatus(self, handle: Handle, policy: int, /) -> Any: ...
    def nvmlDeviceGetTotalEccErrors(self, handle: Handle, kind: int, counter: int, /) -> int: ...
    def nvmlDeviceGetRemappedRows(self, handle: Handle, /) -> tuple[int, int, int, int]: ...
    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: Handle, /) -> int: ...
    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: Handle, /) -> int: ...
    def nvmlDeviceGetPcieReplayCounter(self, handle: Handle, /) -> int: ...
    def nvmlDeviceGetPcieThroughput(self, handle: Handle, counter: int, /) -> int: ...
    def nvmlDeviceGetFieldValues(self, handle: Handle, fields: Sequence[tuple[int, int]], /) -> Sequence[Any]: ...
    def nvmlDeviceGetNvLinkState(self, handle: Handle, link: int, /) -> int: ...
    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: Handle, link: int, /) -> Any: ...
    def nvmlDeviceGetPciInfo(self, handle: Handle, /) -> Any: ...
    def nvmlDeviceGetTopologyCommonAncestor(self, handle: Handle, other: Handle, /) -> int: ...
    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Handle, /) -> Sequence[Any]: ...
    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: Handle, /) -> Sequence[Any]: ...
    def nvmlDeviceGetComputeRunningProcesses_v1(self, handle: Handle, /) -> Sequence[Any]: ...
    def nvmlDeviceGetMPSComputeRunningProcesses_v3(self, handle: Handle, /) -> Sequence[Any]: ...
    def nvmlDeviceGetProcessUtilization(self, handle: Handle, since: int, /) -> Sequence[Any]: ...
    def nvmlGpmQueryDeviceSupport(self, handle: Handle, /) -> Any: ...
    def nvmlGpmSampleAlloc(self) -> Any: ...
    def nvmlGpmSampleFree(self, sample: Any, /) -> None: ...
    def nvmlGpmSampleGet(self, handle: Handle, sample: Any, /) -> Any: ...
    def nvmlGpmMigSampleGet(self, handle: Handle, instance: int, sample: Any, /) -> Any: ...
    def gpm_metrics(self, older: Any, newer: Any, numbers: Sequence[int], /) -> list[float | None]: ...
    def nvmlEventSetCreate(self) -> Any: ...
    def nvmlEventSetFree(self, events: Any, /) -> None: ...
    def nvmlDeviceGetSupportedEventTypes(self, handle: Handle, /) -> int: ...
    def nvmlDeviceRegisterEvents(self, handle: Handle, types: int, events: Any, /) -> None: ...
    def nvmlEventSetWait_v2(self, events: Any, milliseconds: int, /) -> Any: ...
    def nvmlDeviceGetMigMode(self, handle: Handle, /) -> list[int]: ...
    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Handle, /) -> int: ...
    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Handle, index: int, /) -> Handle: ...
    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Handle, /) -> Handle: ...
    def nvmlDeviceGetGpuInstanceId(self, handle: Handle, /) -> int: ...


class _OldProcess(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong))


class _Binding:
    """pynvml, and two calls that it lacks or makes hard: the processes of old drivers, and GPM's metrics."""

    def __getattr__(self, name: str) -> Any:
        return getattr(pynvml, name)

    def nvmlDeviceGetComputeRunningProcesses_v1(self, handle: Handle, /) -> Sequence[Any]:
        function = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetComputeRunningProcesses")
        count = ctypes.c_uint(0)
        code = function(handle, ctypes.byref(count), None)
        if code != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
            pynvml._nvmlCheckReturn(code)
            return []
        count.value = count.value * 2 + 5  # more processes may have started meanwhile
        found = (_OldProcess * count.value)()
        pynvml._nvmlCheckReturn(function(handle, ctypes.byref(count), found))
        return list(found[: count.value])

    def gpm_metrics(self, older: Any, newer: Any, numbers: Sequence[int], /) -> list[float | None]:
        """`nvmlGpmMetricsGet`, which takes and fills one large structure; None for a metric that failed."""
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(numbers)
        request.sample1, request.sample2 = older, newer
        for place, number in enumerate(numbers):
            request.metrics[place].metricId = number
        pynvml.nvmlGpmMetricsGet(request)
        metrics = request.metrics[: len(numbers)]
        return [metric.value if metric.nvmlReturn == 0 else None for metric in metrics]


DRIVER: Final = cast(Nvml, _Binding())

NvmlError: Final = cast(type[Exception], pynvml.NVMLError)

SENSOR_GPU: Final[int] = pynvml.NVML_TEMPERATURE_GPU
TEMPERATURE_SLOWDOWN: Final[int] = pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
CLOCK_SM: Final[int] = pynvml.NVML_CLOCK_SM
CLOCK_MEMORY: Final[int] = pynvml.NVML_CLOCK_MEM
MEMORY_V2: Final[int] = pynvml.nvmlMemory_v2
MIG_ENABLED: Final[int] = pynvml.NVML_DEVICE_MIG_ENABLE
POLICY_POWER: Final[int] = pynvml.NVML_PERF_POLICY_POWER
POLICY_THERMAL: Final[int] = pynvml.NVML_PERF_POLICY_THERMAL
ECC_CORRECTED: Final[int] = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
ECC_UNCORRECTED: Final[int] = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
ECC_AGGREGATE: Final[int] = pynvml.NVML_AGGREGATE_ECC
ECC_VOLATILE: Final[int] = pynvml.NVML_VOLATILE_ECC
RECOVERY_ACTION: Final[int] = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
PCIE_SENT: Final[int] = pynvml.NVML_PCIE_UTIL_TX_BYTES
PCIE_RECEIVED: Final[int] = pynvml.NVML_PCIE_UTIL_RX_BYTES
NVLINKS_MAX: Final[int] = pynvml.NVML_NVLINK_MAX_LINKS
EVENT_XID: Final[int] = pynvml.nvmlEventTypeXidCriticalError

LIBRARY_NOT_FOUND: Final[int] = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
INSUFFICIENT_SIZE: Final[int] = pynvml.NVML_ERROR_INSUFFICIENT_SIZE
TIMEOUT: Final[int] = pynvml.NVML_ERROR_TIMEOUT
NOTHING_TO_SAY: Final[frozenset[int]] = frozenset({pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND})
"""Errors that mean "no sample" of processes' utilisation: pynvml raises even success, drivers answer "not found"."""

# Errors that mean only that this GPU, this driver or this user cannot have this one value.
_VALUE_MISSING: Final = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,  # some drivers' answer for a sensor or clock that a MIG instance lacks
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,  # the driver is older than the library's binding
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_NOT_READY,
        pynvml.NVML_ERROR_INSUFFICIENT_SIZE,  # a list grew between the two calls that pynvml makes for it
        pynvml.NVML_SUCCESS,  # pynvml raises it if the driver has no data
    }
)

# Errors that mean that the GPU cannot be reached at all.
_GONE: Final = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        pynvml.NVML_ERROR_GPU_NOT_FOUND,
    }
)

_NOT_AVAILABLE: Final = frozenset({0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF, -1})

MIG_PREFIX: Final = "MIG-"
"""How the uuid of a MIG instance begins."""

FAKE_MARK: Final = "weft_is_fake"
"""An attribute of every fake of the library, so that a fake is never taken for the driver."""


def provider_of(nvml: Nvml) -> str:
    """`nvml`, or `fake` for a fake of the driver or of its library."""
    library = getattr(nvml, "nvmlLib", None)
    return "fake" if hasattr(nvml, FAKE_MARK) or hasattr(library, FAKE_MARK) else "nvml"


def code_of(error: Exception) -> int:
    return cast(int, getattr(error, "value", pynvml.NVML_ERROR_UNKNOWN))


def means_missing(error: Exception) -> bool:
    return code_of(error) in _VALUE_MISSING


def means_gone(error: Exception) -> bool:
    return code_of(error) in _GONE


def known(ask: Callable[..., T], *arguments: Any) -> T | None:
    """The driver's answer; None if this value is not available."""
    try:
        return ask(*arguments)
    except UnicodeDecodeError:  # pynvml decodes every name as UTF-8
        return None
    except NvmlError as error:
        if means_missing(error):
            return None
        raise


def available(value: int | None) -> int | None:
    """The value; None also for all bits set, which is the driver's N/A."""
    return None if value in _NOT_AVAILABLE else value


def text(value: str | bytes) -> str:
    """The value as str: some versions of the binding answer bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def key_of(handle: Handle) -> int:
    """A key that is the same for all handles of one device while the driver stays open."""
    if isinstance(handle, ctypes._Pointer):
        return ctypes.cast(handle, ctypes.c_void_p).value or 0
    return id(handle)
