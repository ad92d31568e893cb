"""The outcome of one simulation: when each job ran where, and how fast."""

from msgspec import Struct

from libs.simulator.workload import TraceJob

Gpu = tuple[int, int]
"""A GPU of the simulated cluster: its node, and its index there."""


class Spell(Struct, frozen=True):
    """A time in which a job held the same GPUs. For the first `paused_s` it did not work: it started or moved.

    `slowdown`: how many seconds one second of its work took (1.0: on typical GPUs, all in one node).
    """

    job: int  # its place in `Outcome.jobs`
    begin_s: float
    end_s: float
    gpus: tuple[Gpu, ...]
    slowdown: float
    paused_s: float = 0.0


class JobOutcome(Struct, frozen=True, kw_only=True):
    """One job. `work_s`: its duration alone on typical GPUs in one node.

    `moves`: how often it changed GPUs while it ran. `evictions`: how often it lost its GPUs and waited again. `lost_s`:
    seconds in which it held GPUs and did not work, or did work that was lost with a node.
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

    @property
    def jct_s(self) -> float:
        return self.completed_s - self.arrival_s


def outcome_of(
    trace: TraceJob, *, started_s: float, completed_s: float, moves: int = 0, evictions: int = 0, lost_s: float = 0.0
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
    )


class Outcome(Struct, frozen=True, kw_only=True):
    """One run. `policy` names order, placement and backfill, such as `las+weft-best+easy`."""

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
