"""How far a job may be tuned: the bounds its user set, otherwise what it asked for, times the pool's growth."""

from msgspec import Struct

from weft.domain.job import Allocation, Job
from weft.domain.quantity import size_bytes
from weft.domain.spec import TuningMode

GROWTH = 2.0  # times the CPUs asked for; each pool may set its own
MEMORY_GROWTH = 2.0  # times the memory asked for
EGRESS_GROWTH = 8.0  # times the rate asked for: the link has slack most of the time
CPUS_MIN = 0.03  # of a rank: with less it answers its peers too late
CPUS_GRAIN = 1000


class Bounds(Struct, frozen=True, kw_only=True):
    """`cpus`: cores of all ranks together; `egress_total`: bytes per second of all ranks, None: each rank's cap alone.
    Memory and egress are of one rank, by role; None: no cap was asked for.

    What a rank has beyond `…_min` may be reclaimed.
    """

    cpus: float
    memory: dict[str, int]
    memory_min: dict[str, int]
    egress: dict[str, int | None]
    egress_min: dict[str, int | None]
    egress_total: int | None


def bounds_of(job: Job, *, growth: float = GROWTH) -> Bounds:
    """The bounds of a placed job."""
    assert job.placement is not None
    tuning, roles = job.spec.tuning, job.spec.roles
    asked = sum(roles[allocation.role].cpus for allocation in job.placement.allocations)
    memory = None if tuning.memory is None else size_bytes(tuning.memory)
    memory_min = None if tuning.memory_min is None else size_bytes(tuning.memory_min)
    return Bounds(
        cpus=growth * asked if tuning.cpus is None else tuning.cpus,
        memory={
            name: int(MEMORY_GROWTH * role.memory_bytes) if memory is None else memory for name, role in roles.items()
        },
        memory_min={name: role.memory_bytes if memory_min is None else memory_min for name, role in roles.items()},
        egress={name: _egress_most(role.egress_bytes, tuning.egress) for name, role in roles.items()},
        egress_min={name: role.egress_bytes for name, role in roles.items()},
        egress_total=None if tuning.egress_total is None else size_bytes(tuning.egress_total),
    )


def _egress_most(asked: int | None, said: str | None) -> int | None:
    if asked is None:
        return None
    return int(EGRESS_GROWTH * asked) if said is None else size_bytes(said)


def mode_of(job: Job, pool: TuningMode) -> TuningMode:
    """The job's mode, or the pool's where the job sets none; a pool's `off` is final."""
    if pool is TuningMode.OFF:
        return TuningMode.OFF
    return job.spec.tuning.mode or pool


def cpus_of(allocations: tuple[Allocation, ...]) -> float:
    return sum(allocation.cpus for allocation in allocations)


def grained(cpus: float) -> float:
    """Rounds down to thousandths of a core, so that rounding never exceeds a budget."""
    return int(cpus * CPUS_GRAIN + 1e-6) / CPUS_GRAIN
