"""The gateway's answers for pages that stay open: the cluster as a snapshot with what changed since, and the queue.

Fields are added with a default, never renamed or removed. In `LiveDelta` a field that is absent has not changed.
"""

from typing import Annotated

from msgspec import Meta, Struct

from weft.domain.job import JobState
from weft.domain.spec import Kind
from weft.domain.topology import Topology
from weft.messages.eta import Estimate, Sooner
from weft.messages.http import Bytes, Seconds, Totals
from weft.messages.signals import Finding

Fraction = Annotated[float, Meta(description="0 to 1.")]
Milliseconds = Annotated[float, Meta(description="In milliseconds.")]


class LiveHolder(Struct, frozen=True, kw_only=True):
    """A job that holds a GPU, or a part of it: `share` of its time, 1 for all."""

    job: str
    share: Fraction = 1.0


class LiveGpu(Struct, frozen=True, kw_only=True):
    """One GPU. `used`, in steps of a hundredth, and `memory_used`, in steps of a hundredth of the memory: by its newest
    sample, null if there is none. `slow`: the score that placement believes, of the class of jobs that the GPU is
    slowest for; 1.0 is typical, null if none is known. `quarantined`: it turned slow all at once. `holders`: the
    largest share first. `out`: why it is out of use for its health; empty if it takes new runs."""

    index: int
    model: str
    memory: Bytes
    emulated: bool
    used: Fraction | None
    memory_used: Bytes | None
    slow: float | None
    quarantined: bool
    holders: tuple[LiveHolder, ...]
    out: str = ""


class LiveNode(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node. `state`: `lost` (its work was taken from it), else `silent` (it has not reported for longer than usual:
    `silent_seconds`, in whole seconds), else `drained` (it takes no new work), else `quarantined` (nor does it, for its
    health: `out`), else `ready`. `topology`: the links between its GPUs, if they are known."""

    id: str
    pool: str
    state: str
    runtime: str
    cpus: float
    cpus_allocated: float
    memory: Bytes
    memory_allocated: Bytes
    gpus: tuple[LiveGpu, ...]
    silent_seconds: int | None = None
    out: str = ""
    topology: Topology | None = None


class LiveService(Struct, frozen=True, kw_only=True):
    """A job that serves requests, now. `rate`: requests per second. `p_ms`: the time to the first byte, of the
    percentile that its objective `objective_ms` is for (99 without one). `ready` of `wanted` replicas. `lent`: the GPUs
    that it has from other jobs."""

    rate: float | None
    p_ms: Milliseconds | None
    objective_ms: Milliseconds | None
    ready: int | None
    wanted: int
    lent: float


class LiveJob(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job that holds resources and that the caller may see. `mine`: it is of the caller's tenant."""

    name: str
    tenant: str
    kind: Kind
    state: JobState
    gpus: float
    replicas: int
    since: Seconds
    progress: dict[str, float]
    mine: bool
    service: LiveService | None = None


class LiveSnapshot(Struct, frozen=True, kw_only=True):
    """All of it at one time. `tenant` and `admin`: the caller's. `jobs`: those that hold resources and that the caller
    may see, by id; of other jobs only the id is told, with the GPUs that they hold. `states` counts the jobs that are
    not over and that the caller may see, `waiting` those in the queue by the code of their cause. `cursor`: the newest
    event that this shows. `findings`: for administrators."""

    at: Seconds
    cursor: str
    tenant: str
    admin: bool
    totals: Totals
    states: dict[str, int]
    waiting: dict[str, int]
    nodes: tuple[LiveNode, ...]
    jobs: dict[str, LiveJob]
    findings: tuple[Finding, ...]


class LiveDelta(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What changed since the snapshot or the delta before: nodes and jobs as they are now, and those that are gone.
    `totals`, `states`, `waiting` and `findings` are absent, or null, if they did not change."""

    at: Seconds
    cursor: str
    nodes: tuple[LiveNode, ...] = ()
    nodes_gone: tuple[str, ...] = ()
    jobs: dict[str, LiveJob] = {}
    jobs_gone: tuple[str, ...] = ()
    totals: Totals | None = None
    states: dict[str, int] | None = None
    waiting: dict[str, int] | None = None
    findings: tuple[Finding, ...] | None = None


class QueueRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job of the queue. `place`: how many jobs of its pool are served before it, plus 1, those included that the
    caller may not see; null of a job that holds resources. `code` and `sentence`: why it waits, if that is known.
    `gpus` and `replicas`: those that it wants; of a job that holds resources, those that it has. Of many `labels` the
    first are shown. `eta`: when it starts, by an estimate that may be a minute old; of jobs far behind none is made.
    `sooner`: what would let it start sooner most, where that is known."""

    place: int | None
    id: str
    name: str
    tenant: str
    pool: str
    kind: Kind
    state: JobState
    priority: int
    gpus: float
    replicas: int
    submitted_at: Seconds
    since: Seconds
    code: str
    sentence: str
    labels: dict[str, str]
    eta: Estimate | None = None
    sooner: Sooner | None = None
    array: Annotated[
        str, Meta(description="The id of the array that the row stands for; `id` is its first element.")
    ] = ""
    elements: Annotated[dict[str, int], Meta(description="Number of elements of that array in each state.")] = {}


class QueueView(Struct, frozen=True, kw_only=True):
    """A part of the queue, in the order in force. `total`: how many jobs the filters let through that the caller may
    see. `order`: the name of the order in force; of several pools with different orders, all of them. The next part
    begins at `offset` plus the number of rows here: there are fewer than `limit` at the end, or if they are long."""

    at: Seconds
    total: int
    order: str
    rows: tuple[QueueRow, ...]
