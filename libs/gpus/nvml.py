# ruff: noqa: N802 (these are NVML's own names)
"""NVIDIA's driver library as we use it. The only module that imports pynvml, which has no types.

Any value may be missing on any GPU, so each is asked for by `known`, which turns "not supported here" into None and
lets through what says that the GPU or the whole driver is gone.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

import pynvml

T = TypeVar("T")

Handle: TypeAlias = Any
"""A device as the driver knows it; means nothing to us, and nothing any more once the GPU was reset or lost."""


class Memory(Protocol):
    """In bytes; `total` counts what the driver keeps for itself."""

    total: int
    used: int


class Utilisation(Protocol):
    """Part of the last sampling period, in %: `gpu` in which any kernel ran, `memory` in which memory was moved."""

    gpu: int
    memory: int


class Nvml(Protocol):
    """The functions of NVML that we call, as pynvml has them: they raise NvmlError, and block."""

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> Handle: ...
    def nvmlDeviceGetHandleByUUID(self, uuid: str, /) -> Handle: ...
    def nvmlDeviceGetUUID(self, handle: Handle, /) -> str | bytes: ...
    def nvmlDeviceGetName(self, handle: Handle, /) -> str | bytes: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Handle, /) -> Memory: ...
    def nvmlDeviceGetUtilizationRates(self, handle: Handle, /) -> Utilisation: ...
    def nvmlDeviceGetPowerUsage(self, handle: Handle, /) -> int: ...
    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Handle, /) -> int: ...
    def nvmlDeviceGetTemperature(self, handle: Handle, sensor: int, /) -> int: ...
    def nvmlDeviceGetClockInfo(self, handle: Handle, clock: int, /) -> int: ...
    def nvmlDeviceGetMaxClockInfo(self, handle: Handle, clock: int, /) -> int: ...
    def nvmlDeviceGetMigMode(self, handle: Handle, /) -> list[int]: ...
    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Handle, /) -> int: ...
    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Handle, index: int, /) -> Handle: ...


DRIVER: Final = cast(Nvml, pynvml)

NvmlError: Final = cast(type[Exception], pynvml.NVMLError)

SENSOR_GPU: Final[int] = pynvml.NVML_TEMPERATURE_GPU
CLOCK_SM: Final[int] = pynvml.NVML_CLOCK_SM
MIG_ENABLED: Final[int] = pynvml.NVML_DEVICE_MIG_ENABLE

LIBRARY_NOT_FOUND: Final[int] = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND

# What only says that this one value is not to be had from this GPU, this driver, or by this user.
_VALUE_MISSING: Final = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,  # some drivers say so of a sensor or clock that a MIG instance lacks
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,  # the driver is older than the library's binding
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_NOT_READY,
        pynvml.NVML_SUCCESS,  # pynvml raises it where the driver had nothing to say
    }
)

_NOT_AVAILABLE: Final = frozenset({0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF, -1})


def code_of(error: Exception) -> int:
    return cast(int, getattr(error, "value", pynvml.NVML_ERROR_UNKNOWN))


def nvml_error(code: int) -> Exception:
    """The driver's error of that code, for a fake to raise."""
    return NvmlError(code)


def known(ask: Callable[..., T], *arguments: Any) -> T | None:
    """What the driver answers; None where this value is not to be had."""
    try:
        return ask(*arguments)
    except NvmlError as error:
        if code_of(error) in _VALUE_MISSING:
            return None
        raise


def number(ask: Callable[..., int], *arguments: Any) -> int | None:
    """A number of the driver's; None also for the all-ones with which it says N/A."""
    value = known(ask, *arguments)
    return None if value in _NOT_AVAILABLE else value


def text(value: str | bytes) -> str:
    """Bindings of some ages answer bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
