"""Waiting jobs: which are placed, for which of them jobs are preempted or nodes reserved, and why the rest wait.

The order, the backfill, the preemption and the place of a gang are decided by `weft.planning`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from math import inf

from msgspec import structs

from weft.domain.job import Allocation, Cause, CauseCode, Job, JobEvent, JobState, Step
from weft.domain.quantity import duration_text
from weft.domain.shares import WHOLE
from weft.messages.nodes import RunSeen, RunState
from weft.planning.backfill import GPU_GRAIN
from weft.planning.capacity import Room, empty_room
from weft.planning.finding import Place, find
from weft.planning.jobs import asked_by, ends_at, standing_of
from weft.planning.minimum_run import MinimumRun, why_not_yet
from weft.planning.order import Standing
from weft.planning.preemption import Clearing, Holder, clearing_for
from weft.planning.queue import Rank, ServedAt
from weft.planning.quota.ranks import is_inside
from weft.planning.reasons.pins import in_the_way, with_holders
from weft.planning.reasons.refusals import why_not
from weft.planning.reserving import nodes_to_keep
from weft.planning.shape import Shape, gpus_in, gpus_least, gpus_of, is_pinned, smallest
from weft.planning.walk import Starts, Waits, Walk, Wants
from weftd.scheduler.thinking.decide import lives
from weftd.scheduler.thinking.decide.moving import Moving
from weftd.scheduler.thinking.decide.placing import place, place_nowhere
from weftd.scheduler.thinking.state.holders import why_surplus
from weftd.scheduler.thinking.state.picture import Picture
from weftd.scheduler.thinking.state.waitlist import JobGroup

_S, _E, _C = JobState, JobEvent, CauseCode

CACHED_LEAST = 256  # shapes with a cached answer, besides some for each waiting job

LOOK_AGAIN_SECONDS = 1.0  # between two searches for victims of the same job
EXPLAINED_MAX = 64  # waiting jobs that get a reason in one tick: later ones must not delay another tenant's placement
RECLAIMS_MAX = 32  # waiting jobs inside a guarantee for which room is looked for in one turn, besides the first
PROMISES_MAX = 16  # jobs ahead for which room is being made that are minded when more is made
STAND_AGAIN_SECONDS = 60.0  # between two updates of an order that depends on how long jobs have waited

Nodes = tuple[str, ...]


class Waiting:
    """`patience_seconds`: a job that waited this long holds back the smaller jobs behind it.

    At most `steps_max` steps are decided at once; the rest in the next tick.
    """

    def __init__(self, picture: Picture, moving: Moving, *, patience_seconds: float, steps_max: int) -> None:
        self._picture = picture
        self._moving = moving
        self.unfinished = False  # more waiting jobs need a reason
        self.reserved: Nodes = ()  # nodes kept for one waiting job, in the last walk
        self.ahead = ""  # the job that held others back in the last walk, because there was no room for it
        self._reserved_for = ""  # the job that has the reserved nodes
        self._patience_seconds = patience_seconds
        self._steps_max = steps_max
        # By shape that did not fit: the growth count of the room, the reserved nodes, and the cause once computed.
        self._unfit: dict[Shape, tuple[int, Nodes, Cause | None]] = {}
        self._making_room: dict[str, Clearing] = {}  # by waiting job, the jobs that stop for it
        self._looked_at: dict[str, float] = {}
        self._stood_at = -inf
        self._now = 0.0  # of the decision that is being made
        self._fits_empty: dict[Shape, bool] = {}
        self._empty: tuple[int, Room] | None = None  # the `changes` of the pool, and its room without any job

    def decide(self, now: float, *, why_not_yet: Cause | None = None) -> list[Step]:
        """Steps for waiting jobs. `why_not_yet`: if given, nothing is placed now, for this cause."""
        picture, self._now = self._picture, now
        picture.waitlist.end_backoffs(picture.jobs, now)
        picture.waitlist.keep_out(picture.pool.strays.by_job().keys(), picture.jobs, now)
        self._stand_again(now)
        self._forget_shapes()
        for of_waiting in (self._making_room, self._looked_at):
            for job_id in [job_id for job_id in of_waiting if job_id not in picture.waitlist.queue]:
                del of_waiting[job_id]
                picture.quotas.unclaim(job_id)
        if why_not_yet is not None:
            return self._put_off(why_not_yet, now)
        arrived = self._moving.arrive(now)
        for job_id in sorted(picture.waitlist.idle):
            arrived += place_nowhere(picture, picture.jobs[job_id], now)
        steps, causes = self._place_waiting(now)
        return arrived + steps + self._explain_waiting(causes, now)

    def _forget_shapes(self) -> None:
        """Drop cached shapes when there are too many: users may submit any number of them."""
        most = CACHED_LEAST + 4 * len(self._picture.waitlist.queue)
        for of_shapes in (self._unfit, self._fits_empty):
            if len(of_shapes) > most:
                of_shapes.clear()

    def _stand_again(self, now: float) -> None:
        """Every `STAND_AGAIN_SECONDS`: sort the queue again if the order depends on how long jobs have waited."""
        waitlist = self._picture.waitlist
        if waitlist.queue.order.promotes and now >= self._stood_at + STAND_AGAIN_SECONDS:
            self._stood_at = now
            for job in [job for job in self._picture.jobs.values() if job.id in waitlist.queue]:
                waitlist.stand(job, now)

    def _put_off(self, cause: Cause, now: float) -> list[Step]:
        """Give `cause` to jobs without a reason; after a restored store, which takes long, to all unexplained jobs.
        All of them get a new reason later."""
        steps: list[Step] = []
        for job_id in sorted(self._picture.waitlist.unexplained):
            if len(steps) >= self._steps_max:
                break
            job = self._picture.jobs[job_id]
            known = job.waiting_for
            if known is None or (cause.code is _C.STORE_RESTORED and known.code is not cause.code):
                steps += self._picture.go(job, _E.WAITING, cause, now)
        return steps

    def _place_waiting(self, now: float) -> tuple[list[Step], "_Causes"]:
        """Place the jobs that fit, in order; find the cause for each group that does not fit and needs a reason."""
        picture, waitlist = self._picture, self._picture.waitlist
        room, backfill = picture.pool.room, picture.policy.backfill
        steps: list[Step] = []
        causes = _Causes({waitlist.group(job_id) for job_id in waitlist.unexplained if job_id in waitlist.queue})
        self.reserved, self._reserved_for = (), ""
        walk = Walk(
            waitlist.queue.served(self._share_of(now), self._rank if picture.quotas.on else None),
            backfill=backfill,
            wants=lambda job_id: self._wants(job_id, causes),
            find=self._find,
            fits_empty=self._would_fit_empty,
            filling=lambda: picture.policy.filling(now=now, free=room.gpus_free, endings=picture.holdings.endings),
        )
        with ExitStack() as closed:  # reserved nodes take no jobs as long as the walk lasts
            for decision in walk:
                if isinstance(decision, Starts):
                    steps += place(picture, picture.jobs[decision.job_id], decision.place, now)
                else:
                    steps += self._wait(decision, causes, closed, now)
                if len(steps) >= self._steps_max:
                    walk.stop()
        self.ahead = walk.ahead
        if picture.quotas.on and len(steps) < self._steps_max:
            steps += self._reclaim(now)
        if walk.over:
            causes.of_others = _behind(walk.ahead, backfill)
        return steps, causes

    def _reclaim(self, now: float) -> list[Step]:
        """Make room for the jobs inside a guarantee that still wait, however many the walk looked at: a lender gets all
        back at once."""
        picture = self._picture
        served = picture.waitlist.queue.served(self._share_of(now), self._rank)
        steps: list[Step] = []
        for _ in range(RECLAIMS_MAX):
            job_id = served.next()
            if job_id is None or not is_inside(self._rank(job_id)):
                break
            job, shape = picture.jobs[job_id], picture.waitlist.group(job_id).shape
            made = [] if picture.quotas.why_held(job, shape) else self._make_room(job, shape, now)
            steps += made
            if made or self._leaving_for(job):
                served.passed()
            else:
                served.blocked()
        return steps

    def _share_of(self, now: float) -> Callable[[str], float]:
        """What an order that goes by shares goes by."""
        picture = self._picture
        return picture.holdings.share_of(picture.quotas, picture.jobs.values(), now)

    def _rank(self, job_id: str) -> Rank:
        """What quotas say of the job, before the order does."""
        job, waitlist = self._picture.jobs[job_id], self._picture.waitlist
        tier = waitlist.queue.order.tier
        standing = standing_of(job, self._now, waitlist.queue.order)
        return self._picture.quotas.rank(
            job, waitlist.group(job_id).shape, 0.0 if tier is None else float(tier(standing))
        )

    def _wants(self, job_id: str, causes: "_Causes") -> Wants | None:
        if job_id in self._moving.targets:
            return None
        group = self._picture.waitlist.group(job_id)
        held = self._picture.quotas.why_held(self._picture.jobs[job_id], group.shape)
        if held is not None:
            causes.of_group[group] = held
            return Wants(group.shape, gpus_least(group.shape), group.lasts_s, held=True)
        return Wants(group.shape, gpus_least(group.shape), group.lasts_s, pinned=is_pinned(group.shape))

    def _wait(self, waits: Waits, causes: "_Causes", closed: ExitStack, now: float) -> list[Step]:
        """A job is not placed: find the cause if it is wanted, then preempt or reserve for the job."""
        job, group = self._picture.jobs[waits.job_id], self._picture.waitlist.group(waits.job_id)
        if group in causes.wanted:
            causes.of_group[group] = self._why_not(group, waits)
        if not waits.in_the_way:
            return []
        steps = self._make_room(job, group.shape, now) if waits.its_turn else []
        claimed = set(self._claim(job, group.shape, now)).difference(self.reserved)
        if claimed:
            self._reserved_for = self._reserved_for or job.id
            self.reserved = tuple(sorted({*self.reserved, *claimed}))
            closed.enter_context(self._picture.pool.room.without(sorted(claimed)))
        return steps

    def _find(self, job_id: str, shape: Shape) -> Place | None:
        """Find a place; a shape that did not fit is not tried again until the room has grown."""
        room = self._picture.pool.room
        known = self._unfit.get(shape)
        if known is not None and known[:2] == (room.grown, self.reserved):
            return None
        job, quotas = self._picture.jobs[job_id], self._picture.quotas
        if quotas.on and gpus_of(shape) * WHOLE > quotas.room(job):
            shape = smallest(shape)
        closed = quotas.closed_to(job, shape)
        with room.without(closed):
            found = find(room, shape, asked_by(job, self._picture.beliefs.learnt))
        if not found and not closed:
            self._unfit[shape] = (room.grown, self.reserved, None)
        return found

    def _would_fit_empty(self, shape: Shape) -> bool:
        """Would the shape fit the pool without any job, lost nodes included? If not, its job holds back no other."""
        picture = self._picture
        if self._empty is None or self._empty[0] != picture.pool.changes:
            self._empty = (picture.pool.changes, empty_room(picture.pool.nodes.values()))
            self._fits_empty.clear()
        if shape not in self._fits_empty:
            self._fits_empty[shape] = bool(find(self._empty[1], smallest(shape)))
        return self._fits_empty[shape]

    def _make_room(self, job: Job, shape: Shape, now: float) -> list[Step]:
        """Preempt jobs for a job that does not fit. While its victims are stopping, no others are preempted."""
        if self._leaving_for(job) or now < self._looked_at.get(job.id, -inf) + LOOK_AGAIN_SECONDS:
            return []
        self._making_room.pop(job.id, None)
        self._picture.quotas.unclaim(job.id)
        self._looked_at[job.id] = now
        picture, room = self._picture, self._picture.pool.room
        waiting = standing_of(job, now, picture.waitlist.queue.order)
        willing = picture.holdings.holders.who_may_leave(waiting, picture.jobs, now, self._progress_of)
        willing, reclaimed = picture.quotas.willing(job, shape, willing, picture.jobs, now, self._progress_of)
        clearing = self._clearing(job, shape, willing, now) if _enough(shape, willing, free=room.gpus_left) else None
        if clearing is None or not clearing.victims:
            return self._put_off_stops(job, shape, waiting, now)
        self._making_room[job.id] = clearing
        self._revoke(job, clearing)
        picture.quotas.claim(job, shape, now)
        steps: list[Step] = []
        names: list[str] = []
        for held, ranks in _by_job(clearing, picture.jobs):
            names.append(f"{len(ranks)} of the ranks of {held.id}" if ranks else held.id)
            order, running = picture.waitlist.queue.order, standing_of(held, now, picture.waitlist.queue.order)
            why = why_surplus(order, waiting, running) or _why_preempted(picture.policy.order, waiting, running)
            cause = Cause(code=_C.PREEMPTED, sentence=f"pre-empted by {job.id}: {why}", by=job.id)
            if held.id in reclaimed:
                cause = picture.quotas.why_reclaimed(held, ranks, job)
            steps += lives.give_up_ranks(picture, held, ranks, cause, now) if ranks else []
            steps += [] if ranks else lives.stop(picture, held, cause, now)
        sentence = f"room is being made: {', '.join(names)} must stop first"
        cause = Cause(code=_C.MAKING_ROOM, sentence=sentence, numbers={"stopping": float(len(clearing.victims))})
        picture.waitlist.explained(job.id)
        return steps + picture.go(job, _E.WAITING, cause, now)

    def _clearing(self, job: Job, shape: Shape, willing: Sequence[Holder], now: float) -> Clearing | None:
        picture, room = self._picture, self._picture.pool.room
        with room.without(picture.quotas.closed_to(job, shape)), room.supposing():
            promised = self._keep_promises(job, room, now)
            return clearing_for(
                smallest(shape),
                room=room,
                holders=[one for one in willing if one.job_id not in promised],
                asked=asked_by(job, picture.beliefs.learnt),
            )

    def _put_off_stops(self, job: Job, shape: Shape, waiting: Standing, now: float) -> list[Step]:
        """Record that jobs will be preempted for this one once they have run for long enough."""
        picture, minimum = self._picture, self._picture.minimum_run
        if not minimum.seconds:
            return []
        holders = picture.holdings.holders.who_may_leave(
            waiting, picture.jobs, now, self._progress_of, minimum_run=MinimumRun()
        )
        willing = [one for one in holders if not picture.quotas.protects(job.tenant, one.job_id)]
        if not _enough(shape, willing, free=picture.pool.room.gpus_left):
            return []
        clearing = self._clearing(job, shape, willing, now)
        names = {} if clearing is None else dict.fromkeys(one.job_id for one in clearing.victims)
        fresh = [held for held in map(picture.jobs.__getitem__, names) if minimum.protects(held, now)]
        if not fresh:
            return []
        sentence, at = why_not_yet(fresh, minimum, now)
        known = job.waiting_for
        picture.waitlist.explained(job.id)
        if known is not None and known.numbers.get("stops_at") == at:
            return []
        grace = max(held.spec.grace_seconds for held in map(picture.jobs.__getitem__, names))
        cause = Cause(code=_C.NO_ROOM, sentence=sentence, numbers={"stops_at": at, "grace": grace})
        return picture.go(job, _E.WAITING, cause, now)

    def _keep_promises(self, job: Job, room: Room, now: float) -> set[str]:
        """Give the jobs that come before `job` in the order, and for which others stop already, their places in the
        room, so that nothing is promised twice. Returns what stops for them. What stops for jobs that come after it
        counts as free soon."""
        picture, promised = self._picture, set[str]()
        queue, key_of = picture.waitlist.queue, self._key_of(now)
        own = key_of(job.id)
        ahead = sorted((key, one) for one in self._making_room if one in queue and (key := key_of(one)) < own)
        for _, job_id in ahead[:PROMISES_MAX]:
            other = picture.jobs[job_id]
            leaving = {one.id for one in self._leaving_for(other)} - promised
            promised |= leaving
            for victim in self._making_room[job_id].victims if leaving else ():
                if victim.job_id in leaving:
                    room.give_back_all(victim.allocations)
            if leaving:
                shape = smallest(picture.waitlist.group(job_id).shape)
                room.take_all(find(room, shape, asked_by(other, picture.beliefs.learnt)) or ())
        return promised

    def _revoke(self, job: Job, clearing: Clearing) -> None:
        """End the promises to jobs that come after `job`, as far as they count on the same victims: these jobs look
        for room again."""
        victims = {victim.job_id for victim in clearing.victims}
        for job_id, other in list(self._making_room.items()):
            if job_id != job.id and not victims.isdisjoint(victim.job_id for victim in other.victims):
                del self._making_room[job_id]
                self._picture.quotas.unclaim(job_id)
                if job_id in self._picture.waitlist.queue:
                    self._picture.waitlist.needs_reason(job_id)

    def _key_of(self, now: float) -> Callable[[str], ServedAt]:
        """Sorts the waiting jobs as the walk serves them."""
        queue, quotas = self._picture.waitlist.queue, self._picture.quotas
        return queue.keys(self._share_of(now), self._rank if quotas.on else None)

    def _leaving_for(self, job: Job) -> list[Job]:
        """The victims of `job` that still stop, or of which ranks still leave."""
        clearing = self._making_room.get(job.id)
        asked = [(self._picture.jobs.get(victim.job_id), victim) for victim in clearing.victims] if clearing else []
        return [held for held, victim in asked if held is not None and _still_leaves(held, victim)]

    @property
    def being_cleared(self) -> Nodes:
        """The nodes from which jobs are leaving for waiting jobs."""
        clearings = [
            self._making_room[job_id].nodes
            for job_id in self._making_room
            if (job := self._picture.jobs.get(job_id)) is not None and self._leaving_for(job)
        ]
        return tuple(sorted({node_id for nodes in clearings for node_id in nodes}))

    def _progress_of(self, job: Job) -> Mapping[str, float]:
        return self._picture.pool.runs.of(job).progress or {}

    def _claim(self, job: Job, shape: Shape, now: float) -> Nodes:
        """The nodes reserved for `job`: those being cleared for it or, for the first that has earned them, the
        emptiest."""
        if self._leaving_for(job):
            return self._making_room[job.id].nodes
        waited = now - job.since
        if self.reserved or waited < self._patience_seconds:
            return ()
        return nodes_to_keep(
            self._picture.pool.room, shape, waited_s=waited, left_on=lambda node_id: self._left_on(node_id, now)
        )

    def _left_on(self, node_id: str, now: float) -> float:
        """For how many seconds the jobs on a node are expected to run on."""
        jobs = self._picture.jobs
        return max((_left(jobs[job_id], now) for job_id in self._picture.pool.runs.jobs_on(node_id)), default=0.0)

    def _why_not(self, group: JobGroup, waits: Waits) -> Cause:
        """Why no job of this group is placed now."""
        if not waits.its_turn:
            sentence = f"{waits.ahead} is ahead of it and might start later if this one did now"
            numbers = {"gpus_wanted": float(gpus_least(group.shape))}
            return Cause(code=_C.HELD_BACK, sentence=sentence, by=waits.ahead, numbers=numbers)
        room = self._picture.pool.room
        if closed := self._picture.quotas.closed_to(self._picture.jobs[waits.job_id], group.shape):
            with room.without(closed):
                cause = why_not(room, group.shape)
            if cause is not None:
                sentence = f"{cause.sentence}; of the other models its tenant may have no more"
                return structs.replace(cause, sentence=sentence)
        grown, kept, cause = self._unfit.get(group.shape, (-1, (), None))
        if cause is None or (grown, kept) != (room.grown, self.reserved):
            cause = why_not(room, group.shape)
            assert cause is not None, "it did not fit a moment ago"
            if is_pinned(group.shape):
                jobs = (self._picture.jobs[job_id] for job_id in sorted(self._picture.pool.runs.holding))
                cause = with_holders(cause, in_the_way(group.shape, jobs))
            self._unfit[group.shape] = (room.grown, self.reserved, cause)
        return _kept_for(self._reserved_for, cause) if self.reserved else cause

    def _explain_waiting(self, causes: "_Causes", now: float) -> list[Step]:
        """Record once why each job waits that was not placed; `weft explain` computes it anew on request."""
        steps: list[Step] = []
        strays, waitlist = self._picture.pool.strays.by_job(), self._picture.waitlist
        self.unfinished = False
        for job_id in sorted(waitlist.unexplained):
            if len(steps) >= EXPLAINED_MAX:
                self.unfinished = True
                break
            job = self._picture.jobs[job_id]
            if waitlist.backs_off(job_id):
                cause = waitlist.why_put_back(job_id) or _backs_off(job, now)
            elif waitlist.is_kept_out(job_id):
                cause = _still_runs(*strays[job_id])
            elif (held := waitlist.held.get(job_id)) is not None:
                cause = held
            elif job_id in waitlist.idle:  # stopped for another job a moment ago: it needs no room to run again
                self.unfinished = True
                continue
            elif (moves := self._moving.waits(job_id)) is not None:
                cause = moves
            elif (known := causes.of_group.get(waitlist.group(job_id), causes.of_others)) is not None:
                cause = known
            else:
                continue  # its turn comes in the next tick
            waitlist.explained(job_id)
            if _is_news(cause, job.waiting_for):
                steps += self._picture.go(job, _E.WAITING, cause, now)
        return steps


def _is_news(cause: Cause, before: Cause | None) -> bool:
    """Is this another reason to wait than the one before?"""
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


def _by_job(clearing: Clearing, jobs: Mapping[str, Job]) -> list[tuple[Job, tuple[Allocation, ...]]]:
    """The victims by job: with the ranks that leave, or without any where the whole job stops."""
    of_job: dict[str, list[Holder]] = {}
    for victim in clearing.victims:
        of_job.setdefault(victim.job_id, []).append(victim)
    return [
        (jobs[job_id], tuple(each for holder in holders for each in holder.allocations) if _all_extra(holders) else ())
        for job_id, holders in of_job.items()
    ]


def _all_extra(holders: Sequence[Holder]) -> bool:
    return all(holder.extra for holder in holders)


def _left(job: Job, now: float) -> float:
    """The seconds that a job is expected to run on: until its limit, or as long again as it has run."""
    ends = ends_at(job)
    return now - job.held_since + job.attained_seconds if ends is None else max(0.0, ends - now)


def _still_leaves(job: Job, victim: Holder) -> bool:
    if job.state is _S.STOPPING:
        return True
    ranks = {allocation.rank for allocation in victim.allocations}
    return victim.extra and any(each.leaving and each.rank in ranks for each in job.held)


def _enough(shape: Shape, willing: Sequence[Holder], *, free: float) -> bool:
    """Do the holders and the free GPUs suffice for the shape? Without holders never: it did not fit the free GPUs."""
    missing = gpus_least(shape) - free
    for holder in willing:
        missing -= gpus_in(holder.allocations)
        if missing <= GPU_GRAIN:
            return True
    return False


def _why_preempted(order: str, waiting: Standing, running: Standing) -> str:
    match order:
        case "las" | "priority" if waiting.priority == running.priority or order == "las":
            had, has = duration_text(waiting.attained_gpu_s), duration_text(running.attained_gpu_s)
            return f"that one has had {had} of GPU time, this one {has}"
        case "srtf":
            left = "nobody knows how long" if running.left_s is None else duration_text(running.left_s)
            return f"that one needs {duration_text(waiting.left_s or 0.0)} more, this one {left}"
        case _:
            return f"priority {waiting.priority} over {running.priority}"


def _behind(ahead: str, backfill: str) -> Cause:
    sentence = f"{ahead} is ahead of it and does not fit; with backfill {backfill} nobody overtakes it"
    return Cause(code=_C.HELD_BACK, sentence=sentence, by=ahead)


def _backs_off(job: Job, now: float) -> Cause:
    sentence = f"tries again in {duration_text(job.not_before - now)}"
    return Cause(code=_C.BACKOFF, sentence=sentence, numbers={"not_before": job.not_before})


def _still_runs(node_id: str, run: RunSeen) -> Cause:
    what = "has ended, which must be taken note of first" if run.state is RunState.EXITED else "still runs"
    sentence = f"rank {run.rank} of epoch {run.epoch} {what} on node {node_id}: two epochs never run at once"
    return Cause(code=_C.STILL_RUNS, sentence=sentence, by=node_id, numbers={"epoch": float(run.epoch)})


def _kept_for(ahead: str, cause: Cause) -> Cause:
    sentence = f"room is kept for {ahead}, which is ahead of it; besides: {cause.sentence}"
    return Cause(code=_C.HELD_BACK, sentence=sentence, by=ahead, numbers=cause.numbers)
