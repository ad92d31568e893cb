"""What would happen next if nothing new came: jobs end, and the production walk gives their room to those that wait.

Times are seconds from now. What is not looked ahead: jobs that are still to come, preemption, moves, other sizes.
"""

from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from heapq import heappop, heappush
from math import ceil, inf
from typing import Protocol

from msgspec import Struct

from weft.domain.job import Allocation
from weft.messages.eta import Basis
from weft.planning.backfill import Ending
from weft.planning.capacity import FreeCapacity
from weft.planning.eta.spread import TimeSpread
from weft.planning.finding import Place, find
from weft.planning.policy import Policy
from weft.planning.queue import Place as QueuePlace
from weft.planning.queue import Rank, Served
from weft.planning.quota.inforce import QuotasInForce
from weft.planning.resource_request import PlacementRequest, ResourceRequest, gpus_in
from weft.planning.scheduling_pass import Demand, SchedulingPass, Starts

GRAIN_S = 1e-3  # ends that are so near count as one moment
LOOKS_EXACT = 1_500  # decisions of one forward look in the real room, and how many
LOOKS_COUNTED = 10_000  # if GPUs are only counted: both bound its time
_AT_ONCE = TimeSpread((0.0,), Basis.ROOM)
SCENARIOS = 31  # the most; a prime, so that each scenario has every job in another part


class WaitingJob(Struct, frozen=True, kw_only=True):
    """A job that waits. `place`: in the order; `group`: of jobs that fit alike; `lasts`: once it has started;
    `limit_s`: what the backfill knows of that; `after_s`: it is not tried before; `tier`: the order's."""

    job_id: str
    place: QueuePlace
    group: Hashable
    resource_request: ResourceRequest
    asked: PlacementRequest
    gpus: float
    lasts: TimeSpread
    limit_s: float | None = None
    tenant: str = ""
    pinned: bool = False
    after_s: float = 0.0
    tier: float = 0.0
    preemptible: bool = True
    model: str | None = None

    @property
    def demand(self) -> Demand:
        return Demand(
            self.resource_request,
            self.gpus,
            self.limit_s,
            pinned=self.pinned,
            tenant=self.tenant,
            preemptible=self.preemptible,
            model=self.model,
        )


class Holds(Struct, frozen=True, kw_only=True):
    """The resources that a job holds, and for how long. `reports`: it reports its steps, even if they are too few to
    estimate its end."""

    job_id: str
    allocations: Place
    gpus: float
    left: TimeSpread
    tenant: str = ""
    limit_left_s: float | None = None
    reports: bool = False


class SeenStart(Struct, frozen=True):
    """When a job starts in one scenario, what the last release before that was foreseen by, and whether too few
    samples support that. `behind`: a job ahead of it does not start, for which the scheduler may keep the room."""

    after_s: float
    basis: Basis
    weak: bool = False
    behind: bool = False


class Space(Protocol):
    """Where jobs are placed: the real room (`is_exact`), or a number of GPUs."""

    free: float
    is_exact: bool

    def supposing(self) -> AbstractContextManager[None]: ...
    def find(self, waiting: WaitingJob, resource_request: ResourceRequest) -> Place | None: ...
    def take(self, place: Place) -> None: ...
    def give_back(self, place: Place, gpus: float) -> None: ...


class RealRoom:
    """The real room, in a scope of `supposing`."""

    is_exact = True

    def __init__(self, free_capacity: FreeCapacity) -> None:
        self._free_capacity = free_capacity
        self.free = free_capacity.gpus_left

    def supposing(self) -> AbstractContextManager[None]:
        self.free = self._free_capacity.gpus_left
        return self._free_capacity.supposing()

    def find(self, waiting: WaitingJob, resource_request: ResourceRequest) -> Place | None:
        return find(self._free_capacity, resource_request, waiting.asked)

    def take(self, place: Place) -> None:
        self._free_capacity.take_all(place)
        self.free -= gpus_in(place)

    def give_back(self, place: Place, gpus: float) -> None:
        del gpus
        self._free_capacity.give_back_all(place)
        self.free += gpus_in(one for one in place if self._free_capacity.is_open(one.node_id))


