"""The newest sample for Prometheus, in base units. Unknown values are not exposed.

weft_gpu_…      labels node, gpu, gpu_uuid, model, emulated ("true": no hardware); weft_gpu_info has driver and provider
weft_gpu_process_…   and pid, job_id, rank: the part of the GPU that one process uses
weft_gpu_pair_info   labels node, gpu_uuid, peer_uuid, share: NVML's name of the nearest part that two GPUs share
weft_node_…     label node
weft_run_…      labels node, job_id, rank, epoch, source
weft_share_…    labels node, gpu_uuid, job_id, rank, epoch: of each run that holds a share of a GPU
weft_sampled_at_seconds   the time of the sample, seconds since the epoch

The gauges are made at each scrape, so a run that has gone leaves nothing behind. `dcgm.py` has other names for some.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from weft.domain.cluster import Gpu
from weft.gpus.topology import Near
from weft.messages.signals import CLOCK_EVENTS, GpuSample, HostSample, NodeSampled, RunSample, ShareSample

_Gauge = tuple[str, str, str, float]
"""The gauge's name, the field that it shows, its help text, and the factor for the field."""

_GPU: Final[Sequence[_Gauge]] = (
    ("weft_gpu_utilisation_ratio", "utilisation", "Part of the time in which any kernel ran", 1),
    ("weft_gpu_memory_used_bytes", "memory_used", "GPU memory in use", 1),
    ("weft_gpu_memory_total_bytes", "memory_total", "GPU memory there is", 1),
    ("weft_gpu_power_watts", "power_watts", "Power it draws", 1),
    ("weft_gpu_power_limit_watts", "power_limit_watts", "Power it may draw", 1),
    ("weft_gpu_temperature_celsius", "temperature", "Temperature of the chip", 1),
    ("weft_gpu_sm_clock_hertz", "sm_clock_mhz", "Clock of its processors", 1e6),
    ("weft_gpu_sm_clock_max_hertz", "sm_clock_max_mhz", "Highest clock of its processors", 1e6),
    ("weft_gpu_memory_clock_hertz", "memory_clock_mhz", "Clock of its memory", 1e6),
    ("weft_gpu_memory_utilisation_ratio", "memory_utilisation", "Part of the time in which memory was used", 1),
    ("weft_gpu_sm_active_ratio", "sm_active", "Part of its processors' time in which any work was on them", 1),
    ("weft_gpu_sm_occupancy_ratio", "sm_occupancy", "Part of the warps that its processors could hold", 1),
    ("weft_gpu_tensor_active_ratio", "tensor_active", "Part of the time in which its tensor cores worked", 1),
    ("weft_gpu_dram_active_ratio", "dram_active", "Part of its memory bandwidth in use", 1),
    ("weft_gpu_row_remap_pending", "row_remap_pending", "1: a reset would remap rows of its memory", 1),
    ("weft_gpu_row_remap_failed", "row_remap_failed", "1: a row of its memory could not be remapped", 1),
    ("weft_gpu_pcie_generation", "pcie_generation", "Generation of its PCIe link now", 1),
    ("weft_gpu_pcie_width", "pcie_width", "Lanes of its PCIe link now", 1),
    ("weft_gpu_pcie_receive_bytes_per_second", "pcie_receive_rate", "Received over PCIe", 1),
    ("weft_gpu_pcie_send_bytes_per_second", "pcie_send_rate", "Sent over PCIe", 1),
    ("weft_gpu_nvlinks_active", "nvlinks_active", "NVLinks that are up", 1),
    ("weft_gpu_nvlink_receive_bytes_per_second", "nvlink_receive_rate", "Received over NVLink", 1),
    ("weft_gpu_nvlink_send_bytes_per_second", "nvlink_send_rate", "Sent over NVLink", 1),
)
_GPU_TOTALS: Final[Sequence[_Gauge]] = (
    ("weft_gpu_energy_joules", "energy_joules", "Energy used since the driver was loaded", 1),
    ("weft_gpu_power_capped_seconds", "power_capped_seconds", "Time in which its power limit held it back", 1),
    ("weft_gpu_thermal_seconds", "thermal_seconds", "Time in which heat held it back", 1),
    ("weft_gpu_ecc_corrected", "ecc_corrected", "Memory errors that were corrected", 1),
    ("weft_gpu_ecc_uncorrected", "ecc_uncorrected", "Memory errors that were not", 1),
    ("weft_gpu_rows_remapped_corrected", "rows_remapped_corrected", "Rows remapped for corrected errors", 1),
    ("weft_gpu_rows_remapped_uncorrected", "rows_remapped_uncorrected", "Rows remapped for uncorrected errors", 1),
    ("weft_gpu_pcie_replays", "pcie_replays", "PCIe packets sent again", 1),
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
    ("weft_run_cpus_limit", "cpus_limit", "CPUs it may use", 1),
    ("weft_run_busiest_thread_cpus", "busiest_thread", "CPUs used by its busiest thread", 1),
    ("weft_run_blocked_ratio", "blocked", "Part of its threads that wait for a disk", 1),
    ("weft_run_memory_failures_per_second", "memory_failures_rate", "How often it met its memory limit", 1),
    ("weft_run_major_faults_per_second", "major_faults_rate", "Pages read again from disk", 1),
    ("weft_run_network_resent_per_second", "network_resent_rate", "TCP segments sent again", 1),
    ("weft_run_memory_used_bytes", "memory_used", "Its working set", 1),
    ("weft_run_memory_limit_bytes", "memory_limit", "Memory it may have", 1),
    *((f"weft_run_{name}", field, help_text, factor) for name, field, help_text, factor in _TRAFFIC_AND_PRESSURE),
)
_RUN_TOTALS: Final[Sequence[_Gauge]] = (("weft_run_oom_kills", "oom_kills", "Processes killed for memory", 1),)
_SHARE: Final[Sequence[_Gauge]] = (
    ("weft_share_request_ratio", "request", "Part of the GPU's time that the run is promised", 1),
    ("weft_share_limit_ratio", "limit", "Part of the GPU's time that the run may use while others idle", 1),
    ("weft_share_used_ratio", "used", "Part of the GPU's time that the run used", 1),
    ("weft_share_borrowed_ratio", "borrowed", "Part of the GPU's time that the run used beyond its request", 1),
    ("weft_share_lent_ratio", "lent", "Part of the GPU's time that was the run's and that others used", 1),
    ("weft_share_wait_p99_seconds", "wait_p99_seconds", "From asking for a turn on the GPU to getting it", 1),
    ("weft_share_memory_used_bytes", "memory_used", "GPU memory that the run's processes hold", 1),
    ("weft_share_memory_limit_bytes", "memory_limit", "GPU memory that they may hold", 1),
    ("weft_share_memory_uncounted_bytes", "uncounted", "GPU memory of the run beyond what its processes count", 1),
    ("weft_share_processes_outside", "outside", "Processes of the run on the GPU that are not held to the share", 1),
)
_SHARE_TOTALS: Final[Sequence[_Gauge]] = (
    ("weft_share_allocations_refused", "refused", "Allocations of GPU memory that were beyond the limit", 1),
    ("weft_share_overruns", "overruns", "Turns that were taken from a process that kept them too long", 1),
    ("weft_share_waits_given_up", "given_up", "Launches that went on without a turn as the arbiter did not answer", 1),
)

