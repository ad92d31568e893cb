"""The waiting jobs, each in exactly one of five places, and those that still need a reason."""

from collections.abc import Iterable, Mapping, Set
from heapq import heapify, heappop, heappush

from msgspec import Struct, structs

from weft.domain.classes import class_of
from weft.domain.job import Cause, Job
from weft.health.spares import SpareUse, spare_use
from weft.planning.jobs import promoted, standing_of
from weft.planning.policy import Policy
from weft.planning.queue import Queue
from weft.planning.resource_request import ResourceRequest, resource_request_of_job
from weft.planning.tiers import changes_at
from weftd.scheduler.thinking.state.hold_reasons import HoldReasons
from weftd.scheduler.thinking.state.score_cache import ScoreCache

PROMOTIONS_LEAST = 1024


class JobGroup(Struct, frozen=True):
    """Waiting jobs that are alike in whether they fit, and in which jobs they may overtake. Where quotas are in force,
    `tenant` and `preemptible` are theirs, else they are empty and true. `checkpoints`: in an order in which jobs
    without them preempt fewer. `spare_use`: in a pool with spares. `is_service`: it may
    borrow, and takes no surplus."""

    resource_request: ResourceRequest
    job_class: str
    lasts_s: float | None
    tenant: str = ""
    preemptible: bool = True
    checkpoints: bool = False
    spare_use: SpareUse = SpareUse.NEVER
    is_service: bool = False


