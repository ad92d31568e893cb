"""Waiting jobs: which are placed, for which of them jobs are preempted or nodes reserved, and why the rest wait.

The order, the backfill, the preemption and the place of a gang are decided by `weft.planning`.
"""

from collections.abc import Mapping, Sequence

from msgspec import structs

from weft.domain.job import Allocation, Cause, CauseCode, Job, JobEvent, Step
from weft.domain.quantity import duration_text
from weft.domain.text import listed
from weft.health.spares import SPARES
from weft.messages.nodes import RunSeen, RunState
from weft.planning.awaiting import AWAITS_AT
from weft.planning.cycle import CACHED_LEAST, LOOK_AGAIN_SECONDS, Cycle, Decision, Nodes
from weft.planning.jobs import standing_of
from weft.planning.order import Standing
from weft.planning.preemption import Holder, VictimSelection, by_job
from weft.planning.preemption.minimum_run import why_not_yet
from weft.planning.reasons.pins import in_the_way, with_holders
from weft.planning.reasons.refusals import why_not
from weft.planning.resource_request import ResourceRequest, gpus_least, is_pinned
from weft.planning.scheduling_pass import Awaits, Clears, Demand, Held, InVain, Starts, Waits
from weftd.scheduler.thinking.decide import lifecycle
from weftd.scheduler.thinking.decide.migration import Migration
from weftd.scheduler.thinking.decide.placing import place, place_nowhere
from weftd.scheduler.thinking.state.cluster import PoolNow
from weftd.scheduler.thinking.state.cluster_state import ClusterState
from weftd.scheduler.thinking.state.holders import why_surplus
from weftd.scheduler.thinking.state.waitlist import JobGroup

_E, _C = JobEvent, CauseCode

NAMED_MAX = 4  # spares
EXPLAINED_MAX = 64  # waiting jobs that get a reason in one tick: later ones must not delay another tenant's placement


