"""The hardware counters of Hopper and later chips (GPM): the real utilisation of SMs, tensor cores and memory.

Two samples of the counters give the mean over the time between them; the older one is kept from the last period.
"""

import math
from typing import Any, Final

from weft.gpus.asking import Asker
from weft.gpus.nvml import Handle, Nvml
from weft.gpus.values import Values

APART_SECONDS: Final = 0.1
"""The least time between two samples, as NVIDIA documents it."""

_PERCENT: Final = 0.01
_MIB: Final = float(2**20)
_METRICS: Final = (
    (2, "sm_active", _PERCENT),
    (3, "sm_occupancy", _PERCENT),
    (5, "tensor_active", _PERCENT),
    (10, "dram_active", _PERCENT),
    (20, "pcie_send_rate", _MIB),
    (21, "pcie_receive_rate", _MIB),
    (60, "nvlink_receive_rate", _MIB),
    (61, "nvlink_send_rate", _MIB),
)


class Gpm:
    """The counters of one GPU, or of its MIG instance `instance` (the handle is then that of the whole GPU)."""

    def __init__(self, nvml: Nvml, *, instance: int | None = None) -> None:
        self._nvml = nvml
        self._instance = instance
        self._supported: bool | None = None  # None: not asked yet
        self._older: Any = None
        self._newer: Any = None
        self._taken_at: float | None = None  # when `_older` was taken

    @property
    def works(self) -> bool:
        return bool(self._supported)

    def read(self, handle: Handle, asker: Asker, *, now: float) -> Values:
        """The mean values; {} if the chip has no such counters, and until there are two samples."""
        if self._supported is None:
            self._supported = self._prepared(handle, asker)
        if not self._supported or (self._taken_at is not None and now - self._taken_at < APART_SECONDS):
            return {}
        if not self._taken(handle, asker, self._newer):
            self._taken_at = None
            return {}
        first = self._taken_at is None
        self._older, self._newer, self._taken_at = self._newer, self._older, now
        return {} if first else self._between(self._newer, self._older, asker)

    def free(self, asker: Asker) -> None:
        for sample in (self._older, self._newer):
            if sample is not None:
                asker.ask(self._nvml.nvmlGpmSampleFree, sample)
        self._older = self._newer = self._taken_at = self._supported = None

    def _prepared(self, handle: Handle, asker: Asker) -> bool:
        support = asker.ask(self._nvml.nvmlGpmQueryDeviceSupport, handle)
        if support is None or not support.isSupportedDevice:
            return False
        self._older = asker.ask(self._nvml.nvmlGpmSampleAlloc)
        self._newer = asker.ask(self._nvml.nvmlGpmSampleAlloc)
        return self._older is not None and self._newer is not None

    def _taken(self, handle: Handle, asker: Asker, sample: Any) -> bool:
        if self._instance is None:
            return asker.ask(self._nvml.nvmlGpmSampleGet, handle, sample) is not None
        return asker.ask(self._nvml.nvmlGpmMigSampleGet, handle, self._instance, sample) is not None

    def _between(self, older: Any, newer: Any, asker: Asker) -> Values:
        numbers = [number for number, _, _ in _METRICS]
        values = asker.ask(self._nvml.gpm_metrics, older, newer, numbers)
        found = {}
        for value, (_, name, unit) in zip(values or (), _METRICS, strict=False):
            if value is not None and math.isfinite(value) and value >= 0:
                found[name] = value * unit if unit == _MIB else min(1.0, value * unit)
        return found
