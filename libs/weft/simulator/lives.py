"""The life of a job: it waits, holds GPUs, grows, shrinks, moves, is evicted, ends; each time its next event is
foreseen again."""

from collections.abc import Collection, Sequence
from math import ceil, inf

from msgspec import structs

from weft.domain.job import Allocation, Loan
from weft.planning.borrowing import unpaid
from weft.planning.capacity import NO_SPEEDS, FreeCapacity
from weft.planning.growth import OFFER_COOL_DOWN_SECONDS
from weft.planning.jobs import promoted
from weft.planning.lending.freed_holds import FIRST_SECONDS, FreedHolds
from weft.planning.order import Order
from weft.planning.queue import Queue
from weft.planning.quota.inforce import QuotasInForce
from weft.planning.surplus import STARVED_SECONDS, with_extras
from weft.planning.tiers import changes_at
from weft.simulator.event_queue import EventQueue, What
from weft.simulator.job import SimulatedJob
from weft.simulator.model import World
from weft.simulator.outcome import JobOutcome, Spell
from weft.simulator.pool import gpus_in
from weft.simulator.running import Running
from weft.simulator.truth import Truth


class Lives:
    """Keeps room, queue, running jobs and event queue in agreement about each job."""

    def __init__(
        self,
        *,
        free_capacity: FreeCapacity,
        queue: Queue,
        running: Running,
        event_queue: EventQueue,
        order: Order,
        world: World,
        truth: Truth,
        foreseen: bool,
        keep_spells: bool,
        quotas: QuotasInForce,
        some_live: bool = False,
    ) -> None:
        self.quotas = quotas
        self._some_live = some_live  # true if there are jobs that resize live
        self.free_capacity, self.queue, self.running = free_capacity, queue, running
        self.ended: dict[int, JobOutcome] = {}
        self.spells: list[Spell] = []
        self.kept: dict[str, tuple[Allocation, ...]] = {}  # by job that moves, or by GPU that is lent, what is kept
        self.freed_holds = FreedHolds()
        self._by_id: dict[str, SimulatedJob] = {}  # the jobs that waited or ran, and are not over
        self._event_queue = event_queue
        self._order = order
        self._world = world
        self._truth = truth
        self._foreseen = foreseen  # true if some decision asks when jobs end
        self._keep_spells = keep_spells

    def wait(self, job: SimulatedJob, now: float) -> None:
        """Put the job into the queue, at its present place in the order."""
        self._by_id[job.trace.id] = job
        standing = job.standing(now, known=self._world.durations_known)
        if self._world.spares and job.hardware_failed and job.gpus_needed > self.free_capacity.largest:
            standing = promoted(standing)
        self.queue.add(standing, job.group(self._order, backfills=self._foreseen))
        after = self._order.promotes_after_s(standing)
        if after is not None:
            self._event_queue.add(now + after, What.IS_PROMOTED, job.number, job.version)
        if self._some_live and (starves_at := job.waits_since + STARVED_SECONDS) > now:
            self._event_queue.add(starves_at, What.MAY_LEAVE, job.number, job.version)

    @property
    def stop_s(self) -> float:
        """How long a job takes to stop."""
        return self._world.stop_s or 0.0

    def promote(self, job: SimulatedJob, now: float) -> None:
        """The job waited so long that its attained time and its size are forgotten."""
        job.forget_attained()
        job.promoted = True
        self.wait(job, now)

    def settle(self, job: SimulatedJob, now: float, allocations: tuple[Allocation, ...]) -> None:
        """The job holds these GPUs from now on; the room has them already."""
        job.advance(now)
        fresh = job.begun is None
        allocations = _marked(job, allocations)
        if job.allocations:
            self._close_spell(job, now)
            job.lose(stopped=True)
            job.moves += 1
        else:
            job.take_place(allocations)
            self.running.add(job)
            if job.serves is not None:
                job.serves.runs = True
        if fresh:
            job.begun = now
        self.quotas.hold(job.trace.id, job.trace.tenant, allocations, since=now, preemptible=job.gives_way)
        pause = self._world.start_s if fresh else job.stop_s(self._world)
        job.paused_until = now + pause
        job.settled_at = job.spell_begin = now
        job.sized_at = None if job.serves is None else now  # that its first replica is ready counts as a change
        job.spell_pause = pause
        self._hold(job, allocations)
        self._protect(job, now)
        self._may_grow(job, now)

    def _protect(self, job: SimulatedJob, now: float) -> None:
        """Foresee when the job has run for long enough to be evicted."""
        for until in sorted(self.running.may_leave_at(job)):
            if until > now:
                self._event_queue.add(until, What.MAY_LEAVE, job.number, job.version)

    def goes_on(self, job: SimulatedJob, now: float, allocations: tuple[Allocation, ...], *, since: float) -> None:
        """The job holds these GPUs since before the simulation begins: it begins nothing, and loses nothing."""
        self.free_capacity.take_all(allocations)
        job.take_place(allocations)
        self.running.add(job)
        self._by_id[job.trace.id] = job
        job.since = job.spell_begin = now
        job.settled_at = since
        self.quotas.hold(job.trace.id, job.trace.tenant, allocations, since=since, preemptible=job.gives_way)
        self._hold(job, allocations)
        self._protect(job, now)
        self._may_grow(job, now)
        if job.live and (gone := [one.rank for one in allocations if one.leaving]):
            job.leaving.update(dict.fromkeys(gone, now))
            self._event_queue.add(now, What.RANKS_GONE, job.number)

    def _may_grow(self, job: SimulatedJob, now: float) -> None:
        """Foresee when the job may be offered idle GPUs."""
        if job.live:
            since = job.settled_at if job.sized_at is None else job.sized_at
            self._event_queue.add(max(now, since + OFFER_COOL_DOWN_SECONDS), What.MAY_GROW, job.number)

    def resettle(self, job: SimulatedJob, now: float, allocations: tuple[Allocation, ...]) -> None:
        """The job moves; the room has that already. A job that had not begun there loses nothing."""
        if job.settled_at == now:
            self._hold(job, _marked(job, allocations))
        else:
            self.settle(job, now, allocations)

    def resize(self, job: SimulatedJob, now: float, allocations: tuple[Allocation, ...], *, cost_s: float) -> None:
        """The running job has these replicas from now on, and makes no progress for `cost_s`; the room has that
        already. A job that had not started on its previous GPUs loses no further work."""
        job.advance(now)
        self._close_spell(job, now)
        self.quotas.hold(job.trace.id, job.trace.tenant, allocations, since=job.settled_at, preemptible=job.gives_way)
        self._owe(job, allocations, now)
        self.running.resize(job, allocations)
        job.resizes += 1
        job.resized_at = job.sized_at = job.spell_begin = now
        job.paused_until = max(job.paused_until, now + cost_s)
        job.spell_pause = job.paused_until - now
        self._hold(job, allocations)
        self._may_grow(job, now)

    def _owe(self, job: SimulatedJob, allocations: Sequence[Allocation], now: float) -> None:
        """A service has these replicas from now on, and owes the lenders of their GPUs."""
        if job.serves is None:
            return
        ranks, had = {one.rank for one in allocations}, {one.rank for one in job.allocations}
        before = job.serves.loans
        again = self.freed_holds.borrowed_again(job.trace.id, (one for one in allocations if one.rank not in had))
        job.serves.loans = unpaid((*before, *again), ranks, self._lacks)
        self._give_back_lent(job, [one for one in job.allocations if one.rank not in ranks], before, now)

    def _lacks(self, loan: Loan) -> bool:
        lender = self._by_id.get(loan.lender)
        return lender is not None and lender.lacks(loan)

    def _give_back_lent(self, job: SimulatedJob, gone: Sequence[Allocation], loans: Sequence[Loan], now: float) -> None:
        changes = self.freed_holds.changes
        self.freed_holds.gone(job.trace.id, gone, loans, now)
        if self.freed_holds.changes != changes:
            self.looks_for_moves(now + FIRST_SECONDS)

    def comes_back(self, place: Allocation, now: float) -> None:
        """A service waits no longer for this place."""
        self.freed_holds.keep([place], now)
        self.looks_for_moves(now + FIRST_SECONDS)

    def keep(self, job_id: str, place: tuple[Allocation, ...]) -> None:
        """Keep these GPUs for this job: no other job gets them, whichever holds them now."""
        self.kept[job_id] = place
        self.free_capacity.withhold(place)

    def let_go(self, job_id: str) -> None:
        """Keep its GPUs no longer."""
        place = self.kept.pop(job_id)
        self.free_capacity.release(place)
        held = {gpu for job in self.running.jobs.values() for gpu in job.gpus}
        free = [(one, tuple(gpu for gpu in one.gpus if (one.node_id, gpu) not in held)) for one in place]
        self.free_capacity.give_back_all(structs.replace(one, gpus=gpus, cpus=0.0, memory=0) for one, gpus in free)

    def looks_for_moves(self, at: float) -> None:
        """Let a decision follow then."""
        self._event_queue.add(at, What.MAY_MOVE)

    def looks_again(self, job: SimulatedJob, now: float) -> None:
        """Let a decision follow once this job runs."""
        self._event_queue.add(now, What.MAY_GROW, job.number)

    def grow(self, job: SimulatedJob, now: float, place: tuple[Allocation, ...]) -> None:
        """These ranks join the running job; the room has them already."""
        revision = 0 if job.serves is None else job.serves.revision
        joined = tuple(structs.replace(one, extra=True, revision=revision) for one in place)
        if job.serves is not None:
            job.serves.joining.update(one.rank for one in joined)
        self.resize(job, now, (*job.allocations, *joined), cost_s=job.resize_cost_s)

    def shrink(self, job: SimulatedJob, now: float, gone: Collection[int]) -> None:
        """These ranks of the running job leave: at once, or once they have stopped."""
        at = now if self._world.stop_s is None else now + self._world.stop_s
        job.leaving.update(dict.fromkeys(gone, at))
        if self._world.stop_s is None:
            self.ranks_gone(job, now)
            return
        job.allocations = tuple(
            structs.replace(one, leaving=True) if one.rank in gone else one for one in job.allocations
        )
        self._owe(job, job.allocations, now)
        job.sized_at = now
        self._event_queue.add(at, What.RANKS_GONE, job.number)

    def ranks_gone(self, job: SimulatedJob, now: float) -> None:
        """The ranks of which the time has come give their GPUs back."""
        ranks = {rank for rank, at in job.leaving.items() if at <= now}
        if not ranks or job.leaves:
            return
        for rank in ranks:
            del job.leaving[rank]
        gone = [one for one in job.allocations if one.rank in ranks]
        self.free_capacity.give_back_all(gone)
        stay = tuple(one for one in job.allocations if one.rank not in ranks)
        self.resize(job, now, stay, cost_s=job.resize_cost_s)

    def _hold(self, job: SimulatedJob, allocations: tuple[Allocation, ...]) -> None:
        job.allocations = allocations
        if job.trace.elastic is not None and job.trace.elastic.by_model:
            job.take_model(self._model_of(allocations))
        job.slowdown = self._slowdown(job)
        self._expect(job)

    def drifted(self, job: SimulatedJob, now: float) -> None:
        """The speed of the job's GPUs may have changed."""
        if (slowdown := self._slowdown(job)) != job.slowdown:
            job.advance(now)
            self._close_spell(job, now)
            job.spell_pause = max(0.0, job.paused_until - now)
            job.spell_begin, job.slowdown = now, slowdown
            self._expect(job)

    def evict(self, job: SimulatedJob, now: float, *, stopped: bool = True) -> None:
        """The job gives its GPUs back and waits. `stopped`: it had time to write a checkpoint."""
        self._leave(job, now)
        job.lose(stopped=stopped, else_every_s=self._world.checkpoint_s)
        job.moves += job.moving
        job.evictions += not job.moving
        job.moving = False
        job.waits_since = now
        self.wait(job, now)

    def stop(self, job: SimulatedJob, now: float, *, moves: bool = False) -> None:
        """Stop a job that gives way or moves, at once or after its grace. A job that is stopping already continues."""
        if job.leaves:
            return
        job.moving = moves
        if self._world.stop_s is None:
            self.evict(job, now)
            return
        job.leaves = True
        job.version += 1
        self.running.leave(job, now + self._world.stop_s)
        self._event_queue.add(now + self._world.stop_s, What.IS_GONE, job.number, job.version)

    def ask(self, job: SimulatedJob, now: float, *, size: int | None) -> None:
        """The service should have `size` replicas; None: as many as before, of a new revision."""
        serves = job.serves
        assert serves is not None
        serves.asked += 1
        if size is None:
            serves.revision += 1
        elif size != serves.aim:
            serves.aim = size
            if job.trace.id in self.queue:
                job.wait_for_replicas()
                self.wait(job, now)

    def close(self, job: SimulatedJob, now: float) -> None:
        """The service ends, be it that it waits."""
        if job.holds:
            self.end(job, now)
            return
        self.queue.remove(job.trace.id)
        self._by_id.pop(job.trace.id, None)
        job.version += 1
        job.begun = now if job.begun is None else job.begun
        self.ended[job.number] = job.outcome(now)

    def end(self, job: SimulatedJob, now: float) -> None:
        self._leave(job, now)
        del self._by_id[job.trace.id]
        self.ended[job.number] = job.outcome(now)

    def rank(self, job: SimulatedJob, now: float) -> None:
        """File the running job by its tier, and foresee the change of the tier."""
        at = self.running.rank(job, now)
        if at is not None:
            self._event_queue.add(changes_at(at, now=now), What.CHANGES, job.number, job.version)

    def _expect(self, job: SimulatedJob) -> None:
        """Foresee its end, or the change of its place in the order."""
        job.version += 1
        if self._foreseen:
            self.running.foresee(job)
        if (ends_at := job.ends_at()) < inf:
            self._event_queue.add(ends_at, What.ENDS, job.number, job.version)
        self.rank(job, job.since)

    def _leave(self, job: SimulatedJob, now: float) -> None:
        """The job gives its GPUs back."""
        job.advance(now)
        self._close_spell(job, now)
        self.free_capacity.give_back_all(job.allocations)
        self.quotas.let_go(job.trace.id)
        if job.serves is not None:
            self._give_back_lent(job, job.allocations, job.serves.loans, now)
            job.serves.loans = ()
        job.allocations = ()
        job.version += 1
        self.running.remove(job)
        job.leaves, job.stops_for = False, ""
        job.leave_place()

    def _model_of(self, allocations: tuple[Allocation, ...]) -> str:
        """The model of all GPUs of a job that has speeds by model: its planner gives it GPUs of one alone."""
        nodes = self.free_capacity.nodes
        models = {nodes[one.node_id].gpus.models[gpu] for one in allocations for gpu in one.gpus}
        assert len(models) == 1, f"a job holds GPUs of {sorted(models)}"
        return models.pop()

    def _slowdown(self, job: SimulatedJob) -> float:
        """The true slowdown, whatever the scheduler believes; a service has none that counts."""
        if job.serves is not None:
            return 1.0
        scores, locality = self._truth.of(job.trace.job_class), self._truth.locality
        elastic = job.trace.elastic
        speeds = NO_SPEEDS if elastic is not None and elastic.by_model else None  # those are in its own speeds already
        slowdown = self.free_capacity.slowdown(
            job.allocations, job.asked, scores=scores, locality=locality, speeds=speeds
        )
        return slowdown / self._measured_spread(job)

    def _measured_spread(self, job: SimulatedJob) -> float:
        """The part of the slowdown that is in the speeds of the job already: these were measured on as few nodes as
        hold its GPUs."""
        nodes = {allocation.node_id for allocation in job.allocations}
        if len(nodes) == 1 or job.trace.elastic is None or not job.trace.elastic.by_model:
            return 1.0
        largest = max(len(self.free_capacity.nodes[node_id].gpus.models) for node_id in nodes)
        fewest = ceil(job.gpus_needed / largest)
        return self.free_capacity.spread_over(nodes, job.trace.model) if len(nodes) <= fewest else 1.0

    def _close_spell(self, job: SimulatedJob, now: float) -> None:
        if self._keep_spells and now > job.spell_begin:
            paused = min(job.spell_pause, now - job.spell_begin)
            held = gpus_in(job.allocations)
            self.spells.append(Spell(job.number, job.spell_begin, now, held, job.stretch, paused, job.size))


def _marked(job: SimulatedJob, place: tuple[Allocation, ...]) -> tuple[Allocation, ...]:
    """The place with its spare ranks marked: some of a job that resizes live, all of a service."""
    if job.serves is not None:
        return tuple(structs.replace(one, extra=True, revision=job.serves.revision) for one in place)
    return with_extras(place, {one.role: one.least for one in job.live}) if job.live else place
