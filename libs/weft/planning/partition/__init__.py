"""How many replicas each elastic job gets, and on GPUs of which model: the pool divided into one partition per job.

A partition planner reads jobs and servers, and proposes a number of replicas for each job. It places nothing: which
GPUs they get, and when, is decided by the walk and by `weft.planning.resizing`.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf

from msgspec import Struct

from weft.planning.shares import NOTHING, Amounts

ALIKE = ""  # the model of GPUs in a pool that has only one, and of a job that needs no GPUs


class Server(Struct, frozen=True, kw_only=True):
    """Capacity of one server for elastic jobs: GPUs, CPU cores, memory in bytes, without that of other jobs.

    `bins`: the GPUs by bin, as pairs of the bin's score (1.0 is typical for their model, 1.2 a fifth slower) and their
    number, the fastest first; empty: all are typical. `model`: of its GPUs.
    """

    id: str
    amounts: Amounts
    bins: tuple[tuple[float, int], ...] = ()
    model: str = ALIKE


class ElasticJob(Struct, frozen=True, kw_only=True):
    """A job whose number of replicas may change.

    `now`: how many it has, 0 if it waits; `on`: where, by server; `model`: of the GPUs that it has. `each`: what one
    replica needs; `beside`: what its other roles hold as long as it runs, whatever its size. `speeds`: by model of the
    GPUs that it may have, its expected speed with `least`, `least` + 1, … `most` replicas on them, in any unit, at the
    lower confidence bound. `restart_s`: how long it makes no progress when its size or its model changes; 0 if it grows
    and shrinks live, and then its model never changes. `left_s`: how long it is expected to run on; no restart pays
    beyond that. `fixed`: its size may not change now. `cools`: its size changed a short while ago; if it resizes live
    it keeps its size, else it restarts again only for a gain that is large beside the restart, as idle GPUs bring it.
    `waited_s`: how long it has waited since it came into the queue. `score`: of the slowest GPU that it has, 0 if that
    is unknown. Jobs are in the order of service.
    """

    job_id: str
    each: Amounts
    least: int
    most: int
    speeds: Mapping[str, tuple[float, ...]]
    now: int = 0
    on: Mapping[str, int] = {}
    model: str = ALIKE
    beside: Amounts = NOTHING
    weight: float = 1.0
    restart_s: float = 0.0
    left_s: float = inf
    fixed: bool = False
    cools: bool = False
    waited_s: float = 0.0
    score: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"{self.job_id}: least must be 1 to most, not {self.least} with most {self.most}")
        if not self.speeds or any(len(of_model) != self.most - self.least + 1 for of_model in self.speeds.values()):
            raise ValueError(f"{self.job_id}: speeds must have a value for each size, {self.least} to {self.most}")
        if not all(speed > 0 for of_model in self.speeds.values() for speed in of_model):
            raise ValueError(f"{self.job_id}: speeds must be above 0")
        if self.weight <= 0:
            raise ValueError(f"{self.job_id}: weight must be above 0, not {self.weight:g}")
        if self.now and self.model not in self.speeds:
            raise ValueError(f"{self.job_id}: speeds must have the model that it runs on, {self.model}")
        if sum(self.on.values()) != self.now:
            raise ValueError(f"{self.job_id}: on must add up to now, {self.now}, not to {sum(self.on.values())}")

    @property
    def keeps_size(self) -> bool:
        """Return True if no plan may change its size now."""
        return self.fixed or (self.cools and not self.restart_s)


class Change(Struct, frozen=True, kw_only=True):
    """One job's change of size or model, or of servers alone where `was` is `becomes`.

    `gain`: the change of its progress, in parts of its speed at its fair share.
    """

    job_id: str
    was: int
    becomes: int
    gain: float
    cost_s: float


class Partition(Struct, frozen=True, kw_only=True):
    """The size of every job, 0 for one that waits. `kept`: why the planner left all as it was; empty if it did not.

    `on`: where each job's replicas can be, by server; `models`: of which model their GPUs are; jobs with none are left
    out. `relaxed`: the rules that could not be kept, `theta1`, `theta2` or `starved:JOB` for a job that had to wait on.
    `utilisation`: the sum over the resources of the part that is given away (0 … number of resources); `unfairness`:
    the sum over the jobs of the distance between a job's dominant share and its fair one.
    """

    sizes: Mapping[str, int]
    changes: tuple[Change, ...] = ()
    kept: str = ""
    utilisation: float = 0.0
    unfairness: float = 0.0
    on: Mapping[str, Mapping[str, int]] = {}
    models: Mapping[str, str] = {}
    relaxed: tuple[str, ...] = ()


class Rules(Struct, frozen=True, kw_only=True):
    """`theta1`: how unfair the partition may be, as a part of the largest unfairness there can be, where all GPUs are
    of one model; `theta2`: how many of the running jobs may change at once, as a part of them. `starved_s`: a job that
    has waited longer comes before the growth of others. `horizon_s`: how long a partition is expected to last; a
    restart has to pay within it.

    `iterations`: the solver's last stop, in steps of its algorithm over the whole plan. No limit is a time, so that the
    same input gives the same partition, on a fast machine and on a slow one.
    """

    theta1: float = 0.1
    theta2: float = 0.2
    starved_s: float = 30.0
    horizon_s: float = 1800.0
    iterations: int = 200_000

    def __post_init__(self) -> None:
        for name in ("theta1", "theta2", "starved_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name):g}")
        for name in ("horizon_s", "iterations"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name):g}")


Partitioner = Callable[[Sequence[ElasticJob], Sequence[Server], Rules], Partition]