class Waiting:
    """`patience_seconds`: a job that waited this long holds back the smaller jobs behind it.

    At most `steps_max` steps are decided at once; the rest in the next tick.
    """

    def __init__(
        self, cluster_state: ClusterState, migration: Migration, *, patience_seconds: float, steps_max: int
    ) -> None:
        self._cluster_state = cluster_state
        self._migration = migration
        self.unfinished = False  # more waiting jobs need a reason
        self._cluster = PoolNow(cluster_state, migration.targets)
        self.cycle = Cycle(
            self._cluster,
            cluster_state.policy,
            patience_s=patience_seconds,
            look_again_s=LOOK_AGAIN_SECONDS,
            spares_wanted=cluster_state.spares,
        )
        self._steps_max = steps_max
        # By shape that did not fit: the growth count of the room, the reserved nodes, and the cause.
        self._why_unfit: dict[ResourceRequest, tuple[int, Nodes, Cause]] = {}

    def decide(self, now: float, *, why_not_yet: Cause | None = None) -> list[Step]:
        """Steps for waiting jobs. `why_not_yet`: if given, nothing is placed now, for this cause."""
        cluster_state, self._cluster.now = self._cluster_state, now
        cluster_state.waitlist.end_backoffs(cluster_state.jobs, now)
        cluster_state.waitlist.keep_out(cluster_state.pool.orphans.by_job().keys(), cluster_state.jobs, now)
        cluster_state.waitlist.stand_promoted(cluster_state.jobs, now)
        self.cycle.forget()
        if len(self._why_unfit) > CACHED_LEAST + 4 * len(cluster_state.waitlist.queue):
            self._why_unfit.clear()
        if why_not_yet is not None:
            return self._put_off(why_not_yet, now)
        arrived = self._migration.arrive(now)
        for job_id in sorted(cluster_state.waitlist.idle):
            arrived += place_nowhere(cluster_state, cluster_state.jobs[job_id], now)
        steps, causes = self._place_waiting(now)
        return arrived + steps + self._explain_waiting(causes, now)

    def _put_off(self, cause: Cause, now: float) -> list[Step]:
        """Give `cause` to jobs without a reason; after a restored store, which takes long, to all unexplained jobs.
        All of them get a new reason later."""
        steps: list[Step] = []
        for job_id in sorted(self._cluster_state.waitlist.unexplained):
            if len(steps) >= self._steps_max:
                break
            job = self._cluster_state.jobs[job_id]
            known = job.waiting_for
            if known is None or (cause.code is _C.STORE_RESTORED and known.code is not cause.code):
                steps += self._cluster_state.go(job, _E.WAITING, cause, now)
        return steps

    def _place_waiting(self, now: float) -> tuple[list[Step], "_Causes"]:
        """Place the jobs that fit, in order; find the cause for each group that does not fit and needs a reason."""
        waitlist = self._cluster_state.waitlist
        steps: list[Step] = []
        causes = _Causes({waitlist.group(job_id) for job_id in waitlist.unexplained if job_id in waitlist.queue})
        for decision in self.cycle.decide(now):
            steps += self._take(decision, causes, now)
            if len(steps) >= self._steps_max:
                self.cycle.stop()
        if self.cycle.over:
            causes.of_others = _behind(self.cycle.ahead, self._cluster_state.policy.backfill)
        return steps, causes

    def _take(self, decision: Decision, causes: "_Causes", now: float) -> list[Step]:
        """Apply a decision of the cycle; of a job that waits, note why, if that is wanted."""
        cluster_state, job = self._cluster_state, self._cluster_state.jobs[decision.job_id]
        match decision:
            case Starts():
                return place(cluster_state, job, decision.place, now)
            case Clears():
                return self._clear(job, decision, now)
            case InVain():
                return self._put_off_stops(job, now)
            case Awaits():
                return self._await(job, decision, now)
            case Held():
                group = cluster_state.waitlist.group(job.id)
                if (held := cluster_state.quotas.why_held(job, group.resource_request)) is not None:
                    causes.of_group[group] = held
                return []
            case Waits():
                group = cluster_state.waitlist.group(job.id)
                if group in causes.wanted:
                    causes.of_group[group] = self._why_not(group, decision)
                return []

    def _await(self, job: Job, awaits: Awaits, now: float) -> list[Step]:
        """Record that the job could start, and waits for GPUs of a faster model."""
        known = job.waiting_for
        self._cluster_state.waitlist.explained(job.id)
        if known is not None and known.numbers.get(AWAITS_AT) == awaits.at:
            return []
        wait, saves = duration_text(max(0.0, awaits.at - now)), duration_text(awaits.saves_s)
        sentence = f"it could start now, but ends sooner on {awaits.model}: free within {wait}, it saves {saves}"
        numbers = {AWAITS_AT: awaits.at, "saves_seconds": awaits.saves_s}
        cause = Cause(code=_C.HELD_BACK, sentence=sentence, numbers=numbers)
        return self._cluster_state.go(job, _E.WAITING, cause, now)

    def _clear(self, job: Job, clears: Clears, now: float) -> list[Step]:
        """Stop the jobs, or the ranks of jobs, that give way to `job`."""
        cluster_state, order = self._cluster_state, self._cluster_state.waitlist.queue.order
        for job_id in clears.revoked:
            cluster_state.waitlist.needs_reason(job_id)
        waiting = standing_of(job, now, order)
        steps: list[Step] = []
        names: list[str] = []
        for held, ranks in _by_job(clears.selection, cluster_state.jobs):
            names.append(f"{len(ranks)} of the ranks of {held.id}" if ranks else held.id)
            running = standing_of(held, now, order)
            why = why_surplus(order, waiting, running) or _why_preempted(cluster_state.policy.order, waiting, running)
            cause = Cause(code=_C.PREEMPTED, sentence=f"pre-empted by {job.id}: {why}", by=job.id)
            if held.id in clears.guests:
                sentence = f"its node is a spare, and {job.id} restarts since its hardware failed"
                cause = structs.replace(cause, sentence=sentence)
            if held.id in clears.reclaimed:
                cause = cluster_state.quotas.why_reclaimed(held, ranks, job)
            steps += lifecycle.give_up_ranks(cluster_state, held, ranks, cause, now) if ranks else []
            steps += [] if ranks else lifecycle.stop(cluster_state, held, cause, now)
        sentence = f"room is being made: {', '.join(names)} must stop first"
        numbers = {"stopping": float(len(clears.selection.victims))}
        cause = Cause(code=_C.MAKING_ROOM, sentence=sentence, numbers=numbers)
        cluster_state.waitlist.explained(job.id)
        return steps + cluster_state.go(job, _E.WAITING, cause, now)

    def _put_off_stops(self, job: Job, now: float) -> list[Step]:
        """Record that jobs will be preempted for this one once they have run for long enough."""
        cluster_state, minimum = self._cluster_state, self._cluster_state.minimum_run
        demand = self._cluster.demand(job.id) if minimum.seconds else None
        clears = None if demand is None else self.cycle.would_clear(job.id, demand, fresh=True)
        names = {} if clears is None else dict.fromkeys(one.job_id for one in clears.selection.victims)
        fresh = [held for held in map(cluster_state.jobs.__getitem__, names) if minimum.protects(held, now)]
        if not fresh:
            return []
        sentence, at = why_not_yet(fresh, minimum, now)
        known = job.waiting_for
        cluster_state.waitlist.explained(job.id)
        if known is not None and known.numbers.get("stops_at") == at:
            return []
        grace = max(held.spec.grace_seconds for held in map(cluster_state.jobs.__getitem__, names))
        cause = Cause(code=_C.NO_ROOM, sentence=sentence, numbers={"stops_at": at, "grace": grace})
        return cluster_state.go(job, _E.WAITING, cause, now)

    def _why_not(self, group: JobGroup, waits: Waits) -> Cause:
        """Why no job of this group is placed now."""
        if not waits.its_turn:
            sentence = f"{waits.ahead} is ahead of it and might start later if this job started now"
            numbers = {"gpus_wanted": float(gpus_least(group.resource_request))}
            return Cause(code=_C.HELD_BACK, sentence=sentence, by=waits.ahead, numbers=numbers)
        free_capacity = self._cluster_state.pool.free_capacity
        demand = self._cluster.demand(waits.job_id)
        assert demand is not None, "the cycle looked at it"
        if closed := self._cluster_state.quotas.closed_to(waits.job_id, demand):
            with free_capacity.without(closed):
                cause = why_not(free_capacity, group.resource_request)
            if cause is not None:
                sentence = f"{cause.sentence}; its quota allows no GPUs of other models"
                return structs.replace(cause, sentence=sentence)
        if cause := self._why_spares(demand, group):
            return cause
        reserved = self.cycle.reserved
        grown, kept, cause = self._why_unfit.get(group.resource_request, (-1, (), None))
        if cause is None or (grown, kept) != (free_capacity.grown, reserved):
            cause = why_not(free_capacity, group.resource_request)
            assert cause is not None, "it did not fit a moment ago"
            if is_pinned(group.resource_request):
                jobs = (self._cluster_state.jobs[job_id] for job_id in sorted(self._cluster_state.pool.runs.holding))
                cause = with_holders(cause, in_the_way(group.resource_request, jobs))
            self._why_unfit[group.resource_request] = (free_capacity.grown, reserved, cause)
        return _kept_for(self.cycle.reserved_for, cause) if reserved else cause

    def _why_spares(self, demand: Demand, group: JobGroup) -> Cause | None:
        """The cause of a job that would fit if no nodes were kept as spares."""
        kept, free_capacity = self.cycle.kept_from(demand), self._cluster_state.pool.free_capacity
        if not kept or why_not(free_capacity, group.resource_request) is not None:
            return None
        with free_capacity.without(kept):
            cause = why_not(free_capacity, group.resource_request)
        if cause is None:
            return None
        named = f"{listed(kept, NAMED_MAX)} {'is' if len(kept) == 1 else 'are'}"
        sentence = f"{named} kept for gangs whose hardware failed; besides: {cause.sentence}"
        return Cause(code=_C.HELD_BACK, sentence=sentence, numbers={**cause.numbers, SPARES: float(len(kept))})

    def _explain_waiting(self, causes: "_Causes", now: float) -> list[Step]:
        """Record once why each job waits that was not placed; `weft explain` computes it anew on request."""
        steps: list[Step] = []
        orphans, waitlist = self._cluster_state.pool.orphans.by_job(), self._cluster_state.waitlist
        self.unfinished = False
        for job_id in sorted(waitlist.unexplained):
            if len(steps) >= EXPLAINED_MAX:
                self.unfinished = True
                break
            job = self._cluster_state.jobs[job_id]
            if waitlist.backs_off(job_id):
                cause = waitlist.why_put_back(job_id) or _backs_off(job, now)
            elif waitlist.is_kept_out(job_id):
                cause = _still_runs(*orphans[job_id])
            elif (held := waitlist.held.get(job_id)) is not None:
                cause = held
            elif job_id in waitlist.idle:  # stopped for another job a moment ago: it needs no room to run again
                self.unfinished = True
                continue
            elif (moves := self._migration.waits(job_id)) is not None:
                cause = moves
            elif (known := causes.of_group.get(waitlist.group(job_id), causes.of_others)) is not None:
                cause = known
            else:
                continue  # its turn comes in the next tick
            waitlist.explained(job_id)
            if _is_news(cause, job.waiting_for):
                steps += self._cluster_state.go(job, _E.WAITING, cause, now)
        return steps


