"""Decides which replicas of running services join, leave, or are replaced by a newer revision, and where they join.

The scheduler and the simulator use it, before and behind the scheduling cycle. Services do not wait behind jobs that
wait for room. Nothing here changes the state of a cluster: the caller applies each decision before it takes the next.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from weft.domain.job import Allocation
from weft.planning.capacity import FreeCapacity
from weft.planning.finding import Place
from weft.planning.growth import Joins
from weft.planning.quota.inforce import QuotasInForce
from weft.planning.resizing import grow
from weft.planning.resource_request import NOBODY, PlacementRequest, RoleRequest

SERVICES_MAX = 128  # services that may grow in one decision: their users wait


class RunningService(Struct, frozen=True, kw_only=True):
    """`held`: all that it has; `want`: the role, and what one replica of it needs (its counts are not used).

    `wanted`: how many replicas it should have, all of `revision`; `max_surge`: how many more during an update; `ready`:
    the ranks that take requests; `borrowed`: those on GPUs that others lent. `version` changes with each of these.
    `not_before`: no replica joins before, since others failed.
    """

    job_id: str
    number: int
    version: Hashable
    held: Place
    want: RoleRequest
    wanted: int
    first_rank: int
    ready: frozenset[int]
    borrowed: frozenset[int] = frozenset()
    revision: int = 0
    max_surge: int = 1
    not_before: float = 0.0
    tenant: str = ""
    preemptible: bool = True
    model: str | None = None
    asked: PlacementRequest = NOBODY

    @property
    def staying(self) -> Place:
        """The replicas that are not about to leave."""
        return tuple(allocation for allocation in self.held if not allocation.leaving)


class Exchange(Struct, frozen=True, kw_only=True):
    """Replicas that leave now, how many may join then, and whether that replaces those of an earlier revision."""

    leave: Place = ()
    join: int = 0
    replaces: bool = False


class Leaves(Struct, frozen=True):
    """These replicas leave; `replaces`: those of a newer revision take their place."""

    job_id: str
    ranks: Place
    replaces: bool


class Cluster(Protocol):
    """The state of a cluster, as the sizes of services read it."""

    @property
    def now(self) -> float: ...
    @property
    def free_capacity(self) -> FreeCapacity: ...
    @property
    def quotas(self) -> QuotasInForce: ...
    def serving(self) -> Iterable[tuple[int, str]]:
        """The running services that should have another size or revision, each with its number in the order of
        submission."""
        ...

    def service(self, job_id: str) -> RunningService:
        """One of these services."""
        ...

    def would_give_way(self, waiting_id: str, service_id: str) -> bool:
        """True if a waiting job would have to give way to a service as soon as it ran, or waits no more."""
        ...

    def growth_news(self) -> int: ...


class _Tried(Struct, frozen=True):
    """The state of the room and of a service that found no place. An old replica may give way once new ones are
    ready."""

    grown: int
    closed: tuple[str, ...]
    version: Hashable
    ready: frozenset[int]


class Replicas:
    """`short`: by service that should have more replicas, how many of them found no place at the last look, and may
    borrow one."""

    def __init__(self, cluster: Cluster) -> None:
        self.short: dict[str, int] = {}
        self._cluster = cluster
        self._tried: dict[str, _Tried] = {}
        self._last = -1  # the number of the service that was looked at last

    def decide(self, *, closed: Sequence[str], ahead: str = "") -> Iterator[Leaves | Joins]:
        """`closed` nodes are kept for a waiting job. With `ahead`, a job that waits for room, only services to which
        that job would have to give way as soon as it ran."""
        cluster = self._cluster
        serving = {job_id: number for number, job_id in cluster.serving()}
        for of_serving in (self.short, self._tried):
            for job_id in [one for one in of_serving if one not in serving]:
                del of_serving[job_id]
        if ahead:
            serving = {one: number for one, number in serving.items() if cluster.would_give_way(ahead, one)}
        looked_at = 0
        for _, number, job_id in sorted((number <= self._last, number, one) for one, number in serving.items()):
            service = cluster.service(job_id)
            wanted = exchange(service)
            if wanted.leave:
                yield Leaves(job_id, wanted.leave, wanted.replaces)
                service = cluster.service(job_id)
            if not wanted.join:
                self.short.pop(job_id, None)
            elif cluster.now >= service.not_before and looked_at < SERVICES_MAX:
                looked_at += 1
                self._last = number
                yield from self._more(service, wanted, closed)

    def _more(self, service: RunningService, wanted: Exchange, closed: Sequence[str]) -> Iterator[Leaves | Joins]:
        """Let as many of the missing replicas join as fit. If an update finds no room for a new replica, an old replica
        leaves first."""
        cluster, job_id = self._cluster, service.job_id
        tried = _Tried(
            cluster.free_capacity.grown + cluster.growth_news(), tuple(closed), service.version, service.ready
        )
        if self._tried.get(job_id) == tried:
            return
        most = cluster.quotas.most_more(
            service.tenant, (service.want,), wanted.join, model=service.model, preemptible=service.preemptible
        )
        if not most:
            self.short.pop(job_id, None)  # nobody lends what its tenant may not have
            self._tried[job_id] = tried
            return
        with cluster.free_capacity.supposing(closed=closed):
            joining = grow(
                cluster.free_capacity,
                service.held,
                service.want,
                most,
                first_rank=service.first_rank,
                least=1,
                asked=service.asked,
            )
        self.short[job_id] = missing = most - len(joining or ())
        if not missing:
            del self.short[job_id]
        if joining:
            yield Joins(job_id, joining)
            return
        self._tried[job_id] = tried
        if wanted.replaces and not wanted.leave and (first := gives_way(service)) is not None:
            yield Leaves(job_id, (first,), replaces=True)


def exchange(service: RunningService) -> Exchange:
    """Return which replicas leave now, and how many may join, for the wanted size and the newest revision.

    During an update there are at most `max_surge` replicas beyond the size. Each new one that is ready lets an old one
    leave.
    """
    wanted, ready = service.wanted, service.ready
    new = [each for each in service.staying if each.revision == service.revision]
    old = [each for each in service.staying if each.revision != service.revision]

    def last_first(each: Allocation) -> tuple[bool, bool, int]:
        return (each.rank not in service.borrowed, each.rank in ready, -each.rank)

    new_leave = sorted(new, key=last_first)[: max(0, len(new) - wanted)]
    new_stay = [each for each in new if each not in new_leave]
    new_ready = sum(each.rank in ready for each in new_stay)
    old_leave = sorted(old, key=last_first)[: max(0, len(old) - max(0, wanted - new_ready))]
    left = len(old) - len(old_leave)
    most = wanted + (service.max_surge if old else 0)
    beyond = len(new_stay) + left - most
    if beyond > 0:  # the size fell while an update was under way
        unready = [each for each in sorted(new_stay, key=last_first) if each.rank not in ready][:beyond]
        new_leave, new_stay = [*new_leave, *unready], [each for each in new_stay if each not in unready]
    join = min(wanted - len(new_stay), most - len(new_stay) - left)
    return Exchange(leave=(*new_leave, *old_leave), join=max(0, join), replaces=bool(old))


def gives_way(service: RunningService) -> Allocation | None:
    """The replica that leaves first if no new one fits beside it; None if it is the only one, or if one replica is
    missing already."""
    staying = service.staying
    old = [each for each in staying if each.revision != service.revision]
    if not old or len(staying) < max(2, service.wanted) or len(staying) < len(service.held):
        return None
    if any(each.revision == service.revision and each.rank not in service.ready for each in staying):
        return None  # one of the new is about to be ready
    return min(old, key=lambda each: (each.rank in service.ready, -each.rank))
