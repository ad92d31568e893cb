"""The event-driven simulator: jobs arrive, start, move, are evicted, end; nodes fail; and each time it is decided anew.

Who is served first, who displaces whom, who may overtake, where a gang goes and who moves: all of that is asked of the
scheduler's own planning. Here is only what the world does.
"""

from bisect import bisect_left, insort
from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from random import Random

from libs.domain.job import Allocation
from libs.planning.backfill import Backfill, Ending
from libs.planning.moves import JOINT_MOST, Movable, moves_for
from libs.planning.order.standing import Standing
from libs.planning.policy import ALWAYS, GAINFUL, Policy
from libs.planning.preemption import Holder, clearing_for
from libs.planning.queue import Queue, place_of
from libs.planning.room import Asked
from libs.planning.scores import GpuKey
from libs.simulator.model import Cluster, World
from libs.simulator.outcome import JobOutcome, Outcome, Spell
from libs.simulator.pool import node_id, node_number, room_of, shape_of
from libs.simulator.truth import Truth
from libs.simulator.workload import TraceJob, Workload

GRAIN_S = 1e-6
DAY_S = 86400.0
AGE_S = 1800.0  # how often it is looked how old the scores have become
NEW_S = 60.0  # how much work a job is taken to have, that only began


class _Job:
    """One job of the trace on its way."""

    __slots__ = (
        *("allocations", "asked", "attained_s", "begun", "done_s", "ending", "evictions", "held_s", "lost_s", "moves"),
        *(
            "number",
            "paused_until",
            "settled_at",
            "shape",
            "since",
            "slowdown",
            "spell_begin",
            "spell_pause",
            "tier",
            "trace",
        ),
        *("version", "waits_since"),
    )

    def __init__(self, number: int, trace: TraceJob) -> None:
        self.number = number
        self.trace = trace
        self.shape = shape_of(trace.gpus)
        self.asked = Asked(trace.job_class, trace.id)
        self.allocations: tuple[Allocation, ...] = ()
        self.slowdown = 1.0
        self.done_s = 0.0  # work
        self.held_s = 0.0  # with GPUs
        self.attained_s = 0.0  # the same, since it was promoted last
        self.since = 0.0  # up to when the two are counted
        self.paused_until = 0.0
        self.waits_since = trace.arrival_s
        self.settled_at = self.spell_begin = self.spell_pause = 0.0
        self.begun: float | None = None
        self.moves = self.evictions = self.version = 0
        self.lost_s = 0.0
        self.ending: Ending | None = None
        self.tier: int | None = None

    def advance(self, now: float) -> None:
        """Count what it did until now."""
        if self.allocations and now > self.since:
            self.attained_s += now - self.since
            self.held_s += now - self.since
            working = now - max(self.since, min(self.paused_until, now))
            self.lost_s += now - self.since - working
            self.done_s += working / self.slowdown
        self.since = now

    def ends_at(self) -> float:
        left = max(0.0, self.trace.work_s - self.done_s)
        return max(self.since, self.paused_until) + left * self.slowdown

    def left_s(self, now: float, *, known: bool) -> float:
        """How much work is left; where nobody knows, as much as it had: a job is taken to be in the middle of it."""
        estimate = self.trace.work_s if known else self.trace.estimate_s
        going = now - self.since if self.allocations else 0.0
        if estimate is None:
            return max(NEW_S, self.held_s + going)
        worked = going - max(0.0, min(self.paused_until, now) - self.since) if going else 0.0
        return max(0.0, estimate - self.done_s - worked / self.slowdown)

    def standing(self, now: float, *, known: bool) -> Standing:
        holds = bool(self.allocations)
        said = known or self.trace.estimate_s is not None
        return Standing(
            id=self.trace.id,
            seq=self.number,
            gpus=self.trace.gpus,
            priority=self.trace.priority,
            tenant=self.trace.tenant,
            attained_s=self.attained_s + (now - self.since if holds else 0.0),
            waited_s=0.0 if holds else now - self.waits_since,
            left_s=self.left_s(now, known=known) if said else None,
        )


