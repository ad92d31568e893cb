"""From now on: the jobs that run end, those that wait start, by the walk that the scheduler takes. Pure.

What happens is less than in a real pool: no job arrives, fails, moves or takes another size, and a job that gives way
is gone at once.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from math import inf
from random import Random

from msgspec import Struct, structs

from weft.planning.capacity import Room, empty_room
from weft.planning.finding import Place, find
from weft.planning.preemption import Holder, clearing_for
from weft.planning.queue import Queue, Rank
from weft.planning.quota.ahead import QuotasAhead
from weft.planning.reserving import PATIENCE_SECONDS, nodes_to_keep
from weft.planning.scores import Scores
from weft.planning.shape import Shape, smallest
from weft.planning.walk import Starts, Walk, Wants
from weft.simulator.agenda import Agenda, What
from weft.simulator.model import Cluster, World
from weft.simulator.running import Running
from weft.simulator.truth import Truth
from weft.simulator.whatif.going import GoingJob, GoingLives
from weft.simulator.whatif.present import Present

DAY_S = 86400.0


class Fate(Struct, frozen=True, kw_only=True):
    """What becomes of a job, in seconds from now; None: not within the time that was looked at. Of a job that runs
    now, `starts_s` is None."""

    starts_s: float | None = None
    ends_s: float | None = None


class Onward:
    """One look ahead; `fates` it once. `grain`: the time between two decisions, as a part of how
    far ahead they are; 0: after each event."""

    def __init__(self, present: Present, *, until_s: float = 30 * DAY_S, grain: float = 0.0) -> None:
        self._policy = policy = present.policy
        self._order = policy.ordering
        self._until_s, self._grain = until_s, grain
        backfills = policy.backfill != "none"
        every = sorted(present.jobs, key=lambda job: (job.seq, job.id))
        self._jobs = [GoingJob(number, job, backfills=backfills) for number, job in enumerate(every)]
        self._by_id = {job.now.id: job for job in self._jobs}
        self._shares = any(want.request.share is not None for job in every for want in job.shape)
        self._room = Room(Scores(present.scores), placer=policy.placing.placer)
        for node in present.nodes:
            self._room.add(node)
        self._empty = empty_room(present.nodes)
        self._kept: tuple[str, ...] = ()  # nodes that are kept for one waiting job, in this walk
        self._unfit: dict[Shape, tuple[int, tuple[str, ...]]] = {}  # shapes that do not fit, and by when
        self._fits_empty: dict[Shape, bool] = {}
        gpus = sum(len(node.capacity.gpus) for node in present.nodes)
        self._agenda = Agenda()
        self._quotas = QuotasAhead(present.quotas, present.nodes)
        self._queue = Queue(self._order, by_tenant=self._quotas.on)
        world = World(move_s=0.0)
        self._running = Running(gpus, self._order, durations_known=False, minimum_run=world.minimum_run)
        self._lives = GoingLives(
            room=self._room,
            queue=self._queue,
            running=self._running,
            agenda=self._agenda,
            order=self._order,
            world=world,
            truth=Truth(Cluster(nodes=0, gpus_per_node=0), world, belief="oracle", dice=Random(0)),
            foreseen=backfills,
            keep_spells=False,
        )
        self.decisions = 0

    def fates(self) -> Mapping[str, Fate]:
        """What becomes of each job, by its id."""
        self._begin()
        due, next_decision = True, 0.0
        while due or self._agenda.next_at < inf:
            now = min(self._agenda.next_at, next_decision) if due else self._agenda.next_at
            if now > self._until_s:
                break
            self._running.now = now
            while self._agenda.next_at <= now:
                due |= self._happens(*self._agenda.take())
            if due and now >= next_decision:
                self._decide(now)
                due, next_decision = False, now * (1 + self._grain)
        return {job.now.id: self._fate(job) for job in self._jobs}

    def _begin(self) -> None:
        for job in self._jobs:
            if job.now.held:
                self._lives.goes_on(job, 0.0, job.now.held, since=job.now.since_s)
                self._quotas.hold(
                    job.now.id, job.now.tenant, job.now.held, since=job.now.since_s, preemptible=job.now.gives_way
                )
                job.begun = job.now.since_s
        for job in self._jobs:
            if job.now.held:
                continue
            if job.now.not_before_s > 0:
                self._agenda.add(job.now.not_before_s, What.ARRIVES, job.number)
            else:
                self._lives.wait(job, 0.0)

    def _happens(self, now: float, what: What, number: int, version: int) -> bool:
        """Take the next event in; whether a new decision is needed."""
        job = self._jobs[number]
        if what is What.ARRIVES:
            self._lives.wait(job, now)
        elif version != job.version:
            return False
        elif what is What.ENDS:
            self._lives.end(job, now)
            self._quotas.let_go(job.now.id)
        elif what is What.CHANGES:
            self._lives.rank(job, now)
        elif what is What.IS_PROMOTED:
            self._lives.promote(job, now)
        return True

    def _decide(self, now: float) -> None:
        if not len(self._queue):
            return
        self.decisions += 1
        walk = Walk(
            self._queue.served(self._running.share, lambda job_id: self._rank(self._by_id[job_id], now)),
            backfill=self._policy.backfill,
            wants=lambda job_id: self._wants(self._by_id[job_id]),
            find=lambda job_id, shape: self._place_for(self._by_id[job_id], shape, now),
            fits_empty=self._would_fit_empty,
            filling=lambda: self._policy.filling(
                now=now, free=self._room.gpus_free, endings=lambda: self._running.endings
            ),
        )
        self._kept = ()
        with ExitStack() as kept:  # nodes that are kept for a job take no others as long as the walk lasts
            for decision in walk:
                job = self._by_id[decision.job_id]
                if isinstance(decision, Starts):
                    self._room.take_all(decision.place)
                    self._queue.remove(decision.job_id)
                    self._lives.settle(job, now, decision.place)
                    self._quotas.hold(
                        job.now.id, job.now.tenant, decision.place, since=now, preemptible=job.now.gives_way
                    )
                elif decision.in_the_way and not self._kept and now - job.waits_since >= PATIENCE_SECONDS:
                    self._kept = nodes_to_keep(
                        self._room,
                        job.shape,
                        waited_s=now - job.waits_since,
                        left_on=lambda node_id: self._running.left_on(node_id, now),
                    )
                    kept.enter_context(self._room.without(self._kept))

    def _rank(self, job: GoingJob, now: float) -> Rank:
        """What quotas say of it, before the order does."""
        tier = self._order.tier
        return self._quotas.rank(
            job.now.tenant, job.now.shape, 0.0 if tier is None else float(tier(job.standing(now, known=False)))
        )

    def _wants(self, job: GoingJob) -> Wants:
        if self._quotas.on and not self._quotas.may_start(job.now.tenant, job.now.shape, preemptible=job.now.gives_way):
            return structs.replace(job.wants, held=True)
        return job.wants

    def _place_for(self, job: GoingJob, shape: Shape, now: float) -> Place | None:
        """Where it goes; others give way for it at once, where quotas or the order say so."""
        shape = self._quotas.allowed(job.now.tenant, shape, preemptible=job.now.gives_way)
        if (found := self._find(job, shape)) is not None:
            return found
        for holders in (self._borrowers(job, now), self._later_in_order(job, now)):
            clearing = (
                clearing_for(smallest(shape), room=self._room, holders=holders, asked=job.asked) if holders else None
            )
            if clearing is not None:
                for victim in clearing.victims:
                    self._lives.evict(self._by_id[victim.job_id], now)
                    self._quotas.let_go(victim.job_id)
                return self._find(job, shape)
        return None

    def _borrowers(self, job: GoingJob, now: float) -> list[Holder]:
        """The jobs that give back what they borrowed, for one that is inside a guarantee."""
        if not self._quotas.on:
            return []
        held = [
            Holder(job_id=one.now.id, worth=(float(one.now.priority), -one.settled_at), allocations=one.allocations)
            for one in self._jobs
            if one.allocations and one.now.tenant != job.now.tenant
        ]
        return self._quotas.reclaimed(job.now.tenant, job.now.shape, held, now)

    def _later_in_order(self, job: GoingJob, now: float) -> list[Holder]:
        """The jobs that the order pre-empts for this one."""
        if self._order.tier is None:
            return []
        tier = self._order.tier(job.standing(now, known=False))
        if not self._quotas.on:
            free = self._room.gpus_left if self._shares else self._room.gpus_free
            return self._running.last_in_order(tier, enough=job.wants.gpus - free) or []
        return [
            Holder(job_id=one.now.id, worth=(-one.tier, -one.number), allocations=one.allocations)
            for one in self._jobs
            if one.allocations and one.tier is not None and one.tier > tier
            if not self._quotas.protects(job.now.tenant, one.now.id)
        ]

    def _find(self, job: GoingJob, shape: Shape) -> Place | None:
        if self._unfit.get(shape) == (self._room.grown, self._kept):
            return None
        found = find(self._room, shape, job.asked)
        if not found:
            self._unfit[shape] = (self._room.grown, self._kept)
            return None
        return tuple(structs.replace(each, rank=rank) for rank, each in enumerate(found))

    def _would_fit_empty(self, shape: Shape) -> bool:
        if shape not in self._fits_empty:
            self._fits_empty[shape] = bool(find(self._empty, smallest(shape)))
        return self._fits_empty[shape]

    def _fate(self, job: GoingJob) -> Fate:
        ended = self._lives.ended.get(job.number)
        starts = None if job.now.held else job.begun
        return Fate(starts_s=starts, ends_s=None if ended is None else ended.completed_s)
