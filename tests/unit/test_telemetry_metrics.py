"""What Prometheus is shown of a node: our names in base units, and NVIDIA's where they are asked for."""

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from weft.domain.cluster import Gpu
from weft.messages.signals import CLOCK_EVENTS, GpuProcess, GpuSample, HostSample, NodeSampled, RunSample
from weftd.telemetry.dcgm import dcgm_families
from weftd.telemetry.metrics import GpuPairs, NodeGauges

HOST = HostSample(cpus=2, memory_total=1, memory_used=0)


def shown(*gpus: GpuSample, runs: tuple[RunSample, ...] = (), dcgm: bool = True) -> Mapping[str, Any]:
    """By name: the samples' labels and values."""
    registry, gauges = CollectorRegistry(), NodeGauges(dcgm_families if dcgm else None)
    registry.register(gauges)
    gauges.show(NodeSampled(node_id="node-1", pool="default", at=5.0, host=HOST, gpus=gpus, runs=runs))
    found: dict[str, Any] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def gpu(**known: Any) -> GpuSample:
    return GpuSample(index=0, uuid="GPU-7", model="H200", driver="580.1", **known)


def test_a_reading_is_shown_in_base_units_with_the_gpus_uuid() -> None:
    found = shown(gpu(memory_clock_mhz=2619.0, energy_joules=7.5, dram_active=0.25, row_remap_pending=False))
    ((labels, clock),) = found["weft_gpu_memory_clock_hertz"]
    assert (labels["gpu_uuid"], labels["emulated"], clock) == ("GPU-7", "false", 2.619e9)
    assert found["weft_gpu_energy_joules_total"][0][1] == 7.5
    assert found["weft_gpu_dram_active_ratio"][0][1] == 0.25
    assert found["weft_gpu_row_remap_pending"][0][1] == 0.0
    ((labels, one),) = found["weft_gpu_info"]
    assert (labels["driver"], labels["provider"], one) == ("580.1", "nvml", 1.0)


def test_what_is_not_known_is_not_shown() -> None:
    found = shown(gpu())
    assert not {name for name in found if name.startswith("DCGM_")}
    assert {name for name in found if name.startswith("weft_gpu_")} == {"weft_gpu_info", "weft_gpu_problem"}


def test_every_reason_for_lower_clocks_is_told_as_being_in_force_or_not() -> None:
    found = shown(gpu(sm_clock_mhz=1200.0, clock_events=("sw-power-cap",)))
    reasons = {labels["reason"]: value for labels, value in found["weft_gpu_clock_event_active"]}
    assert reasons == {reason: float(reason == "sw-power-cap") for reason in CLOCK_EVENTS}


def test_errors_and_processes_are_told_one_by_one() -> None:
    process = GpuProcess(pid=33, memory_used=1024, job_id="job-1", rank=2)
    found = shown(gpu(xid_errors={"31": 2, "79": 1}, processes=(process, GpuProcess(pid=34, sm_utilisation=0.5))))
    assert {labels["xid"]: value for labels, value in found["weft_gpu_xid_errors_total"]} == {"31": 2.0, "79": 1.0}
    ((labels, used),) = found["weft_gpu_process_memory_used_bytes"]
    assert (labels["job_id"], labels["rank"], used) == ("job-1", "2", 1024.0)
    ((labels, busy),) = found["weft_gpu_process_sm_utilisation_ratio"]
    assert (labels["pid"], labels["job_id"], busy) == ("34", "", 0.5)


def test_a_runs_totals_are_counters() -> None:
    run = RunSample(job_id="job-1", epoch=0, rank=0, source="cgroup1", oom_kills=3, cpus_limit=1.5)
    found = shown(runs=(run,))
    assert found["weft_run_oom_kills_total"][0][1] == 3.0
    assert found["weft_run_cpus_limit"][0][1] == 1.5


def test_nvidias_names_have_nvidias_units_and_labels() -> None:
    found = shown(
        gpu(
            utilisation=0.5, memory_used=3 * 2**20, memory_total=10 * 2**20, energy_joules=2.0, power_watts=300.0,
            sm_clock_mhz=1980.0, last_xid=79,
        )
    )  # fmt: skip
    values = {name: samples[0][1] for name, samples in found.items() if name.startswith("DCGM_")}
    assert values == {
        "DCGM_FI_DEV_GPU_UTIL": 50.0,
        "DCGM_FI_DEV_FB_USED": 3.0,
        "DCGM_FI_DEV_FB_FREE": 7.0,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 2000.0,
        "DCGM_FI_DEV_POWER_USAGE": 300.0,
        "DCGM_FI_DEV_SM_CLOCK": 1980.0,
        "DCGM_FI_DEV_XID_ERRORS": 79.0,
    }
    labels, _ = found["DCGM_FI_DEV_GPU_UTIL"][0]
    assert (labels["UUID"], labels["modelName"], labels["hostname"]) == ("GPU-7", "H200", "node-1")


def test_an_emulated_gpu_has_none_of_nvidias_names() -> None:
    found = shown(GpuSample(index=0, uuid="EMULATED-1", model="Emulated GPU", emulated=True, memory_total=2**34))
    assert not any(name.startswith("DCGM_") for name in found)
    assert found["weft_gpu_memory_total_bytes"][0][0]["emulated"] == "true"


def test_nvidias_names_are_left_out_unless_they_are_asked_for() -> None:
    assert not any(name.startswith("DCGM_") for name in shown(gpu(utilisation=0.5), dcgm=False))


def test_how_near_two_gpus_are_is_told_by_their_uuids_and_nothing_where_it_is_not_known() -> None:
    gpus = [Gpu(index=index, uuid=f"GPU-{index}", model="H200", memory=1) for index in range(2)]
    near: dict[tuple[int, int], str] = {}
    registry = CollectorRegistry()
    registry.register(GpuPairs("node-1", lambda: gpus, lambda: near))
    assert generate_latest(registry) == b""
    near[0, 1] = "hostbridge"
    (family,) = text_string_to_metric_families(generate_latest(registry).decode())
    labels = {"node": "node-1", "gpu_uuid": "GPU-0", "peer_uuid": "GPU-1", "share": "hostbridge"}
    assert [(one.name, one.labels, one.value) for one in family.samples] == [("weft_gpu_pair_info", labels, 1.0)]
