"""The size of a job: how many replicas of each role. Which sizes a job may take, and how it takes another."""

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from weft.domain.checkpoints import lost_seconds
from weft.domain.job import Job
from weft.domain.spec import JobSpec, ResizeHow

Size = Mapping[str, int]
"""Replicas by role."""

RESTART_SECONDS_MAX = 86_400.0


class RestartCost(Struct, frozen=True, kw_only=True):
    """How long a job of the workload took when one last restarted with another size: `seconds` from its stop until its
    first step, or until it ran again if it reports no steps; `at` that time. `measured`: how many restarts were."""

    workload: str
    seconds: float
    at: float
    measured: int = 1


class RoleSize(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many replicas of a role a job has (`granted`, without those that leave), should have, and may have.

    `leaving`: replicas that were told to stop and are not gone yet. `next`: replicas with which a job that stops now
    restarts.
    """

    granted: int
    wanted: int
    least: int
    most: int
    leaving: int = 0
    next: int | None = None


def sizes_of(job: Job) -> dict[str, RoleSize]:
    """The size of a job by role. A job that waits or is over has no replicas."""
    allocations = job.placement.allocations if job.placement is not None and job.state.holding else ()
    leaving = Counter(allocation.role for allocation in allocations if allocation.leaving)
    staying = Counter(allocation.role for allocation in allocations if not allocation.leaving)
    following = None
    if job.next_placement is not None:
        following = Counter(allocation.role for allocation in job.next_placement.allocations)
    return {
        name: RoleSize(
            granted=staying[name],
            wanted=job.wanted[name],
            least=role.replicas.least,
            most=role.replicas.most,
            leaving=leaving[name],
            next=None if following is None else following[name],
        )
        for name, role in job.spec.roles.items()
    }


def how_resized(spec: JobSpec) -> ResizeHow:
    """How the job changes its size while it runs."""
    if spec.is_service:
        return ResizeHow.LIVE
    if spec.pin is not None:
        return ResizeHow.NEVER  # its ranks have the GPUs that its user named
    if spec.resize.how is not None:
        return spec.resize.how
    return ResizeHow.NEVER if lost_seconds(spec) is None else ResizeHow.RESTART


def why_never(spec: JobSpec) -> str:
    """Why a job cannot change its size while it runs, and what its user could set instead; empty if it can."""
    if how_resized(spec) is not ResizeHow.NEVER:
        return ""
    if spec.pin is not None:
        return f"it is pinned to {spec.pin.node}"
    if spec.resize.how is ResizeHow.NEVER:
        return f"its resize.how is {ResizeHow.NEVER}; {ResizeHow.LIVE} and {ResizeHow.RESTART} allow it"
    return f"it has no resize.how and no checkpoints: resize.how {ResizeHow.LIVE}, or checkpoints, allow it"


def is_elastic(spec: JobSpec) -> bool:
    """May the job have more than one size?"""
    return any(role.replicas.least < role.replicas.most for role in spec.roles.values())


def wrong_size(spec: JobSpec, size: Size) -> tuple[str, str] | None:
    """A role that `size` gives a wrong number of replicas, and why that number is wrong; None if every number is right.

    A number is wrong if the job has no such role, or if the number is outside the range of the role. Of several wrong
    roles the first is returned.
    """
    for name, count in size.items():
        role = spec.roles.get(name)
        if role is None:
            return name, f"the job has no role {name}; it has {', '.join(sorted(spec.roles))}"
        least, most = role.replicas.least, role.replicas.most
        if not least <= count <= most:
            return name, f"{count} is outside {least} to {most}, the range of role {name}"
    return None
