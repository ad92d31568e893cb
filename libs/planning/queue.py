"""The order in which waiting jobs are looked at: the most important first, then the oldest.

Jobs of one shape fit or do not alike, so a shape that does not fit is asked about once, however many jobs have it.
"""

from bisect import bisect_left, insort
from heapq import heapify, heappop, heappush

from libs.domain.job import Job
from libs.planning.room import Shape, shape_of

Order = tuple[int, int, str]


def order_of(job: Job) -> Order:
    """Sorts jobs as they are served: high priority, then early submission."""
    return (-job.priority, job.seq, job.id)


class Queue:
    """Waiting jobs, by shape, each shape in order."""

    def __init__(self) -> None:
        self._by_shape: dict[Shape, list[Order]] = {}
        self._where: dict[str, tuple[Shape, Order]] = {}

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._where

    def add(self, job: Job) -> None:
        self.remove(job.id)
        shape, order = shape_of(job.spec), order_of(job)
        insort(self._by_shape.setdefault(shape, []), order)
        self._where[job.id] = (shape, order)

    def remove(self, job_id: str) -> None:
        found = self._where.pop(job_id, None)
        if found is None:
            return
        shape, order = found
        orders = self._by_shape[shape]
        del orders[bisect_left(orders, order)]
        if not orders:
            del self._by_shape[shape]

    def shape(self, job_id: str) -> Shape:
        return self._where[job_id][0]

    def ahead_of(self, job_id: str) -> int:
        order = self._where[job_id][1]
        return sum(bisect_left(orders, order) for orders in self._by_shape.values())

    def served(self) -> "Served":
        return Served(self._by_shape)


class Served:
    """One walk over the queue in order: take `next`, then say whether its shape may come again."""

    def __init__(self, by_shape: dict[Shape, list[Order]]) -> None:
        self._heads = [(orders[0], index, 0) for index, orders in enumerate(by_shape.values())]
        self._shapes = list(by_shape)
        self._orders = [list(orders) for orders in by_shape.values()]
        heapify(self._heads)

    def next(self) -> tuple[str, Shape] | None:
        """The next job's id and shape, until none is left."""
        if not self._heads:
            return None
        order, index, _ = self._heads[0]
        return order[2], self._shapes[index]

    def placed(self) -> None:
        """The job that was `next` found its place: its shape comes again in its turn."""
        _, index, position = heappop(self._heads)
        if position + 1 < len(self._orders[index]):
            heappush(self._heads, (self._orders[index][position + 1], index, position + 1))

    def blocked(self) -> None:
        """The job that was `next` does not fit: no other of its shape will."""
        heappop(self._heads)
