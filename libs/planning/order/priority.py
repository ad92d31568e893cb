"""The most important first, then the oldest. A more important job preempts those that are less so."""

from libs.planning.order.standing import Key, Order, Standing


def key(job: Standing) -> Key:
    return (-float(job.priority), float(job.seq))


def tier(job: Standing) -> int:
    return -job.priority


PRIORITY = Order("priority", key, tier)
