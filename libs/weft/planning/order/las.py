"""Least attained service, in two dimensions (Tiresias, NSDI'19): GPUs × time, in levels; within a level, the oldest.

No duration need be known: a job that has run little is likely to need little more. Levels grow by a factor, so that a
job is preempted a bounded number of times, however long it runs. A job that has waited long compared with its running
time comes back to the first level: no job starves behind newer ones.
"""

from weft.planning.order.standing import Key, Order, Standing

FIRST_GPU_SECONDS = 1800.0  # where the first level ends
GROWTH = 4.0  # the end of each level, as a multiple of the previous one
LEVELS = 5  # the last has no end
PATIENCE = 2.0  # a job is promoted when it waited this many times as long as it ran,
PATIENCE_SECONDS = 24 * 3600.0  # and at least this long


def level(job: Standing) -> int:
    had, end, found = job.attained_gpu_s, FIRST_GPU_SECONDS, 0
    while had >= end and found < LEVELS - 1:
        end *= GROWTH
        found += 1
    return found


def key(job: Standing) -> Key:
    return (float(level(job)), float(job.seq))


def changes_after_s(job: Standing) -> float | None:
    """How long the job may run before it falls to the next level."""
    now = level(job)
    if not job.gpus or now == LEVELS - 1:
        return None
    return (FIRST_GPU_SECONDS * GROWTH**now - job.attained_gpu_s) / job.gpus


def promotes_after_s(job: Standing) -> float | None:
    """How long until a waiting job returns to the first level; None if it is there."""
    return None if level(job) == 0 else max(PATIENCE_SECONDS, PATIENCE * job.attained_s) - job.waited_s


LAS = Order("las", key, level, changes_after_s, promotes_after_s)
