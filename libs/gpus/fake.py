# ruff: noqa: N802 (these are NVML's own names)
"""A driver for tests: the functions of NVML that we call, over GPUs that a test describes and breaks.

No GPU was there when this was written, so it follows NVIDIA's documentation and its users' reports, not a recording.
It raises the real binding's own errors.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from libs.gpus.nvml import MIG_ENABLED, Handle, Memory, Utilisation, nvml_error

T = TypeVar("T")

# The error codes of NVML's own header that a test may want.
UNINITIALIZED = 1
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
LIBRARY_DRIVER_MISMATCH = 18
UNKNOWN = 999


@dataclass
class _Memory:
    total: int
    used: int


@dataclass
class _Utilisation:
    gpu: int
    memory: int


@dataclass
class FakeGpu:
    """A GPU as the driver would tell of it. `fails` maps a function's name, or "*", to the error code it raises."""

    uuid: str
    name: str | bytes = "NVIDIA H200"
    memory_total: int = 141 * 2**30
    memory_used: int = 0
    utilisation: int = 0
    power_milliwatts: int = 75_000
    power_limit_milliwatts: int = 700_000
    temperature: int = 30
    sm_clock: int = 345
    sm_clock_max: int = 1980
    fails: dict[str, int] = field(default_factory=dict)
    mig: bool = False
    instances: dict[int, "FakeGpu"] = field(default_factory=dict)  # by place
    bytes_uuid: bool = False


@dataclass
class FakeNvml:
    """`init_fails` and `count_fails` are error codes. `hang()` makes every later question wait for `release()`."""

    gpus: list[FakeGpu] = field(default_factory=list)
    init_fails: int | None = None
    count_fails: int | None = None
    opened: int = 0  # times nvmlInit succeeded
    busiest: int = 0  # the most calls that were under way at once
    _users: int = 0
    _in_calls: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _goes_on: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._goes_on.set()

    def hang(self) -> None:
        self._goes_on.clear()

    def release(self) -> None:
        self._goes_on.set()

    def nvmlInit(self) -> None:
        if self.init_fails is not None:
            raise nvml_error(self.init_fails)
        self._users += 1
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self._need_open()
        self._users -= 1

    def nvmlDeviceGetCount(self) -> int:
        self._need_open()
        if self.count_fails is not None:
            raise nvml_error(self.count_fails)
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> Handle:
        return self._asked(self.gpus[index], "nvmlDeviceGetHandleByIndex", lambda gpu: gpu)

    def nvmlDeviceGetHandleByUUID(self, uuid: str, /) -> Handle:
        self._need_open()
        for whole in self.gpus:
            for gpu in (whole, *whole.instances.values()):
                if gpu.uuid == uuid:
                    return self._asked(gpu, "nvmlDeviceGetHandleByUUID", lambda found: found)
        raise nvml_error(NOT_FOUND)

    def nvmlDeviceGetUUID(self, handle: Handle, /) -> str | bytes:
        return self._asked(handle, "nvmlDeviceGetUUID", lambda gpu: gpu.uuid.encode() if gpu.bytes_uuid else gpu.uuid)

    def nvmlDeviceGetName(self, handle: Handle, /) -> str | bytes:
        return self._asked(handle, "nvmlDeviceGetName", lambda gpu: gpu.name)

    def nvmlDeviceGetMemoryInfo(self, handle: Handle, /) -> Memory:
        return self._asked(
            handle, "nvmlDeviceGetMemoryInfo", lambda gpu: _Memory(total=gpu.memory_total, used=gpu.memory_used)
        )

    def nvmlDeviceGetUtilizationRates(self, handle: Handle, /) -> Utilisation:
        return self._asked(
            handle, "nvmlDeviceGetUtilizationRates", lambda gpu: _Utilisation(gpu=gpu.utilisation, memory=0)
        )

    def nvmlDeviceGetPowerUsage(self, handle: Handle, /) -> int:
        return self._asked(handle, "nvmlDeviceGetPowerUsage", lambda gpu: gpu.power_milliwatts)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Handle, /) -> int:
        return self._asked(handle, "nvmlDeviceGetEnforcedPowerLimit", lambda gpu: gpu.power_limit_milliwatts)

    def nvmlDeviceGetTemperature(self, handle: Handle, sensor: int, /) -> int:
        return self._asked(handle, "nvmlDeviceGetTemperature", lambda gpu: gpu.temperature)

    def nvmlDeviceGetClockInfo(self, handle: Handle, clock: int, /) -> int:
        return self._asked(handle, "nvmlDeviceGetClockInfo", lambda gpu: gpu.sm_clock)

    def nvmlDeviceGetMaxClockInfo(self, handle: Handle, clock: int, /) -> int:
        return self._asked(handle, "nvmlDeviceGetMaxClockInfo", lambda gpu: gpu.sm_clock_max)

    def nvmlDeviceGetMigMode(self, handle: Handle, /) -> list[int]:
        return self._asked(
            handle, "nvmlDeviceGetMigMode", lambda gpu: [MIG_ENABLED, MIG_ENABLED] if gpu.mig else [0, 0]
        )

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Handle, /) -> int:
        return self._asked(handle, "nvmlDeviceGetMaxMigDeviceCount", lambda gpu: 7)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Handle, index: int, /) -> Handle:
        instances = self._asked(handle, "nvmlDeviceGetMigDeviceHandleByIndex", lambda gpu: gpu.instances)
        if index not in instances:
            raise nvml_error(NOT_FOUND)
        return instances[index]

    def _asked(self, gpu: FakeGpu, function: str, answer: Callable[[FakeGpu], T]) -> T:
        """One call about one GPU: it may hang, find the driver closed, or fail as the test says."""
        with self._lock:
            self._in_calls += 1
            self.busiest = max(self.busiest, self._in_calls)
        self._goes_on.wait()
        with self._lock:
            self._in_calls -= 1
        self._need_open()
        code = gpu.fails.get(function, gpu.fails.get("*"))
        if code is not None:
            raise nvml_error(code)
        return answer(gpu)

    def _need_open(self) -> None:
        if self._users <= 0:
            raise nvml_error(UNINITIALIZED)
