"""Decides which running jobs get further ranks, and where: first jobs below their size, then others onto idle GPUs.

The scheduler, the simulator and what-if use it, behind the scheduling cycle. No job grows while a job waits for room.
A job that resizes live, and of which nobody asked for a size, is offered GPUs that idle, up to its maximum: it gives
them back as soon as another job needs them, be it one that waits or one below its size. After each change of its size
it is left alone for a while. Nothing here changes the state of a cluster: the caller applies each decision before it
takes the next.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest
from typing import Protocol

from msgspec import Struct, structs

from weft.domain.job import Allocation, Job
from weft.domain.sizes import how_resized
from weft.domain.spec import ResizeHow
from weft.planning.borrowing import why_never_lends
from weft.planning.capacity import FreeCapacity
from weft.planning.finding import Place
from weft.planning.preemption import Holder, VictimSelection, select_victims
from weft.planning.quota.inforce import QuotasInForce
from weft.planning.resizing import COOL_DOWN_SECONDS, grow, is_cool
from weft.planning.resource_request import NOBODY, PlacementRequest, RoleRequest
from weft.planning.surplus import Lenders

LOOKED_AT_MAX = 32  # jobs in one decision
OFFER_COOL_DOWN_SECONDS = COOL_DOWN_SECONDS  # from a job's start, or its last change of size, to an offer


class RoleRange(Struct, frozen=True):
    """How many ranks of one role a job that resizes live has: never below `least`; its user wants `want`, it should
    have `aim` now, and may have `most` while GPUs idle."""

    role: str
    least: int
    want: int
    aim: int
    most: int


LiveSizes = tuple[RoleRange, ...]
"""The ranges of all roles; empty for a job that does not resize live."""


def live_sizes(job: Job) -> LiveSizes:
    """The sizes of a job that resizes live. A requested size is obeyed. A job that lends nothing gets no offers, as it
    would not give them back."""
    if job.spec.is_service or how_resized(job.spec) is not ResizeHow.LIVE:
        return ()
    offered = not job.size and not why_never_lends(job)
    return tuple(
        RoleRange(
            name,
            role.replicas.least,
            role.replicas.want,
            job.wanted[name],
            role.replicas.most if offered else job.wanted[name],
        )
        for name, role in job.spec.roles.items()
    )


def may_be_offered(since: float, now: float) -> bool:
    """`since`: when the job started, or its size changed last."""
    return is_cool(since, now, restart_s=0.0, seconds=OFFER_COOL_DOWN_SECONDS)


class Grower(Struct, frozen=True, kw_only=True):
    """A running job with too few ranks. `held`: its present ranks; `missing`: by role, the number of ranks to add or to
    offer. `whole`: it grows by all of them or not at all, because it restarts for that."""

    job_id: str
    held: Place
    missing: tuple[tuple[RoleRequest, int], ...]
    first_rank: int
    tenant: str = ""
    preemptible: bool = True
    model: str | None = None
    asked: PlacementRequest = NOBODY
    whole: bool = False


class Joins(Struct, frozen=True):
    """The job gets these ranks."""

    job_id: str
    place: Place


class GivesBack(Struct, frozen=True):
    """The job gets ranks that were offered to others, once these have left."""

    job_id: str
    selection: VictimSelection


class Cluster(Lenders, Protocol):
    """The state of a cluster, as growth reads it."""

    @property
    def free_capacity(self) -> FreeCapacity: ...
    @property
    def quotas(self) -> QuotasInForce: ...
    def growing(self) -> Iterable[tuple[int, str]]:
        """The running jobs below their size, each with its number in the order of submission."""
        ...

    def may_be_offered(self) -> Iterable[tuple[int, str]]:
        """The running jobs that may have idle GPUs now, likewise."""
        ...

    def grower(self, job_id: str, *, offered: bool) -> Grower | None:
        """One of these jobs; None if it grows later, after its present change."""
        ...

    def kept_from_growth(self) -> Sequence[Allocation]:
        """Free GPUs onto which no job grows now."""
        ...

    def growth_news(self) -> int:
        """Counts the changes of these GPUs."""
        ...

    def still_leaves(self, holder: Holder) -> bool: ...


_Key = tuple[int, int, tuple[str, ...], int, int]


class Growth:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        # By job that found too few places: the state of the capacity and of the job then, and True if it lacks any.
        self._tried: dict[str, tuple[_Key, bool]] = {}
        self._making_room: dict[str, VictimSelection] = {}
        self._last = -1  # the number of the last job in the pass

    def decide(self, *, closed: Sequence[str], ahead: str, offers: bool = True) -> Iterator[Joins | GivesBack]:
        """`closed` nodes are kept for a waiting job; while `ahead`, a job that waits for room, is not empty, none
        grows. `offers`: idle GPUs are offered, unless a job below its size lacks some."""
        if ahead:
            return
        growing = {job_id: number for number, job_id in self._cluster.growing()}
        for of_growing in (self._tried, self._making_room):
            for job_id in [one for one in of_growing if one not in growing]:
                del of_growing[job_id]
        lacking = len(growing) > LOOKED_AT_MAX
        idle: list[tuple[Holder, int]] | None = None
        for job_id in self._in_turn((number, one) for one, number in growing.items()):
            if self._gives_way_to(job_id) or (grower := self._cluster.grower(job_id, offered=False)) is None:
                lacking = True
                continue
            place, lacks = self._found(grower, closed)
            if place:
                yield Joins(job_id, place)
            elif lacks and not grower.whole:
                idle = self._idle() if idle is None else idle
                if selection := self._taken_from(idle, grower, closed):
                    self._making_room[job_id] = selection
                    yield GivesBack(job_id, selection)
                    idle = None
            lacking = lacking or lacks
        if offers and not lacking:
            for job_id in self._in_turn(self._cluster.may_be_offered()):
                grower = self._cluster.grower(job_id, offered=True)
                if grower is not None and (place := self._found(grower, closed)[0]):
                    yield Joins(job_id, place)

    def _in_turn(self, jobs: Iterable[tuple[int, str]]) -> list[str]:
        """Ids in the order of submission; if there are too many for one decision, continue after the last one."""
        found = list(jobs)
        if len(found) > LOOKED_AT_MAX:
            found = nsmallest(LOOKED_AT_MAX, found, key=lambda one: (one[0] <= self._last, *one))
            self._last = found[-1][0]
        else:
            found.sort()
        return [job_id for _, job_id in found]

    def _gives_way_to(self, job_id: str) -> bool:
        """Return True if others still leave for this job."""
        selection = self._making_room.get(job_id)
        if selection is None:
            return False
        if any(self._cluster.still_leaves(one) for one in selection.victims):
            return True
        del self._making_room[job_id]
        return False

    def _found(self, grower: Grower, closed: Sequence[str]) -> tuple[Place, bool]:
        """Places for the ranks that are missing: for all with `whole`, else for as many as fit; and whether some are
        missing then. Not looked for again before the room has grown, or other nodes are closed."""
        free_capacity, cluster = self._cluster.free_capacity, self._cluster
        missing = sum(count for _, count in grower.missing)
        key = (free_capacity.grown, cluster.growth_news(), tuple(closed), len(grower.held), missing)
        known = self._tried.get(grower.job_id)
        if known is not None and known[0] == key:
            return (), known[1]
        found: list[Allocation] = []
        allowed = 0
        with free_capacity.supposing(closed=closed):
            free_capacity.take_all(cluster.kept_from_growth())
            for want, count in grower.missing:
                more = self._allowed(grower, want, count)
                if grower.whole and more < count:
                    return (), False
                if more <= 0:
                    continue
                allowed += more
                places = grow(
                    free_capacity,
                    [*grower.held, *found],
                    want,
                    more,
                    first_rank=grower.first_rank + len(found),
                    least=more if grower.whole else 1,
                    asked=grower.asked,
                )
                free_capacity.take_all(places or ())
                found += places or ()
        lacks = len(found) < allowed
        if lacks:
            self._tried[grower.job_id] = (key, lacks)
        return () if grower.whole and lacks else tuple(found), lacks

    def _allowed(self, grower: Grower, want: RoleRequest, count: int) -> int:
        return self._cluster.quotas.most_more(
            grower.tenant, (want,), count, model=grower.model, preemptible=grower.preemptible
        )

    def _idle(self) -> list[tuple[Holder, int]]:
        """The ranks of all jobs beyond their sizes, with the priorities of the jobs. A job keeps its size: otherwise it
        would grow again, and the two jobs would alternate."""
        return [
            (one.holder, priority)
            for lender, priority in sorted(self._cluster.lenders())
            for one in self._cluster.surplus(lender)
            if one.offered
        ]

    def _taken_from(
        self, idle: Sequence[tuple[Holder, int]], grower: Grower, closed: Sequence[str]
    ) -> VictimSelection | None:
        """The idle ranks of jobs of no higher priority that leave for this job, and the number of ranks that it
        gains."""
        priority = self._cluster.takes_surplus_at(grower.job_id) if idle else None
        if priority is None:
            return None
        willing = [one for one, its_priority in idle if its_priority <= priority and one.job_id != grower.job_id]
        free_capacity = self._cluster.free_capacity
        for want, count in grower.missing if willing else ():
            more = self._allowed(grower, want, count)
            while more > 0:
                request = (structs.replace(want, least=more, count=more),)
                with free_capacity.supposing(closed=closed):
                    free_capacity.take_all(self._cluster.kept_from_growth())
                    found = select_victims(request, free_capacity=free_capacity, holders=willing, asked=grower.asked)
                if found is not None and found.victims:
                    return found
                more //= 2
        return None
