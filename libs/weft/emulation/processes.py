"""The processes on emulated GPUs, by the files that the emulated driver keeps. NVML names those on real ones.

A process is there under the pid by which it sees itself: for processes of this host, and not for those in containers.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec.structs import replace

from weft.emulation.device import DeviceCount, DeviceProcess, read_device
from weft.messages.signals import GpuProcess, GpuSample
from weft.sharing.places import device_of

STARTED_SLACK_SECONDS = 1.0


class EmulatedDevices:
    """`folder`: the executor's, with the state of each emulated GPU. `started_at`: the seconds from the host's boot to
    the start of the process with a number, None if no such process lives."""

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
