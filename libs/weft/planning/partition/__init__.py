"""How many replicas each elastic job gets: the pool divided into one partition per job.

A partition planner reads jobs and servers, and proposes a number of replicas for each job. It places nothing: which
GPUs they get, and when, is decided by the walk and by `weft.planning.resizing`.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from weft.planning.shares import NOTHING, Amounts


class Server(Struct, frozen=True, kw_only=True):
    """What one server has for elastic jobs: GPUs, CPU cores, memory in bytes, without what other jobs hold there.

    `bins`: the GPUs by bin, as pairs of the bin's score (1.0 is typical, 1.2 a fifth slower) and their number, the
    fastest first; empty: all are typical.
    """

    id: str
    amounts: Amounts
    bins: tuple[tuple[float, int], ...] = ()


class ElasticJob(Struct, frozen=True, kw_only=True):
    """A job whose number of replicas may change.

    `now`: how many it has, 0 if it waits; `on`: where, by server. `each`: what one replica needs; `beside`: what its
    other roles hold as long as it runs, whatever its size. `speeds`: its expected speed with `least`, `least` + 1, …
    `most` replicas, in any unit, at the lower confidence bound. `restart_s`: how long it makes no progress when its
    size changes; 0 if it grows and shrinks live. `fixed`: its size may not change now. `waited_s`: how long it has
    waited since it came into the queue. `score`: of the slowest GPU that it has, 0 if that is unknown. Jobs are in the
    order of service.
    """

    job_id: str
    each: Amounts
    least: int
    most: int
    speeds: tuple[float, ...]
    now: int = 0
    on: Mapping[str, int] = {}
    beside: Amounts = NOTHING
    weight: float = 1.0
    restart_s: float = 0.0
    fixed: bool = False
    waited_s: float = 0.0
    score: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"{self.job_id}: least must be 1 to most, not {self.least} with most {self.most}")
        if len(self.speeds) != self.most - self.least + 1:
            raise ValueError(f"{self.job_id}: speeds must have a value for each size, {self.least} to {self.most}")
        if not all(speed > 0 for speed in self.speeds):
            raise ValueError(f"{self.job_id}: speeds must be above 0")
        if self.weight <= 0:
            raise ValueError(f"{self.job_id}: weight must be above 0, not {self.weight:g}")
        if sum(self.on.values()) != self.now:
            raise ValueError(f"{self.job_id}: on must add up to now, {self.now}, not to {sum(self.on.values())}")


class Change(Struct, frozen=True, kw_only=True):
    """One job's change of size, or of servers alone where `was` is `becomes`.

    `gain`: the change of its progress, in parts of its speed at its fair share.
    """

    job_id: str
    was: int
    becomes: int
    gain: float
    cost_s: float


class Partition(Struct, frozen=True, kw_only=True):
    """The size of every job, 0 for one that waits. `kept`: why the planner left all as it was; empty if it did not.

    `on`: where each job's replicas can be, by server; jobs with none are left out. `relaxed`: the rules that could not
    be kept, `theta1`, `theta2` or `starved:JOB` for a job that had to wait on.
    `utilisation`: the sum over the resources of the part that is given away (0 … number of resources); `unfairness`:
    the sum over the jobs of the distance between a job's dominant share and its fair one.
    """

    sizes: Mapping[str, int]
    changes: tuple[Change, ...] = ()
    kept: str = ""
    utilisation: float = 0.0
    unfairness: float = 0.0
    on: Mapping[str, Mapping[str, int]] = {}
    relaxed: tuple[str, ...] = ()


class Rules(Struct, frozen=True, kw_only=True):
    """`theta1`: how unfair the partition may be, as a part of the largest unfairness there can be; `theta2`: how many
    of the running jobs may change at once, as a part of them. `starved_s`: a job that has waited longer comes before
    the growth of others. `horizon_s`: how long a partition is expected to last; a restart has to pay within it.

    `solver_seconds`: the solver's last stop, by its own clock. All other limits count steps, so that the same input
    gives the same partition; a partition that was cut short by this clock may differ when it is derived again.
    """

    theta1: float = 0.1
    theta2: float = 0.2
    starved_s: float = 30.0
    horizon_s: float = 1800.0
    solver_seconds: float = 2.0

    def __post_init__(self) -> None:
        for name in ("theta1", "theta2", "starved_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name):g}")
        for name in ("horizon_s", "solver_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name):g}")


Partitioner = Callable[[Sequence[ElasticJob], Sequence[Server], Rules], Partition]
