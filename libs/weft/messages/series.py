"""The gateway's answers about time: sampled figures of the last day, and the GPU-seconds that each tenant held."""

from typing import Annotated

from msgspec import Meta, Struct

from weft.messages.accounts import AccountRow, CapacityView, UsageGrouping
from weft.messages.http import Seconds

Steps = Annotated[tuple[float | None, ...], Meta(description="A value for each step, oldest first; null: not known.")]


class SeriesView(Struct, frozen=True, kw_only=True):
    """Sampled figures by name. Value `n` of each list is the mean of what was sampled in the `step_seconds` from
    `begins + n * step_seconds` on; null: nothing was. Those of the newest step are of the part of it that has passed.

    Of a node: `cpu` and `memory`, used parts of what it has, 0–1; `gpu.N.used`, the part of the time in which GPU `N`
    ran anything, 0–1; `gpu.N.memory_used` in bytes. Series of a job: `pace`, steps a second of its slowest rank;
    `progress`, the step of the rank that is furthest behind; of a service `rate`, requests a second, and `p_ms`,
    milliseconds to the first byte of the answer, of the percentile of its objective, else of 99 %; `replicas`, those
    that it holds. All have `cpus_used`, in cores, and `memory_used`, in bytes: the sums over all ranks.
    Of the cluster: GPUs `held` and `used`; `queued`, jobs that wait, for administrators.
    """

    step_seconds: float
    begins: Seconds
    series: dict[str, Steps]


class TenantUsage(Struct, frozen=True, kw_only=True):
    """What one tenant had of the GPUs. `gpu_seconds_held`: exact, a share of a GPU counts as the part that it is
    promised. `gpu_seconds_used`: the time in which the GPUs that it held ran anything, as sampled;
    `gpu_seconds_unused`: the time in which less than a twentieth of one was used. Null: less than nine tenths of what
    it held was sampled by this gateway.

    `share_got`: held, of all GPU-seconds that there were, 0–1. `share_due`: what it would have got, had every tenant
    the same right to GPUs and each got no more than it held and waited for, step by step; a job that a free GPU would
    not help counts as waiting for none. `held`: by step, the mean
    number of GPUs; empty for tenants beyond the first hundred.
    """

    tenant: str
    gpu_seconds_held: float
    gpu_seconds_used: float | None = None
    gpu_seconds_unused: float | None = None
    share_due: float = 0.0
    share_got: float = 0.0
    held: tuple[float, ...] = ()


class UsageView(Struct, frozen=True, kw_only=True):
    """GPU-seconds by tenant, the one that held most first, from the stored events between `begins` and `ends`.

    `begins` is later than was asked for where earlier jobs may have been deleted: `whole_since`, null if none ever was.
    `gpu_seconds`: of all GPUs of all nodes that there were, drained and lost ones too; `gpu_seconds_idle` of them
    nobody held. `left_out`: tenants beyond the first thousand, whose GPU-seconds are in no row.

    With `by` there are `rows` in place of `tenants`, the one that held most first, or in order of time; `total` has all
    of them, those that are left out too. `capacity`: of all pools and of each; administrators see it. `currency`: of
    each `cost`; empty: there is no price list.
    """

    begins: Seconds
    ends: Seconds
    step_seconds: float
    gpu_seconds: float
    gpu_seconds_idle: float
    tenants: tuple[TenantUsage, ...] = ()
    left_out: int = 0
    by: UsageGrouping | None = None
    total: AccountRow | None = None
    rows: tuple[AccountRow, ...] = ()
    capacity: tuple[CapacityView, ...] = ()
    currency: str = ""
    whole_since: Seconds | None = None
