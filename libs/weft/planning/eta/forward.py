"""Simulates a pool without new jobs: jobs end, and the scheduler's own cycle gives their capacity to others.

Times are seconds from now. Future submissions and moves are ignored.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from heapq import heapify, heappop, heappush
from math import inf

from msgspec import Struct, structs

from weft.messages.eta import Basis
from weft.planning.capacity import FreeCapacity
from weft.planning.cycle import Cycle
from weft.planning.eta.ends import HORIZON_S
from weft.planning.eta.projected import GRAIN_S, HOLDERS_PER_LOOK, ProjectedCluster, Space
from weft.planning.eta.runs import Holds, Run, WaitingJob
from weft.planning.eta.spread import TimeSpread
from weft.planning.finding import Place
from weft.planning.growth import OFFER_COOL_DOWN_SECONDS, Growth, Joins
from weft.planning.order import Standing
from weft.planning.policy import Policy
from weft.planning.preemption import by_job
from weft.planning.preemption.minimum_run import MinimumRun
from weft.planning.queue import place_of
from weft.planning.quota.inforce import QuotasInForce
from weft.planning.reserving import PATIENCE_SECONDS
from weft.planning.scheduling_pass import Awaits, Clears, Held, InVain, Starts, Waits
from weft.planning.surplus import STARVED_SECONDS

LOOKS_EXACT = 1_500  # decisions of one look ahead in the real capacity, and decisions
LOOKS_COUNTED = 10_000  # if GPUs are only counted: both bound its time
_AT_ONCE = TimeSpread((0.0,), Basis.ROOM)
SCENARIOS = 31  # maximum; a prime, so that each scenario has every job in another part
NO_QUOTAS = QuotasInForce((), {})


class Stops(Struct, frozen=True):
    """The jobs that stop for another one from `at_s` on, and the seconds within which they have stopped."""

    jobs: tuple[str, ...]
    at_s: float
    within_s: float


class SeenStart(Struct, frozen=True):
    """The start of a job in one scenario, the basis of the last release before it, and `weak` if too few samples
    support that. `behind`: a job ahead of it does not start, and the scheduler may reserve the capacity for that
    one."""

    after_s: float
    basis: Basis
    weak: bool = False
    behind: bool = False
    stops: Stops | None = None


class What(IntEnum):
    """The kinds of events, in their order at one moment."""

    ENDS = 0
    IS_DUE = 1  # the end of a job's backoff, or the begin of its starvation
    CHANGES = 2  # its tier
    IS_PROMOTED = 3
    MAY_LEAVE = 4  # it has run for long enough to be pre-empted
    IS_GONE = 5  # it has stopped, to give way
    MAY_GROW = 6  # idle GPUs may be offered to it


class Forward:
    """One simulation; call `look` once. `gpus`: number in the pool; `quotas`: with the present holdings of tenants;
    `again(job_id)`: a running job as it would wait if it were stopped; `spares`: number for each kind of node, and the
    `empty` nodes. If GPUs are only counted, no node is a spare."""

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
        minimum_run: MinimumRun | None = None,
        again: Callable[[str], WaitingJob] | None = None,
        spares: int = 0,
        empty: FreeCapacity | None = None,
    ) -> None:
        self.policy = policy
        self.spares = spares if space.is_exact and empty is not None else 0
        self.left = looks
        self.scenarios = 0
        self.again = again
        self.cluster = ProjectedCluster(
            space,
            policy.ordering,
            waiting,
            held,
            gpus=max(1.0, gpus),
            minimum_run=minimum_run or MinimumRun(),
            quotas=quotas or NO_QUOTAS,
            empty=empty if self.spares else None,
        )
        self.events = self._events()

    def _events(self) -> list[tuple[float, What, int, str]]:
        """The events that are the same in every scenario."""
        cluster, order = self.cluster, self.policy.ordering
        events = [(after, What.CHANGES, cluster.runs[job_id].number, job_id) for after, job_id in cluster.changes]
        for job_id, one in cluster.waiting.items():
            starves_at = STARVED_SECONDS - one.standing.waited_s if cluster.lending else 0.0
            events += [(at, What.IS_DUE, -1, job_id) for at in (one.after_s, starves_at) if at > 0]
            if (after := order.promotes_after_s(one.standing)) is not None:
                events.append((after, What.IS_PROMOTED, -1, job_id))
        for run in cluster.runs.values():
            events += [(until, What.MAY_LEAVE, run.number, run.job_id) for until in free_to_leave(cluster, run)]
        for run in cluster.resizing.values():
            since = run.since_s if run.resizes.sized_s is None else run.resizes.sized_s
            events.append((max(0.0, since + OFFER_COOL_DOWN_SECONDS), What.MAY_GROW, run.number, run.job_id))
        return events

    def look(self, target: str = "") -> Mapping[str, list[SeenStart]]:
        """By job, its start in each complete scenario; with `target` each scenario ends when that job starts. A
        scenario in which a job does not start adds nothing to its list. If the allowed work does not suffice for one
        scenario, `scenarios` is 0, and the answer has the starts seen so far."""
        found: dict[str, list[SeenStart]] = {}
        while self.scenarios < SCENARIOS:
            before = self.left
            scenario = _Scenario(self, self.scenarios)
            whole = scenario.run(target)
            self.left = scenario.looks_left
            if not whole and self.scenarios:
                break  # the other scenarios have the parts that this one lacks
            for job_id, start in scenario.starts.items():
                found.setdefault(job_id, []).append(start)
            self.scenarios += whole
            if not whole or scenario.is_certain or self.left < before - self.left:
                break  # another scenario would be the same, or incomplete
        return found


def free_to_leave(cluster: ProjectedCluster, run: Run) -> set[float]:
    """Future times from which the job may be pre-empted, and may give back borrowed GPUs."""
    if run.standing is None or not cluster.space.is_exact:
        return set()
    kinds = ([False] if cluster.order.tier is not None else []) + ([True] if cluster.quotas.on else [])
    times = {run.protected_until(cluster.minimum_run, reclaimed=reclaimed) for reclaimed in kinds}
    return {at for at in times if at > cluster.now}


class _Scenario:
    """One scenario: every job lasts as long as in one part of its distribution."""

    def __init__(self, forward: Forward, number: int) -> None:
        self.starts: dict[str, SeenStart] = {}
        self._forward = forward
        self._scenario = number
        self._cluster = cluster = forward.cluster.copy()
        cluster.looks_left = forward.left
        self._cycle = Cycle(cluster, forward.policy, patience_s=PATIENCE_SECONDS, spares_wanted=forward.spares)
        self._growth = Growth(cluster)
        self._count = len(cluster.runs)  # jobs that have held resources
        self._unseen = len(cluster.waiting)
        self._ends: dict[str, float] = {}  # when a running job ends
        self._left: dict[str, float] = {}  # remaining duration of a stopped job after its restart
        self._stops: dict[str, Stops] = {}
        self._by = _AT_ONCE  # basis of the last release
        self._seen_until = self._differs_from = inf  # another scenario may differ from then on
        self._events = list(forward.events)
        for run in cluster.runs.values():
            lasts_s = run.lasts.at(_part(number, run.number))
            self._ends[run.job_id] = lasts_s
            if run.lasts.varies:
                self._differs_from = min(self._differs_from, run.lasts.seconds[0])
            if lasts_s < inf:
                self._events.append((lasts_s, What.ENDS, run.number, run.job_id))
        heapify(self._events)

    @property
    def looks_left(self) -> int:
        return self._cluster.looks_left

    @property
    def is_certain(self) -> bool:
        """True if every scenario is the same as this one, as far as it was simulated."""
        return self._seen_until < self._differs_from

    def run(self, target: str) -> bool:
        """Run the scenario. Return True if the allowed work sufficed to see the target, or every job, start."""
        cluster, due = self._cluster, True
        with cluster.space.supposing():
            while True:
                if due:
                    self._decide()
                if target in self.starts or not self._unseen:
                    self._seen_until = cluster.now + GRAIN_S
                    return True
                if cluster.looks_left <= 0:
                    return False
                if not self._events or self._events[0][0] > HORIZON_S:
                    self._seen_until = HORIZON_S + GRAIN_S
                    return True
                until, due = self._events[0][0] + GRAIN_S, False
                while self._events and self._events[0][0] <= until:
                    at, what, number, job_id = heappop(self._events)
                    cluster.now = max(cluster.now, at)
                    due |= self._happens(what, number, job_id)

    def _happens(self, what: What, number: int, job_id: str) -> bool:
        """Apply an event. Return True if a new decision is needed."""
        cluster = self._cluster
        if what is What.IS_DUE:
            return True
        if what is What.IS_PROMOTED:
            return self._promote(job_id)
        run = cluster.runs.get(job_id)
        if run is None or run.number != number:
            return False
        if what is What.CHANGES:
            if job_id not in cluster.leaving:
                self._rank(run)
            return cluster.is_awaited(job_id)
        if what is What.MAY_GROW:
            return True
        if what is What.MAY_LEAVE:
            return cluster.quotas.on or cluster.is_awaited(job_id)
        self._by = run.lasts if what is What.ENDS else self._by
        cluster.gone(run)
        if what is What.IS_GONE:
            self._wait_again(run)
        return True

    def _rank(self, run: Run) -> None:
        after = self._cluster.rank(run)
        if after is not None:
            heappush(self._events, (self._cluster.now + after, What.CHANGES, run.number, run.job_id))

    def _promote(self, job_id: str) -> bool:
        """Promote a job that has waited so long that its past runs and its size no longer count."""
        cluster = self._cluster
        if not cluster.waits(job_id):
            return False
        one, order = cluster.waiting[job_id], cluster.order
        after = order.promotes_after_s(one.standing)
        if after is None or after > cluster.now + GRAIN_S:
            return False
        self._wait(one, structs.replace(one.standing, attained_s=0.0, attained_gpu_s=0.0, promoted=True))
        return True

    def _wait_again(self, run: Run) -> None:
        """Queue a job that gave way for its next try, which repeats the lost work."""
        cluster, job_id, now = self._cluster, run.job_id, self._cluster.now
        self._left[job_id] = self._left_of(run) + run.lost_s(now)
        one = cluster.waiting.get(job_id)
        if one is None and self._forward.again is not None:
            one = self._forward.again(job_id)
        if one is None:
            return
        stopping = structs.replace(run.stopping, tries=run.stopping.tries + 1)
        standing = structs.replace(run.at(now), waited_s=-now, promoted=False, gpus=one.gpus, left_s=one.limit_s)
        self._wait(structs.replace(one, after_s=0.0, stopping=stopping), standing)

    def _wait(self, one: WaitingJob, standing: Standing) -> None:
        order = self._cluster.order
        self._cluster.wait_again(structs.replace(one, standing=standing, place=place_of(order, standing)))
        if (after := order.promotes_after_s(standing)) is not None:
            heappush(self._events, (max(after, self._cluster.now + GRAIN_S), What.IS_PROMOTED, -1, one.job_id))

    def _left_of(self, run: Run) -> float:
        if run.lasts.varies:
            self._differs_from = min(self._differs_from, self._cluster.now)
        return max(0.0, self._ends[run.job_id] - self._cluster.now)

    # decisions

    def _decide(self) -> None:
        cluster, passed_over = self._cluster, False
        for decision in self._cycle.decide(cluster.now):
            is_search = False
            match decision:
                case Awaits():
                    pass  # it is in no other job's way
                case Waits():
                    passed_over |= bool(decision.ahead)
                case InVain():
                    is_search = True
                case Starts():
                    self._start(decision, behind=passed_over)
                case Clears():
                    self._clear(decision)
                    is_search = True
                case Held():
                    passed_over = True
            if not is_search:
                cluster.looks_left -= 1
            elif cluster.quotas.on:
                cluster.looks_left -= len(cluster.runs) // HOLDERS_PER_LOOK
            if cluster.looks_left <= 0:
                self._cycle.stop()
        if cluster.resizing:
            self._grow()

    def _grow(self) -> None:
        cluster = self._cluster
        for change in self._growth.decide(closed=self._cycle.kept, ahead=self._cycle.ahead):
            cluster.looks_left -= 1
            if isinstance(change, Joins):
                run = cluster.runs[change.job_id]
                self._resize(run, cluster.grow(run, change.place, self._next_number()))
                continue
            for job_id, holders in by_job(change.selection).items():
                self._shrink(cluster.runs[job_id], tuple(each for one in holders for each in one.allocations))

    def _start(self, starts: Starts, *, behind: bool) -> None:
        cluster, now, by = self._cluster, self._cluster.now, self._by
        number = self._next_number()
        one = cluster.waiting[starts.job_id]
        run = cluster.start(one, starts.place, number)
        lasts_s = self._left.get(one.job_id)
        if lasts_s is None:
            lasts_s = one.lasts.at(_part(self._scenario, number))
            if one.lasts.varies:
                self._differs_from = min(self._differs_from, now + one.lasts.seconds[0])
        self._expect(run, lasts_s)
        stops = self._stops.pop(one.job_id, None)
        if one.job_id not in self.starts and one.job_id in self._forward.cluster.waiting:
            self.starts[one.job_id] = SeenStart(now, by.basis, by.weak, behind, stops)
            self._unseen -= 1

    def _expect(self, run: Run, lasts_s: float) -> None:
        cluster = self._cluster
        self._ends[run.job_id] = cluster.now + lasts_s
        if lasts_s < inf:
            heappush(self._events, (cluster.now + lasts_s, What.ENDS, run.number, run.job_id))
        self._rank(run)
        for until in free_to_leave(cluster, run):
            heappush(self._events, (until, What.MAY_LEAVE, run.number, run.job_id))
        if run.job_id in cluster.resizing:
            at = cluster.now + OFFER_COOL_DOWN_SECONDS
            heappush(self._events, (at, What.MAY_GROW, run.number, run.job_id))

    def _clear(self, clears: Clears) -> None:
        cluster = self._cluster
        parts = by_job(clears.selection)
        within_s = max(cluster.runs[job_id].stopping.stop_s for job_id in parts)
        self._stops[clears.job_id] = Stops(tuple(parts), cluster.now, within_s)
        for job_id, holders in parts.items():
            run = cluster.runs[job_id]
            if job_id in cluster.leaving:
                continue
            if all(one.extra for one in holders):
                self._shrink(run, tuple(each for one in holders for each in one.allocations))
                continue
            if not run.stopping.stop_s:
                cluster.gone(run)
                self._wait_again(run)
                continue
            cluster.leave(run)
            self._differs_from = min(self._differs_from, cluster.now)
            after = run.stopping.stop_s * _part(self._scenario, run.number)
            heappush(self._events, (cluster.now + after, What.IS_GONE, run.number, job_id))

    def _shrink(self, run: Run, gone: Place) -> None:
        self._resize(run, self._cluster.shrink(run, gone, self._next_number()))

    def _resize(self, before: Run, run: Run) -> None:
        """Continue a job with fewer or more ranks, at a proportional speed."""
        left_s = self._left_of(before)
        self._expect(run, left_s * before.gpus / run.gpus if run.gpus else left_s)

    def _next_number(self) -> int:
        self._count += 1
        return self._count - 1


def _part(scenario: int, number: int) -> float:
    """The position of a job's duration in its distribution in a scenario: even over all scenarios, and different for
    two jobs."""
    step = 1 + (number * 7 + number // (SCENARIOS - 1)) % (SCENARIOS - 1)
    return ((scenario * step + number * 11) % SCENARIOS + 0.5) / SCENARIOS
