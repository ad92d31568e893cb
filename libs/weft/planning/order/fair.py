"""Fair share over time (Fair Tree): next is a job of the tenant that has had least of what is due to it, of late.

What a tenant held counts less and less: half after each half-life. Within a tenant the highest priority, then the
oldest comes first. Nothing is pre-empted.
"""

from weft.planning.order.standing import Key, Order, Standing


def key(job: Standing) -> Key:
    return (job.share, -float(job.priority), float(job.seq))


FAIR = Order("fair", key, by_share=True, by_use=True)
