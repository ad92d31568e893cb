"""Waiting jobs in the order in which they are served.

Jobs of one shape and class form a *group*: either all fit or none does, so a group that does not fit is tried once,
however many jobs are in it.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Mapping
from heapq import heapify, heappop, heapreplace

from weft.planning.order import Key, Order, Standing

Place = tuple[Key, int, str]
"""Where a job stands in the order: its key, then its number and id."""


def place_of(order: Order, standing: Standing) -> Place:
    return (order.key(standing), standing.seq, standing.id)


Rank = tuple[float, ...]
"""Sorts before the order does: what quotas say of a job."""

ServedAt = tuple[Rank, float, Place]
"""Sorts waiting jobs as a walk serves them: what quotas say, the tenant's share, the place in the order."""


class Queue:
    """Waiting jobs by group, each group in order; `by_tenant`: the jobs of a group have one tenant."""

    def __init__(self, order: Order, *, by_tenant: bool = False) -> None:
        self.order = order
        self.by_tenant = by_tenant or order.by_share
        self._by_group: dict[Hashable, list[Place]] = {}
        self._where: dict[str, tuple[Hashable, Place]] = {}
        self._groups: dict[Hashable, Hashable] = {}  # one object for all jobs of a group

    def copy(self) -> "Queue":
        other = Queue(self.order)
        other.by_tenant = self.by_tenant
        other._by_group = {group: list(places) for group, places in self._by_group.items()}
        other._where, other._groups = dict(self._where), dict(self._groups)
        return other

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._where

    def add(self, standing: Standing, group: Hashable) -> None:
        """Add a job; one that waits already moves to its new place."""
        self.remove(standing.id)
        if self.by_tenant:
            group = (standing.tenant, group)
        group = self._groups.setdefault(group, group)
        place = place_of(self.order, standing)
        insort(self._by_group.setdefault(group, []), place)
        self._where[standing.id] = (group, place)

    def remove(self, job_id: str) -> None:
        found = self._where.pop(job_id, None)
        if found is None:
            return
        group, place = found
        places = self._by_group[group]
        del places[bisect_left(places, place)]
        if not places:
            del self._by_group[group], self._groups[group]

    def group(self, job_id: str) -> Hashable:
        group = self._where[job_id][0]
        return group[1] if self.by_tenant else group  # type: ignore[index]

    def heads(self) -> list[str]:
        """The first job of each group."""
        return [places[0][2] for places in self._by_group.values()]

    def served(
        self, share_of: Callable[[str], float] | None = None, rank_of: Callable[[str], Rank] | None = None
    ) -> "Served":
        """A walk over the queue. `share_of(tenant)`: its present dominant share, for orders that use it;
        `rank_of(job_id)`: a rank that comes before the order, for a queue by tenant."""
        return Served(
            self._by_group,
            share_of if self.order.by_share else None,
            rank_of if self.by_tenant else None,
            relative=self.order.by_use,
        )

    def keys(
        self, share_of: Callable[[str], float], rank_of: Callable[[str], Rank] | None = None
    ) -> Callable[[str], ServedAt]:
        """The order of service of the queue's jobs, as in `served`."""

        def key(job_id: str) -> ServedAt:
            group, place = self._where[job_id]
            share = share_of(group[0]) if self.order.by_share else 0.0  # type: ignore[index]
            return (rank_of(job_id) if rank_of is not None and self.by_tenant else (), share, place)

        return key


class Served:
    """One walk over the queue in order. Call `next`; then take that job out of the queue and call `taken`, or leave
    it there and call `passed`, or `blocked` if no other of its group can start.

    `relative`: a start for one tenant may bring another forward, as `share_of` is a rank among tenants.
    """

    def __init__(
        self,
        by_group: Mapping[Hashable, list[Place]],
        share_of: Callable[[str], float] | None = None,
        rank_of: Callable[[str], Rank] | None = None,
        *,
        relative: bool = False,
    ) -> None:
        self._relative, self._moved = relative, False
        self._lists = list(by_group.values())
        self._at = [0] * len(self._lists)
        self._share_of = share_of
        self._rank_of = rank_of
        self._tenants = [group[0] for group in by_group] if share_of else []  # type: ignore[index]
        self._heads = [(self._key(index, places[0]), index) for index, places in enumerate(self._lists)]
        heapify(self._heads)

    def _key(self, index: int, place: Place) -> ServedAt:
        rank = self._rank_of(place[2]) if self._rank_of else ()
        return (rank, self._share_of(self._tenants[index]) if self._share_of else 0.0, place)

    def next(self) -> str | None:
        """The next job's id, until none is left."""
        if self._moved:
            self._sort()
        while self._heads:
            key, index = self._heads[0]
            places, at = self._lists[index], self._at[index]
            if at >= len(places):
                heappop(self._heads)
                continue
            current = self._key(index, places[at])
            if current == key:
                return places[at][2]
            heapreplace(self._heads, (current, index))
        return None

    def taken(self) -> None:
        """The job left the queue: the next of its group is now at its index."""
        self._moved = self._relative

    def _sort(self) -> None:
        self._moved = False
        heads = [(self._lists[index], self._at[index], index) for _, index in self._heads]
        self._heads = [(self._key(index, places[at]), index) for places, at, index in heads if at < len(places)]
        heapify(self._heads)

    def passed(self) -> None:
        self._at[self._heads[0][1]] += 1

    def blocked(self) -> None:
        heappop(self._heads)