class CountedGpus:
    """GPUs as a number: whether they are on one node, of one model, with CPUs beside them, is left aside."""

    is_exact = False

    def __init__(self, free: float) -> None:
        self.free = self._free = free

    def supposing(self) -> AbstractContextManager[None]:
        self.free = self._free
        return nullcontext()

    def find(self, waiting: WaitingJob, resource_request: ResourceRequest) -> Place | None:
        del resource_request
        return _somewhere(ceil(waiting.gpus)) if waiting.gpus <= self.free else None

    def take(self, place: Place) -> None:
        self.free -= len(place[0].gpus)

    def give_back(self, place: Place, gpus: float) -> None:
        del place
        self.free += ceil(gpus)


@lru_cache(maxsize=1024)
def _somewhere(gpus: int) -> Place:
    return (Allocation(rank=0, role="", node_id="", gpus=tuple(range(gpus)), cpus=0.0, memory=0),)


class Forward:
    """`look` once. `gpus`: how many the pool has, of which an order by shares takes each tenant's part; `quotas`: with
    what tenants hold now."""

    def __init__(
        self,
        space: Space,
        waiting: Sequence[WaitingJob],
        held: Sequence[Holds],
        *,
        policy: Policy,
        gpus: float,
        looks: int = LOOKS_EXACT,
        quotas: QuotasInForce | None = None,
    ) -> None:
        self.space = space
        self.quotas = quotas if quotas is not None and quotas.on else None
        self.waiting = {one.job_id: one for one in waiting}
        self.demand = {one.job_id: one.demand for one in waiting}
        self.held = held
        self.policy = policy
        self.order = policy.ordering
        self.gpus = max(1.0, gpus)
        self.left = looks
        self.scenarios = 0
        self._groups: dict[Hashable, list[QueuePlace]] = {}
        for one in sorted(waiting, key=lambda one: one.place):
            self._groups.setdefault(self.group(one), []).append(one.place)

    def look(self, target: str = "") -> Mapping[str, list[SeenStart]]:
        """By job, its start in each scenario that could be looked at in full; with `target` until that job starts.
        A scenario in which a job is not seen to start adds nothing to its list. If the work does not suffice for one
        whole scenario, `scenarios` is 0, and the jobs that it saw start are in the answer."""
        found: dict[str, list[SeenStart]] = {}
        while self.scenarios < SCENARIOS:
            before = self.left
            scenario = _Scenario(self, self.scenarios, {group: list(places) for group, places in self._groups.items()})
            whole = scenario.run(target)
            if not whole and self.scenarios:
                break  # what this scenario lacks, the others have
            for job_id, start in scenario.starts.items():
                found.setdefault(job_id, []).append(start)
            self.scenarios += whole
            if not whole or self.left < before - self.left:
                break  # another one would not be looked at in full
        return found

    def group(self, one: WaitingJob) -> Hashable:
        return (one.tenant, one.group) if self.order.by_share or self.quotas is not None else one.group