GPU_LABELS: Final = ("node", "gpu", "gpu_uuid", "model", "emulated")
RUN_LABELS: Final = ("node", "job_id", "rank", "epoch", "source")
SHARE_LABELS: Final = ("node", "gpu_uuid", "job_id", "rank", "epoch")


class NodeGauges(Collector):
    """Register it once; `show` replaces the sample. `also`: further metrics made from the same sample."""

    def __init__(self, also: Callable[[NodeSampled], Iterable[Metric]] | None = None) -> None:
        self._sampled: NodeSampled | None = None
        self._also = also

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
        gpus = [(_gpu_labels(node, gpu), gpu) for gpu in sampled.gpus]
        yield from _families(_GPU, GPU_LABELS, gpus)
        yield from _families(_GPU_TOTALS, GPU_LABELS, gpus, CounterMetricFamily)
        yield from _gpu_states(gpus)
        yield from _processes(gpus)
        runs = [([node, run.job_id, str(run.rank), str(run.epoch), run.source], run) for run in sampled.runs]
        yield from _families(_RUN, RUN_LABELS, runs)
        yield from _families(_RUN_TOTALS, RUN_LABELS, runs, CounterMetricFamily)
        shares = [
            ([node, run.share.gpu_uuid, run.job_id, str(run.rank), str(run.epoch)], run.share)
            for run in sampled.runs
            if run.share is not None
        ]
        yield from _families(_SHARE, SHARE_LABELS, shares)
        yield from _families(_SHARE_TOTALS, SHARE_LABELS, shares, CounterMetricFamily)
        if self._also is not None:
            yield from self._also(sampled)


