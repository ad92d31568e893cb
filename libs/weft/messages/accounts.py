"""Accounting: what the store tells of jobs for it, and the gateway's answers."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from weft.domain.spec import Checkpointing
from weft.messages.http import Seconds

GpuSeconds = Annotated[float, Meta(description="One GPU for one second; a share of a GPU counts as its part.")]
Amount = Annotated[str, Meta(description="An exact decimal in the currency of the price list.")]


OWN_TENANT = "weft"  # the tenant of jobs that Weft's own services submit: benchmarks of GPUs


class UsageGrouping(StrEnum):
    """What rows of an account are about. `epoch`: one try of a job; days and hours are those of UTC."""

    TENANT = "tenant"
    JOB = "job"
    EPOCH = "epoch"
    KIND = "kind"
    MODEL = "model"
    LABEL = "label"
    POOL = "pool"
    DAY = "day"
    HOUR = "hour"


class JobFacts(Struct, frozen=True, kw_only=True, gc=False):
    """What accounting has to know of a job beside its story. `wanted`: thousandths of GPUs that it waits for while it
    waits, by the size that it should have now."""

    id: str
    tenant: str
    pool: str
    name: str
    kind: str
    labels: dict[str, str] = {}
    checkpoints: Checkpointing | None = None
    wanted: int = 0


class AccountRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """GPU-seconds of one tenant, job, label, … in a time. `lost_…`: the part of `gpu_seconds_held` that was thrown
    away, see docs/accounting.md. `gpu_seconds_unused`: the part in which less than a twentieth of a GPU was used.
    `gpu_seconds_used`, `gpu_seconds_unused` and `joules`: null where less than nine tenths of what was held was
    sampled; `joules_emulated`: a part of them is of emulated GPUs, and no energy at all. `cost`: null without a price
    list, or where it has no price for a model.

    `kept_bytes`: the present files of a tenant's jobs, or of a job, on the disks of nodes: results, checkpoints and
    metrics. Null: not known.

    Of an epoch: its `job`, from when to when it held GPUs in this time, and how it ended: the event and the cause's
    code, empty while it goes on.
    """

    key: str
    gpu_seconds_held: GpuSeconds
    gpu_seconds_used: GpuSeconds | None = None
    gpu_seconds_unused: GpuSeconds | None = None
    lost_preempted: GpuSeconds = 0.0
    lost_moved: GpuSeconds = 0.0
    lost_failed: GpuSeconds = 0.0
    cost: Amount | None = None
    joules: float | None = None
    joules_emulated: bool = False
    jobs: int = 0
    epochs: int = 0
    job: str = ""
    name: str = ""
    tenant: str = ""
    epoch: int | None = None
    models: tuple[str, ...] = ()
    begins: Seconds | None = None
    ends: Seconds | None = None
    ended: str = ""
    cause: str = ""
    lost_basis: str = ""
    kept_bytes: int | None = None


class CapacityView(Struct, frozen=True, kw_only=True):
    """What became of all GPU-seconds of a pool, or of all (`pool` empty): `capacity` + `gone` is the sum of the others.

    `planned`: idle though a job that could have run waited for so many. `drained` and `down`: held by nobody on a node
    that takes no new work, or that was lost. `gone`: held by jobs on GPUs that their node no longer had.
    """

    pool: str = ""
    capacity: GpuSeconds
    held: GpuSeconds
    idle: GpuSeconds
    planned: GpuSeconds
    drained: GpuSeconds
    down: GpuSeconds
    gone: GpuSeconds = 0.0