def _is_news(cause: Cause, before: Cause | None) -> bool:
    """Return True if the reason to wait has changed."""
    if before is None or cause.code is not before.code:
        return True
    return cause.code is _C.DEPENDENCY and cause.by != before.by


class _Causes:
    """Why jobs were not placed. `wanted`: the groups that need a reason; `of_others`: the cause for jobs that the walk
    did not reach, or None if their turn comes in a later tick."""

    def __init__(self, wanted: set[JobGroup]) -> None:
        self.wanted = wanted
        self.of_group: dict[JobGroup, Cause] = {}
        self.of_others: Cause | None = None


def _by_job(selection: VictimSelection, jobs: Mapping[str, Job]) -> list[tuple[Job, tuple[Allocation, ...]]]:
    """The victims by job: with the ranks that leave, or without any where the whole job stops."""
    return [
        (jobs[job_id], tuple(each for holder in holders for each in holder.allocations) if _all_extra(holders) else ())
        for job_id, holders in by_job(selection).items()
    ]


def _all_extra(holders: Sequence[Holder]) -> bool:
    return all(holder.extra for holder in holders)


def _why_preempted(order: str, waiting: Standing, running: Standing) -> str:
    match order:
        case "las" | "priority" if waiting.priority == running.priority or order == "las":
            had, has = duration_text(waiting.attained_gpu_s), duration_text(running.attained_gpu_s)
            return f"that one has had {had} of GPU time, this one {has}"
        case "srtf":
            left = "an unknown time" if running.left_s is None else duration_text(running.left_s)
            return f"that one needs {duration_text(waiting.left_s or 0.0)} more, this one {left}"
        case _:
            return f"priority {waiting.priority} over {running.priority}"


def _behind(ahead: str, backfill: str) -> Cause:
    sentence = f"{ahead} is ahead of it and does not fit; with backfill {backfill} no job overtakes it"
    return Cause(code=_C.HELD_BACK, sentence=sentence, by=ahead)


def _backs_off(job: Job, now: float) -> Cause:
    sentence = f"tries again in {duration_text(job.not_before - now)}"
    return Cause(code=_C.BACKOFF, sentence=sentence, numbers={"not_before": job.not_before})


def _still_runs(node_id: str, run: RunSeen) -> Cause:
    what = "has ended, and its end must be recorded first" if run.state is RunState.EXITED else "still runs"
    sentence = f"rank {run.rank} of epoch {run.epoch} {what} on node {node_id}: two epochs never run at once"
    return Cause(code=_C.STILL_RUNS, sentence=sentence, by=node_id, numbers={"epoch": float(run.epoch)})


def _kept_for(ahead: str, cause: Cause) -> Cause:
    sentence = f"free GPUs are reserved for {ahead}, which is ahead of it; besides: {cause.sentence}"
    return Cause(code=_C.HELD_BACK, sentence=sentence, by=ahead, numbers=cause.numbers)
