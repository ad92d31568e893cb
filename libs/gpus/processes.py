"""Which processes are on a GPU, how much of its memory each has, and how much of its SMs' time it takes."""

from collections.abc import Sequence
from typing import Any, Final

from libs.gpus.asking import Asker
from libs.gpus.nvml import NOTHING_TO_SAY, Handle, Nvml, available
from libs.gpus.values import part
from libs.messages.signals import GpuProcess

PROCESSES_MAX: Final = 128
"""Of one GPU, those with the most memory: a sample must fit into a message."""

RECENT_MICROSECONDS: Final = 1_000_000
REMEMBERED_SECONDS: Final = 2.0
"""The driver tells only of who was busy, when it likes: who is not told of for so long was idle."""

_NO_PIDS: Final = frozenset({0, 0xFFFF_FFFF})  # what a driver of another version than the binding makes of a pid


class GpuProcessReader:
    """Remembers how far it has read the driver's log of who was busy on one GPU.

    The clients of an MPS server have their memory told, but the driver puts all their SM time on the server.
    """

    def __init__(self) -> None:
        self._since = 0
        self._busy: dict[int, tuple[float, float]] = {}  # by pid: part of the SMs' time, and when that was read

    def read(self, nvml: Nvml, handle: Handle, asker: Asker, *, now: float) -> tuple[GpuProcess, ...]:
        memory = _memory(nvml, handle, asker)
        if not memory:
            return ()
        told = self._read_busy(nvml, handle, asker, now=now)
        most = sorted(memory, key=lambda pid: (-(memory[pid] or 0), pid))[:PROCESSES_MAX]
        return tuple(
            GpuProcess(pid=pid, memory_used=memory[pid], sm_utilisation=self._busy_part(pid) if told else None)
            for pid in sorted(most)
        )

    def _busy_part(self, pid: int) -> float:
        return self._busy[pid][0] if pid in self._busy else 0.0

    def _read_busy(self, nvml: Nvml, handle: Handle, asker: Asker, *, now: float) -> bool:
        """False where this driver, GPU or user has no such log."""
        samples = asker.ask_list(nvml.nvmlDeviceGetProcessUtilization, handle, self._since, empty=NOTHING_TO_SAY)
        if samples is None:
            self._busy = {}
            return False
        newest = max((sample.timeStamp for sample in samples), default=self._since)
        parts: dict[int, list[float]] = {}
        for sample in samples:
            busy = part(sample.smUtil)
            if sample.pid not in _NO_PIDS and busy is not None and sample.timeStamp > newest - RECENT_MICROSECONDS:
                parts.setdefault(sample.pid, []).append(busy)
        self._since = newest
        still = {pid: seen for pid, seen in self._busy.items() if now - seen[1] < REMEMBERED_SECONDS}
        self._busy = still | {pid: (sum(found) / len(found), now) for pid, found in parts.items()}
        return True


def _memory(nvml: Nvml, handle: Handle, asker: Asker) -> dict[int, int | None]:
    """By pid of the host, in bytes; None where the driver does not tell."""
    running: Sequence[Any] | None = None
    for listing in (
        nvml.nvmlDeviceGetComputeRunningProcesses_v3,
        nvml.nvmlDeviceGetComputeRunningProcesses_v2,
        nvml.nvmlDeviceGetComputeRunningProcesses_v1,
    ):
        running = asker.ask_list(listing, handle)
        if running is not None:
            break
    clients = asker.ask_list(nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, handle)
    found: dict[int, int | None] = {}
    for process in (*(running or ()), *(clients or ())):
        if process.pid not in _NO_PIDS:
            used = None if process.usedGpuMemory is None else available(int(process.usedGpuMemory))
            found[process.pid] = used if used is not None else found.get(process.pid)
    return found