class _Scenario:
    """One course of things: every job lasts as long as it does in one part of its spread."""

    def __init__(self, forward: Forward, number: int, queue: dict[Hashable, list[QueuePlace]]) -> None:
        self.starts: dict[str, SeenStart] = {}
        self._forward = forward
        self._space = forward.space
        self._quotas = None if forward.quotas is None else forward.quotas.again()
        self._number = number
        self._queue = queue
        self._releases: list[tuple[float, int, Place, float, str, TimeSpread, str]] = []
        self._held_by: dict[str, float] = {}
        self._limits: dict[str, Ending] = {}  # of what runs, as the scheduler will know it
        self._now = 0.0
        self._count = 0  # of jobs that have held something

    def run(self, target: str) -> bool:
        """Whether the work sufficed to see the target, or every job, start."""
        forward = self._forward
        for one in forward.held:
            self._hold(one.job_id, one.tenant, one.gpus, one.allocations, one.left, one.limit_left_s)
        late = sorted({one.after_s for one in forward.waiting.values() if one.after_s > 0}, reverse=True)
        lasts = _AT_ONCE
        with self._space.supposing():
            while True:
                self._scheduling_pass(lasts)
                if target in self.starts or not self._queue:
                    return True
                if forward.left <= 0:
                    return False
                upcoming = min(self._releases[0][0] if self._releases else inf, late[-1] if late else inf)
                if upcoming == inf:
                    return True
                self._now = max(self._now, upcoming)
                while late and late[-1] <= self._now:
                    late.pop()
                while self._releases and self._releases[0][0] <= self._now + GRAIN_S:
                    _, _, place, gpus, tenant, lasts, job_id = heappop(self._releases)
                    self._space.give_back(place, gpus)
                    self._held_by[tenant] -= gpus
                    if self._quotas is not None:
                        self._quotas.let_go(job_id)
                    self._limits.pop(job_id, None)

    def _hold(
        self, job_id: str, tenant: str, gpus: float, place: Place, lasts: TimeSpread, limit_s: float | None
    ) -> None:
        number, self._count = self._count, self._count + 1
        self._held_by[tenant] = self._held_by.get(tenant, 0.0) + gpus
        after = self._now + lasts.at(_part(self._number, number))
        if after < inf:
            heappush(self._releases, (after, number, place, gpus, tenant, lasts, job_id))
        if limit_s is not None:
            self._limits[job_id] = Ending(self._now + limit_s, gpus, job_id)

    def _scheduling_pass(self, by: TimeSpread) -> None:
        """One walk of the production; what starts holds its room from now on. `by`: foresaw the last release."""
        forward, space, now = self._forward, self._space, self._now
        held_by, all_gpus, quotas = self._held_by, forward.gpus, self._quotas

        passed_over = False

        def demand(job_id: str) -> Demand | None:
            nonlocal passed_over
            forward.left -= 1
            one = forward.waiting[job_id]
            if one.after_s > now:
                return None
            if quotas is not None and not quotas.may_start(job_id, forward.demand[job_id]):
                passed_over = True
                return Demand(one.resource_request, one.gpus, one.limit_s, held=True)
            return Demand(
                one.resource_request, one.gpus, one.limit_s, may_fit=one.gpus <= space.free + GRAIN_S, pinned=one.pinned
            )

        def place_for(job_id: str, _: ResourceRequest) -> Place | None:
            one = forward.waiting[job_id]
            return space.find(
                one,
                one.resource_request
                if quotas is None
                else quotas.allowed(forward.demand[job_id], one.resource_request),
            )

        def rank(job_id: str) -> Rank:
            wanted, tier = forward.demand[job_id], forward.waiting[job_id].tier
            return () if quotas is None else quotas.rank(job_id, wanted, tier)

        scheduling_pass = SchedulingPass(
            Served(
                self._queue,
                (lambda tenant: held_by.get(tenant, 0.0) / all_gpus) if forward.order.by_share else None,
                None if quotas is None else rank,
            ),
            backfill=forward.policy.backfill,
            demand=demand,
            find=place_for,
            fits_empty=lambda _: True,  # a job that never fits is not among those that wait
            filling=lambda: forward.policy.filling(now=now, free=int(space.free), endings=self._endings),
        )
        for decision in scheduling_pass:
            if isinstance(decision, Starts):
                one = forward.waiting[decision.job_id]
                space.take(decision.place)
                places = self._queue[forward.group(one)]
                del places[bisect_left(places, one.place)]
                self._hold(one.job_id, one.tenant, one.gpus, decision.place, one.lasts, one.limit_s)
                if quotas is not None and space.is_exact:
                    quotas.hold(one.job_id, one.tenant, decision.place, preemptible=one.preemptible)
                elif quotas is not None:
                    quotas.hold_somewhere(one.job_id, one.tenant, one.resource_request, preemptible=one.preemptible)
                self.starts[one.job_id] = SeenStart(now, by.basis, by.weak, bool(scheduling_pass.ahead) or passed_over)
            if forward.left <= 0:
                scheduling_pass.stop()
        for group in [group for group, places in self._queue.items() if not places]:
            del self._queue[group]

    def _endings(self) -> list[Ending]:
        return sorted(Ending(max(self._now, one.at_s), one.gpus, one.job_id) for one in self._limits.values())


def _part(scenario: int, number: int) -> float:
    """Where in its spread a job's duration lies in a scenario: over all scenarios evenly, and of two jobs apart."""
    step = 1 + (number * 7 + number // (SCENARIOS - 1)) % (SCENARIOS - 1)
    return ((scenario * step + number * 11) % SCENARIOS + 0.5) / SCENARIOS
