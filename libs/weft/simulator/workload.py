"""The workload of a simulated cluster: jobs that arrive at their times."""

from collections.abc import Mapping
from random import Random

from msgspec import Struct, structs

from weft.planning.shares import Amounts

MOST_SENSITIVE = "A"  # the class of a job without a known class: it risks nothing


class Elastic(Struct, frozen=True, kw_only=True):
    """How far the size of a job may change, and what that does to it.

    It runs with `least` to `most` replicas and asks for `asked`; each needs `each`: GPUs, CPU cores, memory in bytes.
    `exponent`: n replicas are (n ÷ `asked`) ** `exponent` times as fast as `asked`, unless `speeds` has measured
    speeds, one for each size from `least` on, in any unit; or unless `by_model` has them for each model of GPUs on
    which it can run, in parts of the speed at which its work takes as long as its trace says; such speeds were measured
    on as few nodes as hold its GPUs. `resize_s`: how long the job makes no progress when its size
    changes; `live`: its other replicas stay where they are meanwhile, else it restarts. `weight`: of its fair share.
    """

    asked: int
    least: int
    most: int
    each: Amounts
    exponent: float = 1.0
    speeds: tuple[float, ...] = ()
    by_model: Mapping[str, tuple[float, ...]] = {}
    live: bool = False
    resize_s: float = 30.0
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.asked <= self.most:
            raise ValueError(f"asked must be between least and most: {self.least} to {self.most}, not {self.asked}")
        for speeds in (self.speeds, *self.by_model.values()):
            if speeds and len(speeds) != self.most - self.least + 1:
                raise ValueError(f"speeds must have a value for each size, {self.least} to {self.most}")
            if min(speeds, default=1.0) <= 0:
                raise ValueError("speeds must be above 0")
        if not 0 <= self.exponent <= 1:
            raise ValueError(f"exponent must be 0 to 1: {self.exponent:g}")
        if self.resize_s < 0 or self.weight <= 0 or min(self.each) < 0:
            raise ValueError("resize_s and each must not be below 0, and weight must be above it")

    def speed(self, size: int, model: str = "") -> float:
        """How many times as fast as with `asked` replicas it is with `size`, wherever these are on GPUs of `model`."""
        if self.by_model:
            return self.by_model[model][size - self.least] if model in self.by_model else 1.0
        if self.speeds:
            return self.speeds[size - self.least] / self.speeds[self.asked - self.least]
        return float((size / self.asked) ** self.exponent)


class Ask(Struct, frozen=True, kw_only=True):
    """From `at_s` on a service should have `size` replicas; None: as many as before, of a new revision."""

    at_s: float
    size: int | None = None


class ServiceSize(Struct, frozen=True, kw_only=True):
    """A service wants `want` replicas at first; the `least` oldest are the last to give way to other jobs. During an
    update it has `max_surge` replicas more at most."""

    want: int
    least: int = 0
    max_surge: int = 1
    asks: tuple[Ask, ...] = ()


class TraceJob(Struct, frozen=True, kw_only=True):
    """One job of a trace. All times in seconds, `arrival_s` since the trace's own beginning.

    `work_s`: how long it runs with the size it asks for, on GPUs of score 1.0 that are all in one node. `estimate_s`:
    its user's estimate of that. `checkpoint_s`: the work between two checkpoints; 0: it writes one when it is stopped;
    None: it writes none, and begins again. `share`: the part of one GPU that it asked for, if less than a whole one (it
    gets a whole one). `gpus`: how many GPUs it asks for, one a replica unless `elastic` has other replicas.
    `gpu_models`: the models of which the GPUs of a job of one size may be, the preferred one first; empty: any but
    those of `gpu_models_excluded`. `model`: its workload. `service`: the job is a service, `gpus` are those of each
    replica, and it ends `work_s` after its arrival. `started_s`: when it started in the cluster that the trace is of,
    where that is told; the simulation does not go by it. `where`: the expression that the
    labels of its nodes must match; empty: it runs on all.
    """

    id: str
    arrival_s: float
    gpus: int
    work_s: float
    checkpoint_s: float | None = 0.0
    job_class: str = MOST_SENSITIVE
    tenant: str = "default"
    priority: int = 0
    model: str = ""
    gpu_models: tuple[str, ...] = ()
    gpu_models_excluded: tuple[str, ...] = ()
    estimate_s: float | None = None
    share: float | None = None
    elastic: Elastic | None = None
    service: ServiceSize | None = None
    started_s: float | None = None
    where: str = ""


class Workload(Struct, frozen=True, kw_only=True):
    """Jobs by arrival, then in the order of their file. `notes`: remarks for the reader on how they were read."""

    name: str
    jobs: tuple[TraceJob, ...]
    notes: tuple[str, ...] = ()


def with_checkpoints(workload: Workload, part: float, *, seed: int) -> Workload:
    """The same jobs, of which `part` (0 to 1), chosen at random, write a checkpoint when they are stopped; the others
    write none."""
    dice = Random(seed)
    jobs = tuple(structs.replace(job, checkpoint_s=0.0 if dice.random() < part else None) for job in workload.jobs)
    return structs.replace(workload, jobs=jobs, notes=(*workload.notes, f"checkpoints: {part:.0%} of the jobs"))


class InputError(Exception):
    """An input cannot be read: `file`, `line` (1 is the first; 0: the file as a whole) and the mistake."""

    def __init__(self, file: str, line: int, reason: str) -> None:
        super().__init__(f"{file}:{line}: {reason}" if line else f"{file}: {reason}")
        self.file = file
        self.line = line
        self.reason = reason
