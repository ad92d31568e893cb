"""The highest priority first, then the oldest. A job preempts jobs of lower priority."""

from weft.planning.order.standing import Key, Order, Standing


def key(job: Standing) -> Key:
    return (-float(job.priority), float(job.seq))


def tier(job: Standing) -> int:
    return -job.priority


PRIORITY = Order("priority", key, tier)
