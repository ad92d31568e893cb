"""The newest sample as Prometheus gauges. Units are in the names; a value that is not known is not exposed.

weft_gpu_…      labels gpu, gpu_uuid, model, emulated ("true" is no hardware)
    utilisation_ratio, memory_used_bytes, memory_total_bytes, power_watts, power_limit_watts, temperature_celsius,
    sm_clock_hertz, sm_clock_max_hertz, problem (1: the driver says that something is wrong with it)
weft_node_…     cpus, cpus_used, memory_total_bytes, memory_used_bytes, disk_total_bytes, disk_used_bytes,
    disk_read_bytes_per_second, disk_write_bytes_per_second, network_receive_bytes_per_second,
    network_send_bytes_per_second, cpu_pressure_ratio, memory_pressure_ratio, disk_pressure_ratio
weft_run_…      labels job_id, rank, epoch, source
    cpus_used, cpu_throttled_ratio, memory_used_bytes, memory_limit_bytes, and disk, network, pressure as of a node
weft_sampled_at_seconds   when that was, seconds since the epoch

All have the label node. They are made when Prometheus asks, so a run that has gone leaves nothing behind.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from libs.messages.signals import GpuSample, HostSample, NodeSampled, RunSample

_Gauge = tuple[str, str, str, float]
"""Its name, the field that it shows, what it means, and by what the field is multiplied."""

_GPU: Final[Sequence[_Gauge]] = (
    ("weft_gpu_utilisation_ratio", "utilisation", "Part of the time in which any kernel ran", 1),
    ("weft_gpu_memory_used_bytes", "memory_used", "GPU memory in use", 1),
    ("weft_gpu_memory_total_bytes", "memory_total", "GPU memory there is", 1),
    ("weft_gpu_power_watts", "power_watts", "Power it draws", 1),
    ("weft_gpu_power_limit_watts", "power_limit_watts", "Power it may draw", 1),
    ("weft_gpu_temperature_celsius", "temperature", "Temperature of the chip", 1),
    ("weft_gpu_sm_clock_hertz", "sm_clock_mhz", "Clock of its processors", 1e6),
    ("weft_gpu_sm_clock_max_hertz", "sm_clock_max_mhz", "Highest clock of its processors", 1e6),
)
_TRAFFIC_AND_PRESSURE: Final[Sequence[_Gauge]] = (
    ("disk_read_bytes_per_second", "disk_read_rate", "Read from disks", 1),
    ("disk_write_bytes_per_second", "disk_write_rate", "Written to disks", 1),
    ("network_receive_bytes_per_second", "network_receive_rate", "Received", 1),
    ("network_send_bytes_per_second", "network_send_rate", "Sent", 1),
    ("cpu_pressure_ratio", "cpu_pressure", "Part of the time in which some task waited for a CPU", 1),
    ("memory_pressure_ratio", "memory_pressure", "Part of the time in which some task waited for memory", 1),
    ("disk_pressure_ratio", "disk_pressure", "Part of the time in which some task waited for a disk", 1),
)
_NODE: Final[Sequence[_Gauge]] = (
    ("weft_node_cpus", "cpus", "CPUs there are", 1),
    ("weft_node_cpus_used", "cpus_used", "CPUs at work", 1),
    ("weft_node_memory_total_bytes", "memory_total", "Memory there is", 1),
    ("weft_node_memory_used_bytes", "memory_used", "Memory that no new program could have", 1),
    ("weft_node_disk_total_bytes", "disk_total", "Size of the file system of the runs", 1),
    ("weft_node_disk_used_bytes", "disk_used", "Used of the file system of the runs", 1),
    *((f"weft_node_{name}", field, help_text, factor) for name, field, help_text, factor in _TRAFFIC_AND_PRESSURE),
)
_RUN: Final[Sequence[_Gauge]] = (
    ("weft_run_cpus_used", "cpus_used", "CPUs at work", 1),
    ("weft_run_cpu_throttled_ratio", "cpu_throttled", "Part of its CPU periods in which it was held back", 1),
    ("weft_run_memory_used_bytes", "memory_used", "Its working set", 1),
    ("weft_run_memory_limit_bytes", "memory_limit", "Memory it may have", 1),
    *((f"weft_run_{name}", field, help_text, factor) for name, field, help_text, factor in _TRAFFIC_AND_PRESSURE),
)


class NodeGauges(Collector):
    """Register it once; `show` replaces what it shows."""

    def __init__(self) -> None:
        self._sampled: NodeSampled | None = None

    def show(self, sampled: NodeSampled) -> None:
        self._sampled = sampled

    def collect(self) -> Iterator[Metric]:
        sampled = self._sampled
        if sampled is None:
            return
        node = sampled.node_id
        at = GaugeMetricFamily("weft_sampled_at_seconds", "When the node was sampled", labels=["node"])
        at.add_metric([node], sampled.at)
        yield at
        yield from _families(_NODE, ["node"], [([node], sampled.host)])
        gpus = [([node, str(gpu.index), gpu.uuid, gpu.model, str(gpu.emulated).lower()], gpu) for gpu in sampled.gpus]
        labels = ["node", "gpu", "gpu_uuid", "model", "emulated"]
        yield from _families(_GPU, labels, gpus)
        problem = GaugeMetricFamily("weft_gpu_problem", "1: something is wrong with it", labels=labels)
        for values, gpu in gpus:
            problem.add_metric(values, 1.0 if gpu.problem else 0.0)
        yield problem
        runs = [([node, run.job_id, str(run.rank), str(run.epoch), run.source], run) for run in sampled.runs]
        yield from _families(_RUN, ["node", "job_id", "rank", "epoch", "source"], runs)


def _families(
    gauges: Sequence[_Gauge],
    labels: Sequence[str],
    samples: Iterable[tuple[Sequence[str], GpuSample | HostSample | RunSample]],
) -> Iterator[Metric]:
    samples = list(samples)
    for name, field, help_text, factor in gauges:
        family = GaugeMetricFamily(name, help_text, labels=labels)
        for values, sample in samples:
            value = getattr(sample, field)
            if value is not None:
                family.add_metric(values, value * factor)
        if family.samples:
            yield family
