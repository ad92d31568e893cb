"""The processes on a GPU, with the GPU memory and the SM time of each."""

from collections.abc import Sequence
from typing import Any, Final

from weft.gpus.asking import Asker
from weft.gpus.nvml import NOTHING_TO_SAY, Handle, Nvml, available
from weft.gpus.values import part
from weft.messages.signals import GpuProcess

PROCESSES_MAX: Final = 128
"""The processes of one GPU in a sample, those with the most memory: a sample must fit into a message."""

RECENT_MICROSECONDS: Final = 1_000_000
REMEMBERED_SECONDS: Final = 2.0
"""The driver reports busy processes only, and irregularly; a process not reported for this long counts as idle."""

_NO_PIDS: Final = frozenset({0, 0xFFFF_FFFF})  # wrong pids, from a driver of another version than the binding


class GpuProcessReader:
    """Reads one GPU's processes, and keeps its position in the driver's log of busy processes.

    The driver reports the memory of each client of an MPS server, but all their SM time as the server's.
    """

    def __init__(self) -> None:
        self._since = 0
        self._busy: dict[int, tuple[float, float]] = {}  # by pid: the part of the SMs' time, and when it was read

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
        """False if this driver, GPU or user has no such log."""
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
    """Memory in bytes by pid of the host; None if the driver does not report it."""
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
