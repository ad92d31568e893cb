"""The processes on emulated GPUs, by the files that the emulated driver keeps. NVML names those on real ones.

A process is there under the pid by which it sees itself: for processes of this host, and not for those in containers.
"""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec.structs import replace

from weft.messages.signals import GpuProcess, GpuSample
from weft.sharing.emulated import DeviceCount, DeviceProcess, read_device
from weft.sharing.places import device_of
from weftd.telemetry.processes import read_process

STARTED_SLACK_SECONDS = 1.0
TICKS = os.sysconf("SC_CLK_TCK")


class EmulatedDevices:
    """`folder`: the executor's, with the state of each emulated GPU."""

    def __init__(self, folder: Path, *, proc: str = "/proc", boot_clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._proc = folder, proc
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
        """Whether that process lives, and not another one that has its number since."""
        found = read_process(process.pid, self._proc)
        if found is None or found.ended:
            return False
        return found.started / TICKS <= process.began_ns / 1e9 + self._asleep + STARTED_SLACK_SECONDS
