"""A benchmark as a job like any other, pinned to its GPU, and the measurement of a finished one.

Any real job preempts it: its priority is the lowest. Its labels have the GPU's uuid, driver and power limit at the
time, because only results with the same are compared.
"""

from msgspec import Struct

from weft.domain.classes import BENCHMARK_LABEL, is_benchmark
from weft.domain.cluster import Gpu
from weft.domain.job import Job, JobState
from weft.domain.spec import ALL_TAINTS, JobSpec, Kind, Pin, Retries, Role, Tuning, TuningMode
from weft.samples.benchmark_result import Measurement, measurement_of

UUID_LABEL, MODEL_LABEL = "weft/benchmark-gpu", "weft/benchmark-model"
DRIVER_LABEL, POWER_LABEL = "weft/benchmark-driver", "weft/benchmark-power-limit"

SECONDS, EMULATED_SECONDS = 20.0, 2.0  # of steady computing
PRIORITY = -1000

# The node's own Python, which has this module; in a container of Weft's image that is simply python3.
_COMMAND = ("sh", "-c", 'exec "${WEFT_PYTHON:-python3}" -m weft.gpus.bench --seconds "$1"', "bench")
_TAKES = 1.8  # of the steady seconds: with warm-up and memory
_BESIDE = 120.0  # to come up, and to compile the kernels


class Measured(Struct, frozen=True, kw_only=True):
    """One finished benchmark: its GPU, the GPU's conditions at the time, and the measurement. `at`: when it ended."""

    job_id: str
    uuid: str
    node_id: str
    gpu_index: int
    model: str
    driver: str
    power_limit_watts: float | None
    measurement: Measurement
    at: float

    @property
    def emulated(self) -> bool:
        return self.measurement.emulated > 0


def benchmark_spec(
    gpu: Gpu,
    *,
    node_id: str,
    pool: str,
    image: str | None = None,
    driver: str = "",
    power_limit_watts: float | None = None,
    seconds: float | None = None,
) -> JobSpec:
    """`image`: Weft's own, for nodes that run containers; None where jobs are processes."""
    seconds = seconds or (EMULATED_SECONDS if gpu.emulated else SECONDS)
    labels = {BENCHMARK_LABEL: "1", UUID_LABEL: gpu.uuid, MODEL_LABEL: gpu.model, DRIVER_LABEL: driver}
    if power_limit_watts is not None:
        labels[POWER_LABEL] = f"{power_limit_watts:g}"
    return JobSpec(
        name=f"bench-{node_id[:50]}-{gpu.index}",
        kind=Kind.BATCH,
        pool=pool,
        image=image,
        command=(*_COMMAND, f"{seconds:g}"),
        # NVIDIA's hook gives a container NVML only on request.
        env={"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"} if image else {},
        roles={"worker": Role(gpus=1, cpus=0.5 if gpu.emulated else 1.0, memory="256MiB" if gpu.emulated else "2GiB")},
        priority=PRIORITY,
        preemptible=True,
        grace="2s",
        time_limit=f"{seconds * _TAKES + _BESIDE:.0f}s",
        retries=Retries(max=0),
        labels=labels,
        tolerate=(ALL_TAINTS,),
        tuning=Tuning(mode=TuningMode.OFF),
        pin=Pin(node=node_id, gpu=gpu.index),
    )


def measured(job: Job) -> Measured | None:
    """The measurement of a job that succeeded; None if it is no benchmark, its progress makes no sense, or it ran on
    another GPU than it was meant for."""
    spec, labels = job.spec, job.spec.labels
    if job.state is not JobState.SUCCEEDED or not is_benchmark(spec) or spec.pin is None or spec.pin.gpu is None:
        return None
    measurement = measurement_of(job.progress)
    if measurement is None or job.placement is None or job.ended_at is None:
        return None
    ran = [(one.node_id, one.gpus) for one in job.placement.allocations]
    if ran != [(spec.pin.node, (spec.pin.gpu,))] or not labels.get(UUID_LABEL):
        return None
    return Measured(
        job_id=job.id,
        uuid=labels[UUID_LABEL],
        node_id=spec.pin.node,
        gpu_index=spec.pin.gpu,
        model=labels.get(MODEL_LABEL, ""),
        driver=labels.get(DRIVER_LABEL, ""),
        power_limit_watts=_watts(labels.get(POWER_LABEL, "")),
        measurement=measurement,
        at=job.ended_at,
    )


def _watts(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
