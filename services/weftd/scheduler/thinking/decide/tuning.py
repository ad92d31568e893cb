"""Changes of CPUs, memory or network of the ranks of a running job: applied as a whole if they fit, or not at all.

The reallocator asks (`weft.messages.asks.Tune`); a refused ask is dropped and changes nothing.
"""

from collections.abc import Collection, Mapping
from math import isfinite

from msgspec import structs

from weft.domain.job import Allocation, CauseCode, Job, JobEvent, JobState, Step
from weft.domain.spec import EGRESS_BYTES_MIN, MEMORY_BYTES_MAX, MEMORY_BYTES_MIN
from weft.messages.asks import Ask, RankTuning, Tune
from weftd.scheduler.thinking.state.cluster_state import ClusterState

CPUS_MIN, CPUS_MAX = 0.001, 4096.0  # of one rank: the range that a role may request

_GRAIN = 1e-6  # rounding error of adding and subtracting cores


def tune(cluster_state: ClusterState, ask: Ask, now: float, *, closed: Collection[str] = ()) -> list[Step]:
    """The step that `ask` leads to; none if it is refused. On `closed` nodes free capacity is kept for a waiting job:
    ranks there get no more than their job's specification requests. With the code `kept` and no ranks it changes
    nothing."""
    job, asked = cluster_state.jobs.get(ask.subject_id), ask.tune
    if job is None or asked is None or job.placement is None:
        return []
    if asked.cause.code is CauseCode.KEPT and not asked.ranks:  # nothing changes: the story says what it gained
        in_time = job.state is JobState.RUNNING and job.epoch == asked.epoch
        return (
            cluster_state.go(job, JobEvent.TUNED, asked.cause, now, ask=ask.id, placement=job.placement)
            if in_time
            else []
        )
    after = limits_after(job, asked)
    if after is None or not _fits(cluster_state, job, after, closed):
        return []
    placement = structs.replace(job.placement, allocations=after)
    return cluster_state.go(job, JobEvent.TUNED, asked.cause, now, ask=ask.id, placement=placement)


def limits_after(job: Job, asked: Tune) -> tuple[Allocation, ...] | None:
    """The allocations after the change; None for another epoch, an unknown rank, an invalid limit, or no change."""
    if job.state is not JobState.RUNNING or job.epoch != asked.epoch or job.placement is None:
        return None
    by_rank: Mapping[int, RankTuning] = {one.rank: one for one in asked.ranks}
    ranks = {allocation.rank for allocation in job.placement.allocations}
    if len(by_rank) < len(asked.ranks) or not by_rank.keys() <= ranks or not all(map(_is_sane, asked.ranks)):
        return None
    after = tuple(_tuned(allocation, by_rank.get(allocation.rank)) for allocation in job.placement.allocations)
    return None if after == job.placement.allocations else after


def _is_sane(tuning: RankTuning) -> bool:
    cpus, memory, egress = tuning.cpus, tuning.memory, tuning.egress
    return (
        (cpus is None or (isfinite(cpus) and CPUS_MIN <= cpus <= CPUS_MAX))
        and (memory is None or MEMORY_BYTES_MIN <= memory <= MEMORY_BYTES_MAX)
        and (egress is None or egress >= EGRESS_BYTES_MIN)
    )


def _tuned(allocation: Allocation, tuning: RankTuning | None) -> Allocation:
    if tuning is None:
        return allocation
    return structs.replace(
        allocation,
        cpus=allocation.cpus if tuning.cpus is None else tuning.cpus,
        memory=allocation.memory if tuning.memory is None else tuning.memory,
        egress=allocation.egress if tuning.egress is None else tuning.egress,
    )


def _fits(cluster_state: ClusterState, job: Job, after: tuple[Allocation, ...], closed: Collection[str]) -> bool:
    """Return True if the net increase of the ranks on each node is free there now."""
    before = job.placement.allocations if job.placement is not None else ()
    for node_id in {allocation.node_id for allocation in before}:
        had = [allocation for allocation in before if allocation.node_id == node_id]
        has = [allocation for allocation in after if allocation.node_id == node_id]
        cpus = sum(one.cpus for one in has) - sum(one.cpus for one in had)
        memory = sum(one.memory for one in has) - sum(one.memory for one in had)
        if cpus <= _GRAIN and memory <= 0:
            continue
        node = cluster_state.pool.free_capacity.nodes.get(node_id)
        if node is None or (node_id in closed and any(_goes_beyond(job, *pair) for pair in zip(had, has, strict=True))):
            return False
        if (cpus > _GRAIN and cpus > node.cpus + _GRAIN) or (memory > 0 and memory > node.memory):
            return False
    return True


def _goes_beyond(job: Job, had: Allocation, has: Allocation) -> bool:
    """Return True if the rank gets more CPUs or memory than before, and more than its role requests."""
    asked = job.spec.roles[had.role]
    return has.cpus > max(had.cpus, asked.cpus) + _GRAIN or has.memory > max(had.memory, asked.memory_bytes)
