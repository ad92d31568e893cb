"""Shortest remaining time first. Jobs without a known duration come last, the oldest first.

Tiers double: a job preempts those that still need about twice as long. If any difference counted, two jobs that are
nearly equal would take turns at evicting each other.
"""

from weft.planning.order.standing import Key, Order, Standing

UNKNOWN = 64
GRAIN_S = 1e-3  # added so that the tier has changed by then


def key(job: Standing) -> Key:
    return (float("inf") if job.left_s is None else job.left_s, float(job.seq))


def tier(job: Standing) -> int:
    """How often the remaining seconds can be halved before less than one is left."""
    return UNKNOWN if job.left_s is None else int(job.left_s).bit_length()


def changes_after_s(job: Standing) -> float | None:
    if job.left_s is None or job.left_s < 1:
        return None
    return job.left_s - float(1 << (tier(job) - 1)) + GRAIN_S


SRTF = Order("srtf", key, tier, changes_after_s, by_left=True)