class GpuPairs(Collector):
    """How near the GPUs of a node are to each other, as far as their driver reports it."""

    def __init__(self, node: str, gpus: Callable[[], Sequence[Gpu]], near: Callable[[], Near]) -> None:
        self._node, self._gpus, self._near = node, gpus, near

    def collect(self) -> Iterator[Metric]:
        labels = ["node", "gpu_uuid", "peer_uuid", "share"]
        pairs = GaugeMetricFamily("weft_gpu_pair_info", "Always 1: the nearest thing that they share", labels=labels)
        uuids = {gpu.index: gpu.uuid for gpu in self._gpus()}
        for (one, other), share in self._near().items():
            pairs.add_metric([self._node, uuids[one], uuids[other], share], 1.0)
        if pairs.samples:
            yield pairs


def _gpu_labels(node: str, gpu: GpuSample) -> list[str]:
    return [node, str(gpu.index), gpu.uuid, gpu.model, str(gpu.emulated).lower()]


def _gpu_states(gpus: Sequence[tuple[list[str], GpuSample]]) -> Iterator[Metric]:
    info = GaugeMetricFamily("weft_gpu_info", "Always 1: what it is", labels=[*GPU_LABELS, "driver", "provider"])
    problem = GaugeMetricFamily("weft_gpu_problem", "1: something is wrong with it", labels=GPU_LABELS)
    lower = GaugeMetricFamily(
        "weft_gpu_clock_event_active",
        "1: its clocks are lower than they could be, for this",
        labels=[*GPU_LABELS, "reason"],
    )
    xids = CounterMetricFamily("weft_gpu_xid_errors", "XID errors since telemetry began", labels=[*GPU_LABELS, "xid"])
    for labels, gpu in gpus:
        info.add_metric([*labels, gpu.driver, gpu.provider], 1.0)
        problem.add_metric(labels, 1.0 if gpu.problem else 0.0)
        if gpu.sm_clock_mhz is not None:  # else the chip was not read
            for reason in CLOCK_EVENTS:
                lower.add_metric([*labels, reason], float(reason in gpu.clock_events))
        for xid, count in sorted(gpu.xid_errors.items()):
            xids.add_metric([*labels, xid], count)
    yield from (family for family in (info, problem, lower, xids) if family.samples)


def _processes(gpus: Sequence[tuple[list[str], GpuSample]]) -> Iterator[Metric]:
    labels = [*GPU_LABELS, "pid", "job_id", "rank"]
    memory = GaugeMetricFamily("weft_gpu_process_memory_used_bytes", "GPU memory of one process", labels=labels)
    busy = GaugeMetricFamily("weft_gpu_process_sm_utilisation_ratio", "SM time of one process", labels=labels)
    for of_gpu, gpu in gpus:
        for process in gpu.processes:
            values = [*of_gpu, str(process.pid), process.job_id, str(process.rank) if process.job_id else ""]
            if process.memory_used is not None:
                memory.add_metric(values, process.memory_used)
            if process.sm_utilisation is not None:
                busy.add_metric(values, process.sm_utilisation)
    yield from (family for family in (memory, busy) if family.samples)


def _families(
    gauges: Sequence[_Gauge],
    labels: Sequence[str],
    samples: Iterable[tuple[Sequence[str], GpuSample | HostSample | RunSample | ShareSample]],
    make: type[GaugeMetricFamily] | type[CounterMetricFamily] = GaugeMetricFamily,
) -> Iterator[Metric]:
    samples = list(samples)
    for name, field, help_text, factor in gauges:
        family = make(name, help_text, labels=labels)
        for values, sample in samples:
            value = getattr(sample, field)
            if value is not None:
                family.add_metric(values, value * factor)
        if family.samples:
            yield family
