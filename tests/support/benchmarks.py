"""Benchmarks for tests: the nodes they run on, and the jobs that have ended with what they measured."""

from weft.domain.cluster import Capacity, Gpu, Node
from weft.domain.job import Allocation, Job, JobState, Placement
from weft.domain.spec import JobSpec
from weft.samples.benchmark_job import benchmark_spec
from weft.samples.benchmark_result import Measurement, progress_line
from weftd.executor.logs.progress import pairs

GIB = 1 << 30


def gpu(node_id: str, index: int = 0, *, emulated: bool = True, model: str = "H200") -> Gpu:
    prefix = "EMULATED" if emulated else "GPU"
    return Gpu(index=index, uuid=f"{prefix}-{node_id}-{index}", model=model, memory=16 * GIB, emulated=emulated)


def bench_node(
    node_id: str, *, gpus: int = 1, emulated: bool = True, model: str = "H200", pool: str = "default", **fields: object
) -> Node:
    made = tuple(gpu(node_id, index, emulated=emulated, model=model) for index in range(gpus))
    capacity = Capacity(cpus=64.0, memory=256 * GIB, gpus=made)
    return Node(id=node_id, pool=pool, address="127.0.0.1", capacity=capacity, **fields)  # type: ignore[arg-type]


def measurement(compute: float = 1.0, memory: float = 1.0, **fields: float) -> Measurement:
    return Measurement(
        **{
            "compute_s": compute,
            "memory_s": memory,
            "compute_spread": 0.01,
            "memory_spread": 0.01,
            "reps": 25,
            "emulated": 1,
            "seconds": 3.5,
            **fields,
        }
    )


def bench_job(
    of: Gpu,
    node_id: str,
    told: Measurement,
    *,
    at: float,
    job_id: str = "",
    tenant: str = "admin",
    state: JobState = JobState.SUCCEEDED,
    ran_on: tuple[str, int] | None = None,
    spec: JobSpec | None = None,
    driver: str = "",
    power: float | None = None,
) -> Job:
    """A benchmark of that GPU that ended so, as the store has it."""
    where, index = ran_on or (node_id, of.index)
    asked = spec or benchmark_spec(of, node_id=node_id, pool="default", driver=driver, power_limit_watts=power)
    allocation = Allocation(rank=0, role="worker", node_id=where, gpus=(index,), cpus=1.0, memory=GIB)
    return Job(
        id=job_id or f"j-{of.uuid}-{at:g}",
        tenant=tenant,
        spec=asked,
        seq=1,
        submitted_at=at - 10,
        state=state,
        ended_at=at,
        progress=pairs(progress_line(told)),
        placement=Placement(allocations=(allocation,)),
    )
