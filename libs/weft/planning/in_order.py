"""A pool's queue as its scheduler serves it: every waiting job with its place."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from weft.domain.cluster import Node
from weft.domain.job import Job
from weft.planning.jobs import standing_of
from weft.planning.order import Order
from weft.planning.policy import ORDERS, Policy
from weft.planning.queue import Place, place_of
from weft.planning.resource_request import ResourceRequest, resource_request_of_job
from weft.planning.shares import Shares


class InQueue(Struct, frozen=True):
    """A job of the queue; `ahead`: how many jobs are served before it."""

    job: Job
    ahead: int


def order_of(policy: str) -> Order:
    """The stored order of a policy; priority if this version does not know it, because a later version wrote it."""
    name = policy.partition("+")[0]
    return Policy(order=name if name in ORDERS else "priority").ordering


def shares_of(nodes: Iterable[Node], holding: Iterable[Job]) -> Shares:
    """GPUs of the pool that each tenant holds."""
    shares = Shares()
    shares.measure(nodes)
    for held in holding:
        shares.hold(held)
    return shares


class _Known(NamedTuple):
    job: Job
    place: Place
    resource_request: ResourceRequest


class KnownPlaces:
    """Places and shapes of waiting jobs under one order, kept from one look to the next: the place of a job that has
    never held GPUs is always the same. Two looks at once are in no way of each other."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self._known: dict[str, _Known] = {}

    def of(self, queued: Sequence[Job], now: float) -> list[tuple[Place, Job]]:
        """The place of each of these jobs, in order; forgets all other jobs."""
        return [(known.place, known.job) for known in self._look_up(queued, now)]

    def with_shapes(self, queued: Sequence[Job], now: float) -> list[tuple[Place, Job, ResourceRequest]]:
        """Jobs of one shape have the same object. Forgets all other jobs."""
        return [(known.place, known.job, known.resource_request) for known in self._look_up(queued, now)]

    def _look_up(self, queued: Sequence[Job], now: float) -> list[_Known]:
        before, after = self._known, dict[str, _Known]()
        resource_requests: dict[ResourceRequest, ResourceRequest] = {}
        for job in queued:
            known = before.get(job.id)
            if known is None or known.job is not job or job.attained_seconds:
                resource_request = resource_request_of_job(job)
                place = place_of(self.order, standing_of(job, now, self.order))
                known = _Known(job, place, resource_requests.setdefault(resource_request, resource_request))
            after[job.id] = known
        self._known = after
        return list(after.values()) if len(after) == len(queued) else [after[job.id] for job in queued]


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
