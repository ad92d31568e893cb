"""First in, first out."""

from libs.planning.order.standing import Key, Order, Standing


def key(job: Standing) -> Key:
    return (float(job.seq),)


FIFO = Order("fifo", key)
