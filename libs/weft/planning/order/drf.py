"""Dominant resource fairness (Ghodsi et al., NSDI'11): next is a job of the tenant with the smallest dominant share.

A tenant's dominant share is the largest part that it holds of any one resource of the pool: GPUs, CPUs or memory.
"""

from weft.planning.order.standing import Key, Order, Standing


def key(job: Standing) -> Key:
    return (job.share, -float(job.priority), float(job.seq))


DRF = Order("drf", key, by_share=True)
