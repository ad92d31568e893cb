"""The outcome of one simulation: when each job ran where, and how fast."""

from msgspec import Struct

from weft.planning.shares import NOTHING, Amounts
from weft.simulator.counted import Counted, Trajectory
from weft.simulator.workload import Elastic, TraceJob

Gpu = tuple[int, int]
"""A GPU of the simulated cluster: its node, and its index there."""


class Spell(Struct, frozen=True):
    """A time in which a job held the same GPUs. For the first `paused_s` it did not work: it started or moved.

    `slowdown`: how many seconds one second of its work took (1.0: on typical GPUs, all in one node, with the size that
    it asked for). `replicas`: how many it had.
    """

    job: int  # its place in `Outcome.jobs`
    begin_s: float
    end_s: float
    gpus: tuple[Gpu, ...]
    slowdown: float
    paused_s: float = 0.0
    replicas: int = 0


class JobOutcome(Struct, frozen=True, kw_only=True):
    """One job. `work_s`: its duration alone on typical GPUs in one node.

    `moves`: how often it changed GPUs while it ran. `evictions`: how often it lost its GPUs and waited again. `lost_s`:
    seconds in which it held GPUs and did not work, or did work that was lost with a node. `held_s`: seconds in which it
    held anything. `resizes`: how often its size changed while it ran.
    """

    id: str
    job_class: str
    tenant: str
    gpus: int
    arrival_s: float
    started_s: float
    completed_s: float
    work_s: float
    moves: int = 0
    evictions: int = 0
    lost_s: float = 0.0
    held_s: float = 0.0
    resizes: int = 0
    elastic: Elastic | None = None

    @property
    def jct_s(self) -> float:
        return self.completed_s - self.arrival_s


def outcome_of(
    trace: TraceJob,
    *,
    started_s: float,
    completed_s: float,
    moves: int = 0,
    evictions: int = 0,
    lost_s: float = 0.0,
    held_s: float = 0.0,
    resizes: int = 0,
) -> JobOutcome:
    return JobOutcome(
        id=trace.id,
        job_class=trace.job_class,
        tenant=trace.tenant,
        gpus=trace.gpus,
        arrival_s=trace.arrival_s,
        started_s=started_s,
        completed_s=completed_s,
        work_s=trace.work_s,
        moves=moves,
        evictions=evictions,
        lost_s=lost_s,
        held_s=held_s,
        resizes=resizes,
        elastic=trace.elastic,
    )


class PartitionPlan(Struct, frozen=True, kw_only=True):
    """One partition that was planned. `running`: how many jobs ran before; `changed`: how many of these had another
    size or place after it; `kept`: why all was left as it was."""

    at_s: float
    running: int
    changed: int
    kept: str = ""


class Outcome(Struct, frozen=True, kw_only=True):
    """One run. `policy` names order, placement and backfill, such as `las+weft-best+easy`; and how jobs are resized.

    `amounts`: GPUs, CPU cores and memory of all nodes; 0 for a resource that was never short.
    """

    workload: str
    policy: str
    nodes: int
    gpus_per_node: int
    jobs: tuple[JobOutcome, ...]
    spells: tuple[Spell, ...] = ()  # by beginning; none if they were not requested
    settings: dict[str, str] = {}  # settings other than the defaults, for the report: penalty, move cost, …
    notes: tuple[str, ...] = ()
    decisions: int = 0  # the number of decisions
    placements: int = 0  # the number of places found
    emulated: bool = True  # a simulated GPU is no hardware
    gpu_nodes: int | None = None  # only the first nodes have GPUs
    amounts: Amounts = NOTHING
    partitions: tuple[PartitionPlan, ...] = ()  # by time
    services: tuple[Counted, ...] = ()
    trajectories: tuple[Trajectory, ...] = ()  # of the services, in their order

    @property
    def gpus(self) -> int:
        return self.gpus_per_node * (self.nodes if self.gpu_nodes is None else min(self.gpu_nodes, self.nodes))
