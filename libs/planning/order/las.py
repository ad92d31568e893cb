"""Least attained service, in two dimensions (Tiresias, NSDI'19): GPUs × time, in levels; within a level, the oldest.

Nobody need say how long a job takes: one that has had little is likely to need little more. Levels grow by a factor, so
that a job is preempted a bounded number of times, however long it runs. One that has gone without for long against
what it had comes back to the first level: no job waits for ever behind newer ones.
"""

from libs.planning.order.standing import Key, Order, Standing

FIRST_GPU_SECONDS = 1800.0  # where the first level ends
GROWTH = 4.0  # where each level ends, against the one before
LEVELS = 5  # the last has no end
PATIENCE = 2.0  # a job is promoted when it waited so many times as long as it ran,
PATIENCE_SECONDS = 24 * 3600.0  # and so long at the least


def level(job: Standing) -> int:
    had, end, found = job.attained_gpu_s, FIRST_GPU_SECONDS, 0
    while had >= end and found < LEVELS - 1:
        end *= GROWTH
        found += 1
    return found


def key(job: Standing) -> Key:
    return (float(level(job)), float(job.seq))


def changes_after_s(job: Standing) -> float | None:
    """How long it may run before it falls to the next level."""
    now = level(job)
    if not job.gpus or now == LEVELS - 1:
        return None
    return (FIRST_GPU_SECONDS * GROWTH**now - job.attained_gpu_s) / job.gpus


def promotes_after_s(job: Standing) -> float | None:
    """One that waits in the first level has nothing to gain."""
    return None if level(job) == 0 else max(PATIENCE_SECONDS, PATIENCE * job.attained_s) - job.waited_s


LAS = Order("las", key, level, changes_after_s, promotes_after_s)
