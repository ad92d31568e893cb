"""First in, first out."""

from weft.planning.order.standing import Key, Order, Standing


def key(job: Standing) -> Key:
    return (float(job.seq),)


FIFO = Order("fifo", key)