class Engine:
    """One simulation; `run` it once."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        policy: Policy,
        world: World,
        *,
        seed: int = 1,
        scores: str = "oracle",
        progress: Callable[[int, int], None] | None = None,
        keep_spells: bool = True,
    ) -> None:
        self._workload = workload
        self._cluster = cluster
        self._policy = policy
        self._order = policy.ordering
        self._placing = policy.placing
        self._world = world
        self._progress = progress
        self._keep_spells = keep_spells
        self._dice = Random(seed)
        self._truth = Truth(cluster, world, belief=scores, dice=self._dice)
        self._room = room_of(cluster, world, placer=self._placing.placer, scores=self._truth.believed)
        self._queue = Queue(self._order)
        self._jobs = [_Job(number, trace) for number, trace in enumerate(workload.jobs)]
        self._by_id = {job.trace.id: job for job in self._jobs}
        self._running: dict[str, _Job] = {}
        self._free = cluster.gpus
        self._held: dict[str, int] = {}  # GPUs by tenant
        self._events: list[tuple[float, int, int, int]] = []  # when, what, which job, its version
        self._endings: list[Ending] = []  # as far as anybody knows, the soonest first
        self._by_tier: dict[int, dict[str, _Job]] = {}  # the running jobs
        self._held_by_tier: dict[int, int] = {}  # and their GPUs
        self._ended: dict[int, JobOutcome] = {}
        self._spells: list[Spell] = []
        self._decisions = self._placements = 0
        self._reviewed_at = self._aged_at = self._benchmarked_at = -inf
        self._sees_truth = scores == "oracle"

    # the world

    def run(self) -> Outcome:
        for job in self._jobs:
            heappush(self._events, (job.trace.arrival_s, _ARRIVES, job.number, 0))
        self._begin_troubles()
        due = False
        next_decision = 0.0
        every = self._world.decide_every_s
        while len(self._ended) < len(self._jobs):
            now = self._events[0][0] if self._events else inf
            if every and due and now > next_decision:
                now = next_decision
            assert now < inf, "jobs wait, and nothing will ever happen"
            while self._events and self._events[0][0] <= now:
                due |= self._happens(*heappop(self._events))
            if not due:
                continue
            if every and now < next_decision:
                continue
            self._decide(now)
            due = False
            if every:
                next_decision = (now // every + 1) * every
        return self._outcome()

    def _happens(self, now: float, what: int, number: int, version: int) -> bool:
        """Whether it has to be decided anew."""
        if what in _TROUBLES:
            return self._trouble(now, what, number)
        job = self._jobs[number]
        if what == _ARRIVES:
            self._wait(job, now)
            return True
        if version != job.version:
            return False
        if what == _ENDS:
            self._end(job, now)
        elif what == _CHANGES:
            self._rank(job, now)
        elif what == _IS_PROMOTED:
            job.attained_s, job.waits_since = 0.0, now
            self._wait(job, now)
        return True

    def _wait(self, job: _Job, now: float) -> None:
        """It stands in the queue, where it belongs now."""
        standing = job.standing(now, known=self._world.durations_known)
        self._queue.add(standing, self._kind(job))
        after = self._order.promotes_after_s(standing)
        if after is not None:
            heappush(self._events, (now + after, _IS_PROMOTED, job.number, job.version))

    def _kind(self, job: _Job) -> tuple[int, str]:
        return (job.trace.gpus, job.trace.job_class)

    def _settle(self, job: _Job, now: float, allocations: tuple[Allocation, ...]) -> None:
        """It holds these GPUs from now on; the room knows."""
        job.advance(now)
        fresh = job.begun is None
        if job.allocations:
            self._close_spell(job, now)
            job.moves += 1
        else:
            self._running[job.trace.id] = job
            self._free -= job.trace.gpus
            self._held[job.trace.tenant] = self._held.get(job.trace.tenant, 0) + job.trace.gpus
        if fresh:
            job.begun = now
        pause = self._world.start_s if fresh else self._world.move_s
        job.paused_until = now + pause
        job.settled_at = job.spell_begin = now
        job.spell_pause = pause
        job.allocations = allocations
        job.slowdown = self._slowdown(job)
        self._expect(job)

    def _foresee(self, job: _Job) -> None:
        """When it will give its GPUs back, as far as anybody knows."""
        if job.ending is not None:
            del self._endings[bisect_left(self._endings, job.ending)]
            job.ending = None
        left = job.standing(job.since, known=self._world.durations_known).left_s
        if job.allocations and left is not None:
            at = max(job.since, job.paused_until) + left * job.slowdown
            job.ending = Ending(at, job.trace.gpus, job.trace.id)
            insort(self._endings, job.ending)

    def _expect(self, job: _Job) -> None:
        """When it ends, or its place in the order changes."""
        job.version += 1
        if self._policy.backfill != "none":
            self._foresee(job)
        ends = job.ends_at()
        heappush(self._events, (ends, _ENDS, job.number, job.version))
        self._rank(job, job.since)

    def _rank(self, job: _Job, now: float) -> None:
        """Which running jobs it is one of, for those who may displace it; and until when."""
        if self._order.tier is None:
            return
        self._unrank(job)
        standing = job.standing(now, known=self._world.durations_known)
        job.tier = self._order.tier(standing)
        self._by_tier.setdefault(job.tier, {})[job.trace.id] = job
        self._held_by_tier[job.tier] = self._held_by_tier.get(job.tier, 0) + job.trace.gpus
        after = self._order.changes_after_s(standing)
        if after is not None:
            at = now + max(after, 0.0)
            if self._order.by_left:  # what is left gets less only as it works
                at = max(now, job.paused_until) + max(after, 0.0) * job.slowdown
            heappush(self._events, (at + GRAIN_S, _CHANGES, job.number, job.version))

    def _unrank(self, job: _Job) -> None:
        if job.tier is not None:
            del self._by_tier[job.tier][job.trace.id]
            self._held_by_tier[job.tier] -= job.trace.gpus
            job.tier = None

    def _slowdown(self, job: _Job) -> float:
        """What is true, whatever is believed."""
        nodes = {allocation.node_id for allocation in job.allocations}
        factor = 1.0
        if len(nodes) > 1:
            racks = len({self._room.nodes[node].rack for node in nodes})
            factor = self._room.locality.factor(job.trace.job_class, nodes=len(nodes), racks=racks)
        return self._truth.slowest(job.trace.job_class, _gpus(job)) * factor

    # what goes wrong

    def _begin_troubles(self) -> None:
        world = self._world
        begins = min((job.trace.arrival_s for job in self._jobs), default=0.0)
        if world.drift_s:
            heappush(self._events, (begins + world.drift_s, _DRIFTS, -1, 0))
        if self._truth.learns:
            heappush(self._events, (begins + world.sample_s, _IS_MEASURED, -1, 0))
        if world.failures_per_node_day:
            for number in range(self._cluster.nodes):
                self._expect_failure(begins, number)

    def _expect_failure(self, now: float, node: int) -> None:
        after = self._dice.expovariate(self._world.failures_per_node_day / DAY_S)
        heappush(self._events, (now + after, _FAILS, node, 0))

    def _trouble(self, now: float, what: int, node: int) -> bool:
        match what:
            case 4:  # _DRIFTS
                self._drift(now)
            case 5:  # _IS_MEASURED
                return self._measure(now)
            case 6:  # _FAILS
                self._fail(now, node)
            case _:
                self._room.reopen([node_id(node)])
                self._free += self._cluster.gpus_per_node
                self._expect_failure(now, node)
        return True

    def _drift(self, now: float) -> None:
        self._truth.drift()
        for name, scores in self._truth.known_after_drift().items():
            self._room.rescore(name, scores)
        for job in self._running.values():
            if (slowdown := self._slowdown(job)) != job.slowdown:
                job.advance(now)
                self._close_spell(job, now)
                job.spell_pause = max(0.0, job.paused_until - now)
                job.spell_begin, job.slowdown = now, slowdown
                self._expect(job)
        heappush(self._events, (now + self._world.drift_s, _DRIFTS, -1, 0))

    def _measure(self, now: float) -> bool:
        changed: dict[str, dict[GpuKey, float]] = {}
        for job in self._running.values():
            if job.paused_until < now:
                found = self._truth.sample(job.trace.job_class, _gpus(job), now)
                if found:
                    changed.setdefault(self._room.scores.known(job.trace.job_class), {}).update(found)
        if now >= self._benchmarked_at + self._world.benchmark_s:
            self._benchmarked_at = now
            idle = [(node.node.id, gpu) for node in self._room.open_nodes for gpu in node.free]
            for name in self._room.scores.classes:
                changed.setdefault(name, {}).update(self._truth.sample(name, idle, now))
        for name, scores in changed.items():
            self._room.rescore(name, scores)
        if now >= self._aged_at + AGE_S:
            self._aged_at = now
            for name, scores in self._truth.aged(now).items():
                self._room.rescore(name, scores)
        heappush(self._events, (now + self._world.sample_s, _IS_MEASURED, -1, 0))
        return bool(changed)

    def _fail(self, now: float, node: int) -> None:
        name = node_id(node)
        hit = [job for job in self._running.values() if any(a.node_id == name for a in job.allocations)]
        for job in hit:
            job.advance(now)
            kept = job.done_s - job.done_s % self._world.checkpoint_s
            job.lost_s += (job.done_s - kept) * job.slowdown
            job.done_s = kept
            self._evict(job, now)
        self._room.close([name])
        self._free -= self._cluster.gpus_per_node
        heappush(self._events, (now + self._world.repair_s, _IS_REPAIRED, node, 0))

    def _leave(self, job: _Job, now: float) -> None:
        """It gives its GPUs back."""
        job.advance(now)
        self._close_spell(job, now)
        for allocation in job.allocations:
            self._room.give_back(allocation)
        job.allocations = ()
        job.version += 1
        self._unrank(job)
        if job.ending is not None:
            self._foresee(job)
        del self._running[job.trace.id]
        self._free += job.trace.gpus
        self._held[job.trace.tenant] -= job.trace.gpus

    def _evict(self, job: _Job, now: float) -> None:
        self._leave(job, now)
        job.evictions += 1
        job.waits_since = now
        self._wait(job, now)

    def _end(self, job: _Job, now: float) -> None:
        self._leave(job, now)
        trace = job.trace
        assert job.begun is not None
        self._ended[job.number] = JobOutcome(
            id=trace.id,
            job_class=trace.job_class,
            tenant=trace.tenant,
            gpus=trace.gpus,
            arrival_s=trace.arrival_s,
            started_s=job.begun,
            completed_s=now,
            work_s=trace.work_s,
            moves=job.moves,
            evictions=job.evictions,
            lost_s=job.lost_s,
        )
        if self._progress is not None:
            self._progress(len(self._ended), len(self._jobs))

    def _close_spell(self, job: _Job, now: float) -> None:
        if self._keep_spells and now > job.spell_begin:
            gpus = tuple((node_number(a.node_id), gpu) for a in job.allocations for gpu in a.gpus)
            paused = min(job.spell_pause, now - job.spell_begin)
            self._spells.append(Spell(job.number, job.spell_begin, now, gpus, job.slowdown, paused))

    # what is decided

    def _decide(self, now: float) -> None:
        self._decisions += 1
        if len(self._queue):
            self._start_waiting(now)
        if self._placing.moves == ALWAYS:
            self._place_all_anew(now)
        elif self._placing.moves == GAINFUL:
            self._move_for_gain(now)

    def _start_waiting(self, now: float) -> None:
        walk = self._queue.served(self._share)
        backfill: Backfill | None = None  # begins with the first that does not fit, and knows of all who run then
        while (job_id := walk.next()) is not None:
            job = self._by_id[job_id]
            lasts = self._lasts(job)
            found = None
            fits = job.trace.gpus <= self._free or self._order.tier is not None
            in_the_way = fits and backfill is not None and not backfill.may_start(job.trace.gpus, lasts)
            if fits and not in_the_way:
                found = self._place_for(job, now)
            if found is not None:
                for allocation in found:
                    self._room.take(allocation)
                self._queue.remove(job_id)
                walk.taken()
                self._placements += 1
                self._settle(job, now, found)
                if backfill is not None:
                    backfill.started(job.trace.gpus, lasts)
                continue
            shorter_may = in_the_way and lasts is not None and not self._order.by_left  # there, those come first
            if shorter_may or self._policy.backfill == "conservative":  # in which each has a reservation of its own
                walk.passed()
            else:
                walk.blocked()
            backfill = backfill or self._policy.filling(now=now, free=self._free, endings=lambda: self._endings)
            if not backfill.blocked(job.trace.gpus, lasts):
                return

    def _place_for(self, job: _Job, now: float) -> tuple[Allocation, ...] | None:
        """Where it goes, at once or once others gave way."""
        if job.trace.gpus <= self._free:
            found = self._room.find(job.shape, job.asked)
            if found is not None:
                return found
        if self._order.tier is None:
            return None
        tier = self._order.tier(job.standing(now, known=self._world.durations_known))
        holders = self._last_in_order(tier, enough=job.trace.gpus - self._free)
        if holders is None:
            return None
        clearing = clearing_for(job.shape, room=self._room, holders=holders, asked=job.asked)
        if clearing is None:
            return None
        for victim in clearing.victims:
            self._evict(self._by_id[victim.job_id], now)
        found = self._room.find(job.shape, job.asked)
        assert found is not None, "room was made for it"
        return found

    def _last_in_order(self, tier: int, *, enough: int) -> list[Holder] | None:
        """Running jobs of higher tiers, those who are served last first, with `enough` GPUs; None: they have not."""
        higher = sorted((one for one in self._by_tier if one > tier), reverse=True)
        if sum(self._held_by_tier[one] for one in higher) < enough:
            return None
        holders: list[Holder] = []
        for one in higher:
            for job in sorted(self._by_tier[one].values(), key=lambda job: -job.number):
                holders.append(Holder(job_id=job.trace.id, worth=(-one, -job.number), allocations=job.allocations))
                enough -= job.trace.gpus
                if enough <= 0:
                    return holders
        return holders

    def _lasts(self, job: _Job) -> float | None:
        estimate = job.trace.work_s if self._world.durations_known else job.trace.estimate_s
        if estimate is None:
            return None
        nodes = 1 if job.trace.gpus <= self._cluster.gpus_per_node else 2
        return max(0.0, estimate - job.done_s) * self._room.locality.factor(job.trace.job_class, nodes=nodes)

    def _share(self, tenant: str) -> float:
        return self._held.get(tenant, 0) / self._cluster.gpus

    def _place_all_anew(self, now: float) -> None:
        """As the PAL artifact does in every round: all give back what they have, and are placed one after the other."""
        jobs = list(self._running.values())
        if self._placing.by_class:
            jobs.sort(key=lambda job: (self._room.scores.sensitivity(job.trace.job_class), job.number))
        else:
            jobs.sort(key=lambda job: job.number)
        for job in jobs:
            for allocation in job.allocations:
                self._room.give_back(allocation)
        for job in jobs:
            found = self._room.find(job.shape, job.asked)
            assert found is not None, "all of them fitted"
            for allocation in found:
                self._room.take(allocation)
            if found != job.allocations:
                self._resettle(job, now, found)

    def _resettle(self, job: _Job, now: float, allocations: tuple[Allocation, ...]) -> None:
        """It moves; the room knows. One that had not begun there loses nothing by it."""
        begins_now = job.settled_at == now
        self._placements += 1
        if not begins_now:
            self._settle(job, now, allocations)
            return
        job.allocations = allocations
        job.slowdown = self._slowdown(job)
        self._expect(job)

    def _move_for_gain(self, now: float) -> None:
        few = len(self._running) <= JOINT_MOST
        if not few and now < self._reviewed_at + self._world.review_s:
            return
        self._reviewed_at = now
        known = self._world.durations_known
        jobs = list(self._running.values())
        if few:
            jobs.sort(key=lambda job: place_of(self._order, job.standing(now, known=known)))
        movable = [
            Movable(
                job_id=job.trace.id,
                shape=job.shape,
                asked=job.asked,
                allocations=job.allocations,
                gpus=job.trace.gpus,
                left_s=job.left_s(now, known=known),
                cost_s=0.0 if job.settled_at == now else self._world.move_s,
                slowdown=job.slowdown if self._sees_truth else None,
            )
            for job in jobs
        ]
        moves = moves_for(self._room, movable)
        for move in moves:
            for allocation in self._by_id[move.job_id].allocations:
                self._room.give_back(allocation)
        for move in moves:
            for allocation in move.allocations:
                self._room.take(allocation)
        for move in moves:
            self._resettle(self._by_id[move.job_id], now, move.allocations)

    def _outcome(self) -> Outcome:
        world = self._world
        return Outcome(
            workload=self._workload.name,
            policy=str(self._policy),
            nodes=self._cluster.nodes,
            gpus_per_node=self._cluster.gpus_per_node,
            jobs=tuple(self._ended[number] for number in range(len(self._jobs))),
            spells=tuple(sorted(self._spells, key=lambda spell: (spell.begin_s, spell.job))),
            settings={"penalty": f"{world.penalty:g}", "move_s": f"{world.move_s:g}"},
            notes=self._workload.notes,
            decisions=self._decisions,
            placements=self._placements,
        )


def _gpus(job: _Job) -> list[GpuKey]:
    return [(allocation.node_id, gpu) for allocation in job.allocations for gpu in allocation.gpus]


# Of what happens at one moment, ends come first.
_ENDS, _ARRIVES, _CHANGES, _IS_PROMOTED, _DRIFTS, _IS_MEASURED, _FAILS, _IS_REPAIRED = range(8)
_TROUBLES = (_DRIFTS, _IS_MEASURED, _FAILS, _IS_REPAIRED)
