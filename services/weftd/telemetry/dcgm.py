"""The same readings under the names of NVIDIA's DCGM exporter, so that dashboards made for it work here.

Units (W, mJ, MiB, MHz, %) and labels are the exporter's; of its default fields, those that NVML has. DCGM_FI_PROF_*
fields appear only if the chip itself counted them (GPM). An emulated GPU has no fields: it was not measured.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from weft.messages.signals import GpuSample, NodeSampled

LABELS: Final = ("gpu", "UUID", "device", "modelName", "hostname", "DCGM_FI_DRIVER_VERSION")
_MIB = 2**20

_Read = Callable[[GpuSample], float | None]


def _times(field: str, factor: float) -> _Read:
    def read(gpu: GpuSample) -> float | None:
        value = getattr(gpu, field)
        return None if value is None else value * factor

    return read


def _free(gpu: GpuSample) -> float | None:
    if gpu.memory_total is None or gpu.memory_used is None:
        return None
    return (gpu.memory_total - gpu.memory_used) / _MIB


_GAUGES: Final[Sequence[tuple[str, str, _Read]]] = (
    ("DCGM_FI_DEV_SM_CLOCK", "SM clock (MHz)", _times("sm_clock_mhz", 1)),
    ("DCGM_FI_DEV_MEM_CLOCK", "Memory clock (MHz)", _times("memory_clock_mhz", 1)),
    ("DCGM_FI_DEV_GPU_TEMP", "Temperature of the chip (°C)", _times("temperature", 1)),
    ("DCGM_FI_DEV_POWER_USAGE", "Power drawn (W)", _times("power_watts", 1)),
    ("DCGM_FI_DEV_GPU_UTIL", "Part of the time with a kernel (%)", _times("utilisation", 100)),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "Part of the time with memory traffic (%)", _times("memory_utilisation", 100)),
    ("DCGM_FI_DEV_XID_ERRORS", "The last XID error", _times("last_xid", 1)),
    ("DCGM_FI_DEV_FB_USED", "Memory in use (MiB)", _times("memory_used", 1 / _MIB)),
    ("DCGM_FI_DEV_FB_FREE", "Memory that is free (MiB)", _free),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "1: a row could not be remapped", _times("row_remap_failed", 1)),
    ("DCGM_FI_PROF_SM_ACTIVE", "Part of the SMs' time with work (0 to 1)", _times("sm_active", 1)),
    ("DCGM_FI_PROF_SM_OCCUPANCY", "Part of the warps that fit (0 to 1)", _times("sm_occupancy", 1)),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Part of the time of the tensor cores (0 to 1)", _times("tensor_active", 1)),
    ("DCGM_FI_PROF_DRAM_ACTIVE", "Part of the memory bandwidth (0 to 1)", _times("dram_active", 1)),
)
_TOTALS: Final[Sequence[tuple[str, str, _Read]]] = (
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Energy used (mJ)", _times("energy_joules", 1000)),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "PCIe packets sent again", _times("pcie_replays", 1)),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "Rows remapped", _times("rows_remapped_corrected", 1)),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Rows remapped", _times("rows_remapped_uncorrected", 1)),
)


def dcgm_families(sampled: NodeSampled) -> Iterator[Metric]:
    measured = [gpu for gpu in sampled.gpus if not gpu.emulated]
    for name, help_text, read in _GAUGES:
        yield from _family(GaugeMetricFamily(name, help_text, labels=LABELS), read, measured, sampled.node_id)
    for name, help_text, read in _TOTALS:
        yield from _family(_Counted(name, help_text), read, measured, sampled.node_id)


class _Counted(Metric):
    """A counter without the suffix `_total`, which NVIDIA's names lack: the Prometheus library calls that untyped."""

    def __init__(self, name: str, help_text: str) -> None:
        super().__init__(name, help_text, "unknown")

    def add_metric(self, labels: Sequence[str], value: float) -> None:
        self.add_sample(self.name, dict(zip(LABELS, labels, strict=True)), value)


def _family(
    family: GaugeMetricFamily | _Counted, read: _Read, gpus: Sequence[GpuSample], node_id: str
) -> Iterator[Metric]:
    for gpu in gpus:
        value = read(gpu)
        if value is not None:
            family.add_metric([str(gpu.index), gpu.uuid, f"nvidia{gpu.index}", gpu.model, node_id, gpu.driver], value)
    if family.samples:
        yield family