class Waitlist:
    """A job waits in the `queue`, backs off until its next try, or is kept out until an orphan run has ended; it is
    `held` while other jobs come first; a service that should have no replica is `idle`: it needs no room.

    `unexplained`: jobs whose reason to wait is not recorded yet.
    """

    def __init__(self, policy: Policy, score_cache: ScoreCache, holds: HoldReasons, *, spares: int = 0) -> None:
        self.queue = Queue(policy.ordering)
        self._spares = spares
        self._by_quota = False
        self._backfills = policy.backfill != "none"
        self._score_cache = score_cache
        self._holds = holds
        self._backing_off: set[str] = set()
        self._kept_out: set[str] = set()
        self.idle: set[str] = set()
        self.held: dict[str, Cause] = {}  # why
        self._unexplained: set[str] = set()
        self._promotions: list[tuple[float, str]] = []  # a heap: from when on the order counts a job as new
        self._put_back: dict[str, Cause] = {}  # by job whose orders did not fit its node's answer, why it backs off

    def __contains__(self, job_id: str) -> bool:
        return any(job_id in place for place in (self.queue, self._backing_off, self._kept_out, self.held, self.idle))

    @property
    def unexplained(self) -> Set[str]:
        return self._unexplained

    def admit(self, job: Job) -> None:
        """Take in a job that waits already. A job that backed off may be due: `end_backoffs` checks that."""
        self._unexplained.add(job.id)
        if job.not_before > 0:
            self._move(job.id, self._backing_off)
        else:
            self.stand(job, job.since)

    def wait(self, job: Job, now: float, *, news: bool) -> None:
        """A job waits, in the place that follows from its state alone. `news`: it needs a new reason."""
        if news:
            self._unexplained.add(job.id)
        if job.not_before > now:
            self._move(job.id, self._backing_off)
        else:
            self.stand(job, now)

    def stand(self, job: Job, now: float) -> None:
        """Put the job into the queue, at its present place in the order, unless it is held."""
        if (cause := self._holds.why(job)) is not None:
            self._move(job.id, None)
            self.held[job.id] = cause
            return
        if job.spec.is_service and not any(job.wanted.values()):
            self._move(job.id, self.idle)
            return
        self._move(job.id, None)
        lasts = job.spec.time_limit_seconds if self._backfills else None
        job_class = class_of(job.spec, self._score_cache.learnt)
        group = JobGroup(resource_request_of_job(job), job_class, lasts, is_service=job.spec.is_service)
        if self._by_quota:
            group = structs.replace(group, tenant=job.tenant, preemptible=job.spec.preemptible)
        standing = standing_of(job, now, self.queue.order)
        if self._spares:
            group = structs.replace(group, spare_use=spare_use(job))
            if group.spare_use is SpareUse.RESTARTS:  # or newer jobs of its priority would take the nodes that it lost
                standing = promoted(standing)
        if self.queue.order.held_tier is not None:
            group = structs.replace(group, checkpoints=standing.checkpoints)
        self.queue.add(standing, group)
        if (after := self.queue.order.promotes_after_s(standing)) is not None:
            heappush(self._promotions, (changes_at(now + after, now=now), job.id))

    def stand_promoted(self, jobs: Mapping[str, Job], now: float) -> None:
        """Put the jobs that have waited long enough into their new places."""
        while self._promotions and self._promotions[0][0] <= now:
            _, job_id = heappop(self._promotions)
            if job_id in self.queue:
                self.stand(jobs[job_id], now)
        if len(self._promotions) > PROMOTIONS_LEAST + 4 * len(self.queue):  # some jobs left
            last = {job_id: at for at, job_id in sorted(self._promotions) if job_id in self.queue}
            self._promotions = [(at, job_id) for job_id, at in last.items()]
            heapify(self._promotions)

    def by_quota(self, on: bool, jobs: Iterable[Job], now: float) -> None:
        """Switch quotas on or off; `jobs`: all jobs that may wait. Each needs a new reason."""
        waiting = [job for job in jobs if job.id in self.queue]
        self._by_quota = on
        self.queue = Queue(self.queue.order, by_tenant=on)
        for job in waiting:
            self.stand(job, now)
            self._unexplained.add(job.id)

    def judge_again(self, job: Job, now: float) -> None:
        """Hold a job that stands in the queue, or let one that is held stand there, or hold it for another cause."""
        if job.id not in self.queue and job.id not in self.held:
            return
        before = self.held.get(job.id)
        self.stand(job, now)
        after = self.held.get(job.id)
        if before is None or after is None or (before.code, before.by) != (after.code, after.by):
            self._unexplained.add(job.id)

    def end_backoffs(self, jobs: Mapping[str, Job], now: float) -> None:
        """Put jobs whose next try is due back into the queue."""
        for job_id in sorted(one for one in self._backing_off if jobs[one].not_before <= now):
            self._return(jobs[job_id], now)

    def keep_out(self, orphans: Set[str], jobs: Mapping[str, Job], now: float) -> None:
        """Take jobs with `orphans` out of the queue, and put jobs without orphans back into it."""
        for job_id in sorted(self._kept_out - orphans):
            self._return(jobs[job_id], now)
        for job_id in orphans:
            if job_id in self.queue:
                self._move(job_id, self._kept_out)
                self._unexplained.add(job_id)

    def put_back(self, job_id: str, cause: Cause) -> None:
        """Note why a placed job goes back: its orders did not fit its node's answer."""
        self._put_back[job_id] = cause

    def leave(self, job_id: str) -> None:
        """The job waits no more: it was placed, or is final."""
        self._move(job_id, None)
        self._unexplained.discard(job_id)
        self._put_back.pop(job_id, None)

    def explained(self, job_id: str) -> None:
        """The reason why the job waits is recorded."""
        self._unexplained.discard(job_id)

    def needs_reason(self, job_id: str) -> None:
        """The recorded reason holds no longer."""
        self._unexplained.add(job_id)

    def backs_off(self, job_id: str) -> bool:
        return job_id in self._backing_off

    def why_put_back(self, job_id: str) -> Cause | None:
        return self._put_back.get(job_id)

    def is_kept_out(self, job_id: str) -> bool:
        return job_id in self._kept_out

    def group(self, job_id: str) -> JobGroup:
        """The group of a job in the queue."""
        group = self.queue.group(job_id)
        assert isinstance(group, JobGroup)
        return group

    def _return(self, job: Job, now: float) -> None:
        self.stand(job, now)
        self._unexplained.add(job.id)

    def _move(self, job_id: str, to: set[str] | None) -> None:
        """Move the job into `to`, one of the places beside the queue, or out of all of them."""
        self.queue.remove(job_id)
        self.held.pop(job_id, None)
        self.idle.discard(job_id)
        self._backing_off.discard(job_id)
        self._kept_out.discard(job_id)
        if to is not None:
            to.add(job_id)
