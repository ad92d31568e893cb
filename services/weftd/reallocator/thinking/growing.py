"""Decides if the tuner's outer loop may request one more replica of a job now, and of which roles."""

from math import inf

from weft.domain.job import Job
from weft.domain.sizes import how_resized
from weft.domain.spec import ResizeHow
from weft.planning.capacity import FreeCapacity
from weft.planning.resizing import is_cool
from weft.planning.resource_request import resource_request_of
from weft.tuning.proposal import Case, Headroom
from weft.tuning.state import TunerState
from weftd.reallocator.thinking.kinds import elastic_role

HORIZON_SECONDS = 600.0  # time within which a restart must pay, as for the partition planner


def room_for_one_more(
    case: Case,
    state: TunerState,
    *,
    room: FreeCapacity,
    restart_s: float,
    plans_sizes: bool,
    cool_down_seconds: float,
    now: float,
) -> Headroom | None:
    """The room of a job to grow; None if no replica may be requested now.

    `room`: free capacity of nodes. A job may grow if it has its full size, no rank is leaving, others did not change
    its size within its cool-down, and its own last command was not postponed. With `plans_sizes` the planner alone
    decides about the role that it sizes.
    """
    job = case.job
    how = how_resized(job.spec)
    if (
        how is ResizeHow.NEVER
        or job.spec.is_service  # only the autoscaler sizes services
        or job.granted != job.wanted
        or now < state.rests_until
        or not _may_change(job, state, now, restart_s=restart_s, seconds=cool_down_seconds)
    ):
        return None
    if any(allocation.leaving for allocation in case.allocations):
        return None
    roles = {
        want.role
        for want in resource_request_of(job.spec, job.tenant)
        if job.granted[want.role] < job.spec.roles[want.role].replicas.most
        and not (plans_sizes and want.role == elastic_role(job)[0])
        and any(node.count(want.request, 1) for node in room.open_nodes)
    }
    if not roles:
        return None
    cost_s = restart_s if how is ResizeHow.RESTART else 0.0
    return Headroom(roles=frozenset(roles), cost_s=cost_s, left_s=_left_seconds(case, now), exponents=state.exponents)


def _may_change(job: Job, state: TunerState, now: float, *, restart_s: float, seconds: float) -> bool:
    """True if others changed the job's size long enough ago. If the job restarts, changes by its tuner count too."""
    changed_at = job.sized_at
    if changed_at is None and job.worked:
        changed_at = job.held_since
    by_its_tuner = job.granted == state.size and how_resized(job.spec) is not ResizeHow.RESTART
    if changed_at is None or by_its_tuner:
        return True
    return is_cool(changed_at, now, restart_s=restart_s, seconds=seconds)


def _left_seconds(case: Case, now: float) -> float:
    """Remaining seconds of the job, by its time limit and its steps; at most the horizon."""
    job = case.job
    limit = job.spec.time_limit_seconds
    left = [HORIZON_SECONDS]
    if limit is not None and job.started_at is not None:
        left.append(limit - (now - job.started_at))
    rate = max((window.steps_rate or 0.0 for window in case.recent[-1].ranks), default=0.0)
    steps = job.progress.get("steps", inf) - job.progress.get("step", 0.0)
    if rate > 0.0:
        left.append(steps / rate)
    return max(0.0, min(left))
