"""One scheduling cycle: from the state of a cluster, the time and a budget to decisions.

It decides who starts and where, who gives way to whom, and which nodes are kept for a job that has waited long. The
scheduler, its replay, the simulator, what-if and the estimates all use it. It changes no state of a cluster: it yields
each decision, and the caller applies it to its cluster before it takes the next. A job that gives way may be gone at
once, so that the job that it makes room for starts in the same cycle, or leave later: until then its place is promised
to that job.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from math import inf
from typing import Protocol

from msgspec import structs

from weft.domain.job import Allocation
from weft.health.spares import SpareUse
from weft.planning.awaiting import Awaiting
from weft.planning.backfill import Ending
from weft.planning.capacity import FreeCapacity
from weft.planning.finding import Place, find
from weft.planning.policy import Policy
from weft.planning.preemption import LEAVES_FIRST, Holder, VictimSelection, enough, select_victims
from weft.planning.queue import Rank, Served, ServedAt
from weft.planning.quota.inforce import QuotasInForce
from weft.planning.quota.ranks import is_inside
from weft.planning.reserving import nodes_to_keep
from weft.planning.resource_request import PlacementRequest, ResourceRequest, smallest
from weft.planning.scheduling_pass import Awaits, Clears, Demand, Held, InVain, SchedulingPass, Starts, Waits
from weft.planning.surplus import Surplus, surplus_for
from weft.planning.tiers import has_lasted

LOOK_AGAIN_SECONDS = 1.0  # between two searches for victims of the same job, in a cluster where these take time to stop
CACHED_LEAST = 256  # shapes with a cached answer, besides some for each waiting job
RECLAIMS_MAX = 32  # waiting jobs inside a guarantee for which room is looked for in one cycle, besides the first
PROMISES_MAX = 16  # jobs ahead for which room is being made that are minded when more is made

Nodes = tuple[str, ...]
Decision = Starts | Held | Clears | InVain | Waits | Awaits


class Cluster(Protocol):
    """The state of a cluster, as a cycle reads it."""

    @property
    def free_capacity(self) -> FreeCapacity: ...
    @property
    def quotas(self) -> QuotasInForce: ...
    @property
    def gpus_free(self) -> int:
        """The number of GPUs that are wholly free."""
        ...

    @property
    def gpus_left(self) -> float:
        """The same, including the free parts of shared GPUs."""
        ...

    # jobs that wait

    def served(self, rank_of: Callable[[str], Rank] | None) -> Served:
        """The waiting jobs in order."""
        ...

    def keys(self, rank_of: Callable[[str], Rank] | None) -> Callable[[str], ServedAt]:
        """The keys of that order."""
        ...

    def waits(self, job_id: str) -> bool: ...
    def how_many_wait(self) -> int: ...
    def demand(self, job_id: str) -> Demand | None:
        """None: it is not to be placed now, and blocks no other."""
        ...

    def tier(self, job_id: str) -> float:
        """The tier of a waiting job in the order; 0.0 where nobody is pre-empted."""
        ...

    def waited_s(self, job_id: str) -> float: ...
    def asked(self, job_id: str) -> PlacementRequest: ...
    def find(self, job_id: str, resource_request: ResourceRequest) -> Place | None: ...
    def fits_empty(self, resource_request: ResourceRequest, *, without: Nodes = ()) -> bool: ...
    def spare_nodes(self, spares: int) -> Nodes:
        """The nodes kept as spares, `spares` of each kind at most (`weft.health.spares`)."""
        ...

    # jobs that run

    def endings(self) -> Sequence[Ending]: ...
    def held(self, job_id: str) -> Sequence[Allocation]:
        """The allocations of a running job."""
        ...

    def may_leave(self, job_id: str, demand: Demand, *, fresh: bool) -> Sequence[Holder]:
        """Holders that are about to be free, and those that the order pre-empts for a waiting job. `fresh`: those, too,
        that have not run for long enough."""
        ...

    def may_be_reclaimed(self, job_id: str) -> Sequence[Holder]:
        """The parts of a running job that may be taken back from it, by their `worth` among such jobs."""
        ...

    def takes_surplus_at(self, job_id: str) -> int | None:
        """The priority of a waiting job; None: it takes no surplus."""
        ...

    def lenders(self) -> Sequence[tuple[str, int]]:
        """The running jobs that may have ranks to spare, by id, each with its priority."""
        ...

    def surplus(self, job_id: str) -> Iterable[Surplus]:
        """The ranks that a running job can do without."""
        ...

    def guests(self, nodes: Nodes) -> Sequence[Holder]:
        """The jobs that use spares meanwhile."""
        ...

    def still_leaves(self, holder: Holder) -> bool:
        """True while this has not left yet, since it gives way."""
        ...

    def left_on(self, node_id: str) -> float:
        """For how many seconds the jobs on a node are expected to run on."""
        ...


class Cycle:
    """`reserved`: nodes that were kept in the last cycle, first of all for `reserved_for`; `ahead`: the job that held
    others back in it; `over`: nobody behind that job was looked at. `making_room`: by waiting job, what gives way to
    it. `spares`: the nodes that were kept for gangs whose hardware failed.

    `patience_s`: a job that waited this long may be kept nodes. `look_again_s`: the time between two searches for what
    could give way to the same job. `spares_wanted`: the number of spares of each kind of node.
    """

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        *,
        patience_s: float,
        look_again_s: float = 0.0,
        spares_wanted: int = 0,
    ) -> None:
        self.reserved: Nodes = ()
        self.spares: Nodes = ()
        self._cleared: Nodes = ()  # for gangs whose hardware failed: also jobs ahead of them stay away
        self.reserved_for = ""
        self.ahead = ""
        self.over = False
        self.making_room: dict[str, VictimSelection] = {}
        self._cluster = cluster
        self._policy = policy
        self._patience_s = patience_s
        self._look_again_s = look_again_s
        self._spares_wanted = spares_wanted
        self._looked_at: dict[str, float] = {}
        # By shape that did not fit: the growth count of the room, and the reserved nodes.
        self._unfit: dict[ResourceRequest, tuple[int, Nodes]] = {}
        self._now = 0.0
        self._scheduling_pass: SchedulingPass | None = None
        self._wanted: Demand | None = None  # by the job that is looked at
        self._wanted_id = ""

    def __getstate__(self) -> dict[str, object]:
        """The state between two cycles."""
        return {**self.__dict__, "_scheduling_pass": None, "_wanted": None, "_wanted_id": ""}

    def forget(self) -> None:
        """Forget what concerns jobs that wait no more, and shapes when there are too many: users may submit any number
        of them."""
        for of_waiting in (self.making_room, self._looked_at):
            for job_id in [job_id for job_id in of_waiting if not self._cluster.waits(job_id)]:
                del of_waiting[job_id]
                self._cluster.quotas.unclaim(job_id)
        if len(self._unfit) > CACHED_LEAST + 4 * self._cluster.how_many_wait():
            self._unfit.clear()

    def decide(self, now: float) -> Iterator[Decision]:
        self._now = now
        self.forget()
        self.reserved, self.reserved_for = (), ""
        cluster = self._cluster
        self.spares = cluster.spare_nodes(self._spares_wanted) if self._spares_wanted else ()
        self._cleared = self._cleared_for_restarts() if self._spares_wanted else ()
        rank_of = self._rank if cluster.quotas.on else None
        scheduling_pass = self._scheduling_pass = SchedulingPass(
            cluster.served(rank_of),
            backfill=self._policy.backfill,
            demand=self._demand,
            find=self._find,
            fits_empty=self._blocks_others,
            filling=lambda: self._policy.filling(now=now, free=cluster.gpus_free, endings=cluster.endings),
            clear=self._clear,
            awaits=Awaiting(cluster, now, closed_to=self.closed_to).awaits,
        )
        with ExitStack() as closed:  # reserved nodes take no jobs as long as the walk lasts
            for decision in scheduling_pass:
                yield decision
                if isinstance(decision, Starts):
                    self.making_room.pop(decision.job_id, None)
                elif isinstance(decision, Waits) and decision.in_the_way:
                    self._keep_nodes(decision.job_id, closed)
        self.ahead, self.over = scheduling_pass.ahead, scheduling_pass.over
        if cluster.quotas.on and not scheduling_pass.stopped:
            yield from self._reclaim()

    def stop(self) -> None:
        """End the cycle after the decision yielded last."""
        assert self._scheduling_pass is not None
        self._scheduling_pass.stop()

    # places

    def _rank(self, job_id: str) -> Rank:
        """The job's rank by quotas, which is compared before its place in the order."""
        demand = self._cluster.demand(job_id)
        return () if demand is None else self._cluster.quotas.rank(job_id, demand, self._cluster.tier(job_id))

    def _demand(self, job_id: str) -> Demand | None:
        demand, quotas = self._cluster.demand(job_id), self._cluster.quotas
        if demand is not None and quotas.on and not quotas.may_start(job_id, demand):
            demand = structs.replace(demand, held=True)
        self._wanted, self._wanted_id = demand, job_id
        return demand

    def _find(self, job_id: str, resource_request: ResourceRequest) -> Place | None:
        """Find a place; a shape that did not fit is not tried again until the room has grown."""
        cluster, free_capacity = self._cluster, self._cluster.free_capacity
        if self._unfit.get(resource_request) == (free_capacity.grown, self.reserved):
            return None
        quotas, demand, closed = cluster.quotas, self._wanted, list[str]()
        if quotas.on and demand is not None:
            resource_request = quotas.allowed(demand, resource_request)
        if demand is not None:
            closed = self.closed_to(job_id, demand)
        if closed:
            with free_capacity.without(closed):
                return cluster.find(job_id, resource_request)
        found = cluster.find(job_id, resource_request)
        if not found:
            self._unfit[resource_request] = (free_capacity.grown, self.reserved)
        return found

    def closed_to(self, job_id: str, demand: Demand) -> list[str]:
        """The nodes on which a waiting job may not start: by its quota, or since they are spares."""
        return [*self._cluster.quotas.closed_to(job_id, demand), *self.kept_from(demand)]

    def kept_from(self, demand: Demand) -> Nodes:
        """The nodes on which a waiting job may not start since they are spares, or since they are being cleared for a
        gang whose hardware failed."""
        if not self._spares_wanted or demand.spare_use is SpareUse.RESTARTS:
            return ()
        if demand.spare_use is SpareUse.MEANWHILE:
            return self._cleared
        kept = tuple(sorted({*self.spares, *self._cleared}))
        fits = self._cluster.fits_empty(demand.resource_request, without=kept)
        return kept if fits else ()  # else it would wait for ever

    def _blocks_others(self, resource_request: ResourceRequest) -> bool:
        """Return True if the job that is looked at blocks others while it does not fit. A job that could start on nodes
        that are being cleared for a gang blocks nobody: the gang may be behind it, and would wait for ever."""
        cluster, demand, job_id = self._cluster, self._wanted, self._wanted_id
        if self._cleared and demand is not None and demand.spare_use is not SpareUse.RESTARTS:
            with cluster.free_capacity.without(cluster.quotas.closed_to(job_id, demand)):
                if cluster.find(job_id, smallest(resource_request)):
                    return False
        return cluster.fits_empty(resource_request)

    def _cleared_for_restarts(self) -> Nodes:
        demands = [(self._cluster.demand(one), its) for one, its in self.making_room.items()]
        restarts = [its for one, its in demands if one is not None and one.spare_use is SpareUse.RESTARTS]
        return tuple(sorted({node_id for its in restarts for node_id in its.nodes}))

    # victims

    def _clear(self, job_id: str, demand: Demand) -> Clears | InVain | None:
        """The jobs that give way to one that does not fit. While they leave, no others are looked for."""
        if self.leaving_for(job_id) or self._now < self._looked_at.get(job_id, -inf) + self._look_again_s:
            return None
        self._forget_clearing(job_id)
        if self._look_again_s:
            self._looked_at[job_id] = self._now
        found = self.would_clear(job_id, demand)
        if found is None or not found.selection.victims:
            return InVain(job_id)
        self.making_room[job_id] = found.selection
        revoked = self._revoke(job_id, found.selection)
        self._cluster.quotas.claim(job_id, demand, self._now)
        return structs.replace(found, revoked=revoked) if revoked else found

    def would_clear(self, job_id: str, demand: Demand, *, fresh: bool = False) -> Clears | None:
        """The jobs that would give way to a waiting one. `fresh`: if the order could pre-empt all at any time."""
        cluster, quotas = self._cluster, self._cluster.quotas
        willing, reclaimed = cluster.may_leave(job_id, demand, fresh=fresh), frozenset[str]()
        if surplus := surplus_for(cluster, job_id, others_than=willing):
            willing = [*willing, *surplus]
        guests = frozenset[str]()
        if demand.spare_use is SpareUse.RESTARTS and self.spares:
            known = {one.job_id for one in willing}
            more = [one for one in cluster.guests(self.spares) if one.job_id not in known]
            willing, guests = [*willing, *more], frozenset(one.job_id for one in more)
        if quotas.on and fresh:
            willing = [one for one in willing if not quotas.protects(demand.tenant, one)]
        elif quotas.on:
            willing, reclaimed = self._with_reclaimed(job_id, demand, willing)
        if not willing or not enough(demand.resource_request, willing, free=cluster.gpus_left):
            return None
        free_capacity = cluster.free_capacity
        with free_capacity.without(self.closed_to(job_id, demand)), free_capacity.supposing():
            promised = self._keep_promises(job_id)
            selection = select_victims(
                smallest(demand.resource_request),
                free_capacity=free_capacity,
                holders=[one for one in willing if one.job_id not in promised],
                asked=cluster.asked(job_id),
            )
        return None if selection is None else Clears(job_id, selection, reclaimed, guests=guests)

    def _with_reclaimed(
        self, job_id: str, demand: Demand, willing: Sequence[Holder]
    ) -> tuple[Sequence[Holder], frozenset[str]]:
        """`willing` without what other tenants own, with what they borrowed of the job's guarantee; and the jobs that
        hold it."""
        quotas = self._cluster.quotas
        leaving = [one.job_id for one in willing if one.worth == LEAVES_FIRST and not one.extra]
        mine = [one for one in quotas.reclaimable(job_id, demand, self._now) if one not in leaving]
        parts = [
            each
            for one in mine
            for each in self._cluster.may_be_reclaimed(one)
            if not quotas.protects(demand.tenant, each)
        ]
        others = [
            one
            for one in willing
            if one.worth == LEAVES_FIRST or (one.job_id not in mine and not quotas.protects(demand.tenant, one))
        ]
        return [*others, *quotas.in_turn(demand.tenant, parts, leaving=leaving)], frozenset(mine)

    def _keep_promises(self, job_id: str) -> set[str]:
        """Give the jobs that come before this one in the order, and for which others leave already, their places in the
        room, so that nothing is promised twice. Returns the jobs that leave for them. Those that leave for later
        jobs count as free soon."""
        promised = set[str]()
        others = [one for one in self.making_room if one != job_id and self._cluster.waits(one)]
        if not others:
            return promised
        key_of = self._cluster.keys(self._rank if self._cluster.quotas.on else None)
        own, free_capacity = key_of(job_id), self._cluster.free_capacity
        for _, other in sorted((key, one) for one in others if (key := key_of(one)) < own)[:PROMISES_MAX]:
            leaving = {victim.job_id for victim in self.leaving_for(other)} - promised
            promised |= leaving
            for victim in self.making_room[other].victims if leaving else ():
                if victim.job_id in leaving:
                    free_capacity.give_back_all(victim.allocations)
            if leaving and (demand := self._cluster.demand(other)) is not None:
                free_capacity.take_all(
                    find(free_capacity, smallest(demand.resource_request), self._cluster.asked(other)) or ()
                )
        return promised

    def _revoke(self, job_id: str, selection: VictimSelection) -> tuple[str, ...]:
        """End the promises to other jobs that count on the same victims: these jobs look for room again."""
        victims = {victim.job_id for victim in selection.victims}
        revoked = tuple(
            other
            for other, its in self.making_room.items()
            if other != job_id and not victims.isdisjoint(victim.job_id for victim in its.victims)
        )
        for other in revoked:
            self._forget_clearing(other)
        return revoked

    def _forget_clearing(self, job_id: str) -> None:
        if self.making_room.pop(job_id, None) is not None:
            self._cluster.quotas.unclaim(job_id)

    def leaving_for(self, job_id: str) -> list[Holder]:
        """Victims of this job that have not left yet."""
        selection = self.making_room.get(job_id)
        return [one for one in selection.victims if self._cluster.still_leaves(one)] if selection else []

    def _reclaim(self) -> Iterator[Clears | Starts]:
        """Make room for the jobs inside a guarantee that still wait, however many the walk looked at: a lender gets all
        back at once."""
        cluster, quotas = self._cluster, self._cluster.quotas
        served = cluster.served(self._rank)
        for _ in range(RECLAIMS_MAX):
            job_id = served.next()
            if job_id is None or not is_inside(self._rank(job_id)):
                break
            demand = self._wanted = cluster.demand(job_id)
            cleared = self._clear(job_id, demand) if demand is not None and quotas.may_start(job_id, demand) else None
            if isinstance(cleared, Clears):
                yield cleared
            if (
                demand is not None
                and isinstance(cleared, Clears)
                and (place := self._find(job_id, demand.resource_request))
            ):
                yield Starts(job_id, place)
                self.making_room.pop(job_id, None)
                served.taken()
            elif self.leaving_for(job_id):
                served.passed()
            else:
                served.blocked()

    # nodes that are kept

    def _keep_nodes(self, job_id: str, closed: ExitStack) -> None:
        """Keep nodes for a waiting job: those that are being cleared for it or, for the first that has earned them, the
        emptiest."""
        claimed = set(self._claim(job_id)).difference(self.reserved)
        if claimed:
            self.reserved_for = self.reserved_for or job_id
            self.reserved = tuple(sorted({*self.reserved, *claimed}))
            closed.enter_context(self._cluster.free_capacity.without(sorted(claimed)))

    def _claim(self, job_id: str) -> Nodes:
        if self.leaving_for(job_id):
            return self.making_room[job_id].nodes
        if self.reserved or not has_lasted(waited := self._cluster.waited_s(job_id), self._patience_s):
            return ()
        demand = self._cluster.demand(job_id)
        assert demand is not None, "it was looked at"
        return nodes_to_keep(
            self._cluster.free_capacity, demand.resource_request, waited_s=waited, left_on=self._cluster.left_on
        )

    @property
    def kept(self) -> Nodes:
        """The nodes that were kept in the last cycle: for a job that has waited long, or as spares."""
        return tuple(sorted({*self.reserved, *self.spares})) if self.spares else self.reserved

    @property
    def being_cleared(self) -> Nodes:
        """The nodes from which jobs are leaving for waiting jobs."""
        waits = self._cluster.waits
        cleared = [its.nodes for one, its in self.making_room.items() if waits(one) and self.leaving_for(one)]
        return tuple(sorted({node_id for nodes in cleared for node_id in nodes}))
