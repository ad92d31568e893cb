"""A pool's queue as its scheduler serves it: every waiting job with its place."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from libs.domain.cluster import Node
from libs.domain.job import Job
from libs.planning.jobs import standing_of
from libs.planning.order.standing import Order
from libs.planning.policy import ORDERS, Policy
from libs.planning.queue import Place, place_of
from libs.planning.shares import Shares


class InQueue(Struct, frozen=True):
    """A job of the queue; `ahead`: how many jobs are served before it."""

    job: Job
    ahead: int


def order_of(policy: str) -> Order:
    """The order of a policy as it is stored; priority if this version does not know it, as one of a later version."""
    name = policy.partition("+")[0]
    return Policy(order=name if name in ORDERS else "priority").ordering


def shares_of(nodes: Iterable[Node], holding: Iterable[Job]) -> Shares:
    """What each tenant holds of the pool."""
    shares = Shares()
    shares.measure(nodes)
    for held in holding:
        shares.hold(held)
    return shares


def place_in(order: Order, job: Job, shares: Shares, now: float) -> tuple[float, Place]:
    """Where the job stands in the queue."""
    return (shares.of(job.tenant) if order.by_share else 0.0, place_of(order, standing_of(job, now, order)))


class KnownPlaces:
    """Places of waiting jobs under one order, kept from one look to the next: the place of a job that has never held
    GPUs is always the same."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self._known: dict[str, tuple[Job, Place]] = {}

    def of(self, queued: Sequence[Job], now: float) -> list[tuple[Place, Job]]:
        """Forgets all other jobs."""
        known, self._known = self._known, {}
        found: list[tuple[Place, Job]] = []
        for job in queued:
            kept = known.get(job.id)
            if kept is None or kept[0] is not job or job.attained_seconds:
                kept = (job, place_of(self.order, standing_of(job, now, self.order)))
            self._known[job.id] = kept
            found.append((kept[1], job))
        return found


def in_order(
    queued: Sequence[Job], *, nodes: Iterable[Node], holding: Iterable[Job], places: KnownPlaces, now: float
) -> list[InQueue]:
    """The waiting jobs of one pool. A job that waits before it is tried again, or for another job, is ahead of no
    other."""
    placed = places.of(queued, now)
    if places.order.by_share:
        shares = shares_of(nodes, holding)
        of_tenants = {tenant: shares.of(tenant) for tenant in {job.tenant for job in queued}}
        placed.sort(key=lambda each: (of_tenants[each[1].tenant], each[0]))
    else:
        placed.sort(key=lambda each: each[0])
    found: list[InQueue] = []
    ahead = 0
    for _, job in placed:
        found.append(InQueue(job, ahead))
        ahead += job.not_before <= now and not job.is_held
    return found
