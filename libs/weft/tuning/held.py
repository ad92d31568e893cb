"""What the ranks of a job have, compared with what was asked for."""

from collections.abc import Mapping, Sequence

from weft.domain.job import Allocation, Job
from weft.messages.asks import RankTuning

ALIKE = 1e-6


def has(job: Job, limits: Sequence[RankTuning]) -> bool:
    """True if the job has these limits."""
    return has_between(job, limits, limits)


def has_between(job: Job, least: Sequence[RankTuning], most: Sequence[RankTuning]) -> bool:
    """True if each of these ranks has at least `least` and at most `most`. Both name the same ranks."""
    assert job.placement is not None
    held = {allocation.rank: allocation for allocation in job.placement.allocations}
    for low, high in zip(least, most, strict=True):
        if low.rank not in held:
            return False
        for at_least, now, at_most in zip(_sizes(low), _sizes(held[low.rank]), _sizes(high), strict=True):
            if at_least is None or at_most is None:
                continue
            if now is None or not at_least - ALIKE <= now <= at_most + ALIKE:
                return False
    return True


def has_size(job: Job, size: Mapping[str, int]) -> bool:
    """True if the job has this number of replicas of each role, and none of them is about to leave."""
    assert job.placement is not None
    leaving = {allocation.role for allocation in job.placement.allocations if allocation.leaving}
    return all(job.granted.get(role) == count and role not in leaving for role, count in size.items())


def _sizes(one: Allocation | RankTuning) -> tuple[float | None, ...]:
    return one.cpus, one.memory, one.egress
