"""The faults of each emulated GPU: a file in the executor's folder, which `weft emulate` writes.

`emulated/3.fault` is a JSON object: what a driver would read of GPU 3. Without a file the GPU is well.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from weft.domain.cluster import Gpu
from weft.messages.signals import GpuSample

HANG_LOOK_SECONDS = 0.2
_BYTES_MAX = 4096


class Fault(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """`xids`: counts by number; `hang`: reading the GPU does not return. `use`: the part of the time, 0–1, in which the
    GPU seems to be used; None: nobody knows."""

    xids: dict[str, int] = {}
    ecc: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    throttle: bool = False
    off_bus: bool = False
    hang: bool = False
    resets: int = 0
    use: Annotated[float, Meta(ge=0, le=1)] | None = None


def fault_file(folder: Path, index: int) -> Path:
    return folder / f"{index}.fault"


def read_fault(folder: Path, index: int) -> Fault:
    """The fault of a GPU; none if there is no file, or if the file has something else."""
    try:
        with fault_file(folder, index).open("rb") as file:
            return msgspec.json.decode(file.read(_BYTES_MAX), type=Fault)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return Fault()


def write_fault(folder: Path, index: int, fault: Fault) -> None:
    """Raises OSError."""
    path = fault_file(folder, index)
    unfinished = path.with_name(f".{index}.fault.unfinished")
    unfinished.write_bytes(msgspec.json.encode(fault) + b"\n")
    unfinished.replace(path)


class EmulatedSource:
    """Samples of emulated GPUs with their faults, as a source that a `GpuWatch` reads. `sleep` is for a GPU that
    hangs."""

    provider = "emulated"

    def __init__(self, gpus: tuple[Gpu, ...], folder: Path, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._gpus, self._folder, self._sleep = gpus, folder, sleep
        self.near: dict[tuple[int, int], str] = {}

    def xids(self, uuid: str) -> tuple[Mapping[str, int], int | None]:
        return next((self._xids(gpu) for gpu in self._gpus if gpu.uuid == uuid), ({}, None))

    def open(self) -> None:
        """Nothing is to be opened."""

    def close(self) -> bool:
        return True

    def read(self) -> tuple[GpuSample, ...]:
        while any(read_fault(self._folder, gpu.index).hang for gpu in self._gpus):
            self._sleep(HANG_LOOK_SECONDS)
        return tuple(self._sample(gpu) for gpu in self._gpus)

    def _xids(self, gpu: Gpu) -> tuple[Mapping[str, int], int | None]:
        xids = read_fault(self._folder, gpu.index).xids
        return xids, int(next(reversed(xids), "0")) or None

    def _sample(self, gpu: Gpu) -> GpuSample:
        fault = read_fault(self._folder, gpu.index)
        xids, last = self._xids(gpu)
        return GpuSample(
            index=gpu.index,
            uuid=gpu.uuid,
            model=gpu.model,
            emulated=True,
            memory_total=gpu.memory or None,
            provider=self.provider,
            problem="the GPU is lost (emulated)" if fault.off_bus else "",
            clock_events=("hw-slowdown",) if fault.throttle else (),
            ecc_uncorrected_volatile=fault.ecc or None,
            row_remap_pending=fault.remap_pending or None,
            row_remap_failed=fault.remap_failed or None,
            xid_errors=dict(xids),
            last_xid=last,
            resets=fault.resets,
            utilisation=fault.use,
        )
