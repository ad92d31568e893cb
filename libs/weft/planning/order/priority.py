"""The highest priority first; within one priority, least attained service (`las`).

A job preempts jobs of lower priority. Within one priority, a job that writes checkpoints preempts those that write them
too and have had more: they share the GPUs over time, at little loss. A job without checkpoints would lose all its work,
so it is preempted by higher priorities only; in return it preempts nobody of its own.
"""

from weft.planning.order import las
from weft.planning.order.standing import Key, Order, Standing

_STEP = las.LEVELS + 1  # tiers of one priority: the levels, and that of jobs that preempt none of their own


def key(job: Standing) -> Key:
    return (-float(job.priority), *las.key(job))


def tier(job: Standing) -> int:
    return -job.priority * _STEP + (las.level(job) if job.checkpoints else las.LEVELS)


def held_tier(job: Standing) -> int:
    return -job.priority * _STEP + (las.level(job) if job.checkpoints else 0)


def changes_after_s(job: Standing) -> float | None:
    return las.changes_after_s(job) if job.checkpoints else None


PRIORITY = Order("priority", key, tier, changes_after_s, las.promotes_after_s, held_tier)
