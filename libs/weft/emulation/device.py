"""An emulated GPU as the emulated driver keeps it: a file that all processes on it share (`native/emulated.h`).

A benchmark reads the truth here: how long the device worked and for which process, whatever hook and arbiter say.
"""

import struct
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from weft.domain.cluster import Gpu
from weft.emulation.native import DRIVER
from weft.messages.signals import GpuProcess, GpuSample
from weft.sharing.places import device_of
from weft.sharing.slots import read_file

DEVICE_VARIABLE = "WEFT_EMULATED_DEVICE"  # the folder with a file for each emulated GPU of a node
MEMORY_VARIABLE = "WEFT_EMULATED_MEMORY"  # bytes that a GPU has when its file is made

_ANY_USER = 0o777  # of a container

MAGIC = int.from_bytes(b"WEFTEMU1", "little")
VERSION = 1
PROCESSES = 1024
HEAD_BYTES = PROCESS_BYTES = 128

STARTED_SLACK_SECONDS = 1.0

_HEAD = struct.Struct("<QIIQQQQ")
_PROCESS = struct.Struct("<IIQQQQ")


class EmulatedDriver:
    """Gives a run the driver: its library, a folder for the state of the GPU, and variables."""

    library = DRIVER

    def device(self, devices: Path, gpu: Gpu) -> Path:
        """The folder below `devices` that all processes on the GPU write, made if it is missing. Raises OSError."""
        folder = device_of(devices, gpu.uuid)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(_ANY_USER)
        return folder

    def variables(self, gpu: Gpu, device: str) -> Mapping[str, str]:
        """`device`: the folder as the run sees it."""
        return {DEVICE_VARIABLE: device, MEMORY_VARIABLE: str(gpu.memory)}


class DeviceProcess(Struct, frozen=True):
    """A process that used the GPU, living or dead. What a dead one used stays until its place is needed.

    `pid` is as the process sees itself; `memory` in bytes, also of a dead process until the next allocation;
    `busy_ns` is device time; `began_ns` of CLOCK_MONOTONIC.
    """

    pid: int
    memory: int
    busy_ns: int
    kernels: int
    began_ns: int


class DeviceCount(Struct, frozen=True):
    """`memory`: bytes that the GPU has; `busy_ns`: device time of all processes that there ever were."""

    memory: int
    busy_ns: int
    kernels: int
    processes: tuple[DeviceProcess, ...]

    def busy_of(self, pid: int) -> int:
        """Device time of the processes with this number, in ns."""
        return sum(process.busy_ns for process in self.processes if process.pid == pid)


def device_file(folder: Path, index: int = 0) -> Path:
    return folder / f"device-{index}"


def read_device(folder: Path, index: int = 0) -> DeviceCount:
    """What one emulated GPU counted. Raises OSError, and ValueError if the file is not of this version.

    Every process on the GPU may write the file: whatever lies there, reading it waits for nobody.
    """
    name = device_file(folder, index).name
    data = read_file(folder, name, bytes_max=HEAD_BYTES + PROCESSES * PROCESS_BYTES)
    if len(data) != HEAD_BYTES + PROCESSES * PROCESS_BYTES:
        raise ValueError(f"{name} has {len(data)} bytes")
    magic, version, _, memory, _, busy, kernels = _HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise ValueError(f"{name} is not of an emulated GPU of version {VERSION}")
    found: list[DeviceProcess] = []
    for at in range(HEAD_BYTES, len(data), PROCESS_BYTES):
        pid, taken, used, own, launched, began = _PROCESS.unpack_from(data, at)
        if taken:
            found.append(DeviceProcess(pid=pid, memory=used, busy_ns=own, kernels=launched, began_ns=began))
    return DeviceCount(memory=memory, busy_ns=busy, kernels=kernels, processes=tuple(found))


class EmulatedDevices:
    """The processes on the emulated GPUs of this host; NVML names those on real ones.

    A process is there under the pid by which it sees itself: those in containers are left out. `folder`: the
    executor's, with the state of each emulated GPU. `started_at`: the seconds from the host's boot to the start of the
    process with a number, None if no such process lives.
    """

    def __init__(
        self,
        folder: Path,
        *,
        started_at: Callable[[int], float | None],
        boot_clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._started_at = folder, started_at
        self._asleep = time.clock_gettime(time.CLOCK_BOOTTIME) - boot_clock()  # a process's start counts from boot

    def with_processes(self, gpus: tuple[GpuSample, ...]) -> tuple[GpuSample, ...]:
        """The samples, those of emulated GPUs with the living processes that launched something there."""
        if not self._folder.is_dir():
            return gpus
        return tuple(replace(gpu, processes=tuple(self._on(gpu))) if gpu.emulated else gpu for gpu in gpus)

    def _on(self, gpu: GpuSample) -> Iterable[GpuProcess]:
        try:
            device: DeviceCount = read_device(device_of(self._folder, gpu.uuid), gpu.index)
        except (OSError, ValueError):
            return  # nothing has used it
        for process in device.processes:
            if process.kernels and self._lives(process):
                yield GpuProcess(pid=process.pid, memory_used=process.memory)

    def _lives(self, process: DeviceProcess) -> bool:
        """Return True if that process lives: since it ended, another one may have got its number."""
        started = self._started_at(process.pid)
        return started is not None and started <= process.began_ns / 1e9 + self._asleep + STARTED_SLACK_SECONDS
