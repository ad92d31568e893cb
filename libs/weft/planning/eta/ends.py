"""Estimates when a job releases its GPUs: by its progress, by durations of similar jobs, by its limit."""

from collections.abc import Mapping
from math import exp, inf

from msgspec import Struct

from weft.domain.checkpoints import lost_seconds
from weft.domain.classes import is_benchmark
from weft.domain.job import Job, JobState
from weft.health.spares import spare_use
from weft.messages.eta import Basis
from weft.planning.borrowing import why_never_lends
from weft.planning.eta.learnt import Kinds, Lasting, RunsSoLong, kinds_of
from weft.planning.eta.runs import RIGID, Holds, Resizes, Stopping
from weft.planning.eta.spread import UNKNOWN, TimeSpread, always
from weft.planning.growth import live_sizes
from weft.planning.jobs import asked_by, ends_at, standing_of
from weft.planning.order import Order
from weft.planning.resource_request import resource_request_of_job

HORIZON_S = 10 * 366 * 86400.0  # later ends are not estimated
PART_DONE_MIN = 0.01  # earlier, steps say nothing about the end of a job,
STEPS_DONE_MIN = 20.0  # unless their pace was measured and at least this many are done
SURE, UNSURE = 0.05, 0.35  # standard deviation of the logarithm of the remaining time: at the end, at the beginning
_NORMAL = (-1.64, -1.15, -0.84, -0.6, -0.39, -0.19, 0.0, 0.19, 0.39, 0.6, 0.84, 1.15, 1.64)


class Steps(Struct, frozen=True):
    """The reported steps of a running job: `step` of `steps`; `rate`: recent steps per second, None if unknown. `age`:
    seconds for which this try has run."""

    step: float
    steps: float
    rate: float | None = None
    age: float = 0.0

    def left(self) -> TimeSpread | None:
        """Time until its last step, at its present or else its average pace; None if it reports too little."""
        if not 0 < self.steps < inf or not 0 <= self.step < inf:
            return None
        part = min(1.0, self.step / self.steps)
        measured = bool(self.rate and self.rate > 0)
        rate = self.rate if self.rate and measured else self.step / self.age if self.age > 0 else 0.0
        enough = part >= PART_DONE_MIN or (measured and self.step >= STEPS_DONE_MIN)
        if not enough or not 0 < rate < inf:
            return None
        seconds = max(0.0, self.steps - self.step) / rate
        if seconds > HORIZON_S:
            return None
        wide = SURE + (UNSURE - SURE) * (1 - part)
        return TimeSpread(tuple(seconds * exp(wide * one) for one in _NORMAL), Basis.PROGRESS)


def time_left(
    durations: Lasting, kinds: Kinds, *, age: float, limit_left: float | None = None, steps: Steps | None = None
) -> TimeSpread:
    """Remaining time of a running job: by its steps, or by learned durations; at most the rest of its limit."""
    found = steps.left() if steps is not None else None
    if found is None and (learnt := durations.left(kinds, age)) is not None:
        found = learnt
    if limit_left is None:
        return found or UNKNOWN
    return always(limit_left, Basis.LIMITS) if found is None else found.at_most(max(0.0, limit_left))


def left_of(job: Job, durations: Lasting, *, now: float, heard: Mapping[str, Steps] | None = None) -> TimeSpread:
    """Remaining time of a stored job that holds resources. `heard`: recent reports by job, if newer than the stored
    ones."""
    bound = ends_at(job)
    limit_left = None if bound is None else bound - now
    if job.state is JobState.STOPPING and limit_left is not None:
        return always(limit_left, Basis.LIMITS)
    if job.spec.is_service:
        return UNKNOWN if limit_left is None else always(limit_left, Basis.LIMITS)
    steps = _steps_of(job, now, heard)
    age = age_of(job, now)
    return time_left(durations, kinds_of(job), age=age, limit_left=limit_left, steps=steps)


def lasting_of(job: Job, durations: Lasting) -> TimeSpread:
    """The time for which a waiting job will hold GPUs."""
    limit = job.spec.time_limit_seconds
    if job.spec.is_service:
        return UNKNOWN if limit is None else always(limit, Basis.LIMITS)
    return time_left(durations, kinds_of(job), age=job.attained_seconds, limit_left=limit)


def runs(job: Job, *, now: float, heard: Mapping[str, Steps] | None = None) -> RunsSoLong:
    """The contribution of a running job to durations of similar jobs."""
    steps = _steps_of(job, now, heard)
    left = None if steps is None else steps.left()
    age = age_of(job, now)
    return RunsSoLong(kinds_of(job), age, None if left is None else age + left.at(0.5))


def reports_steps(job: Job, *, now: float, heard: Mapping[str, Steps] | None = None) -> bool:
    """True if a job reports steps, even if they are too few to estimate its end."""
    steps = _steps_of(job, now, heard)
    return steps is not None and 0 < steps.steps < inf


def age_of(job: Job, now: float) -> float:
    """Seconds for which it has held its resources, over all tries."""
    return job.attained_seconds + (max(0.0, now - job.held_since) if job.state.holding else 0.0)


def _steps_of(job: Job, now: float, heard: Mapping[str, Steps] | None) -> Steps | None:
    if job.state is not JobState.RUNNING:
        return None
    steps = (heard or {}).get(job.id)
    if steps is None or not steps.rate:
        # A later try continues from a checkpoint, so its steps divided by its age are not its pace.
        ran = max(0.0, now - (job.started_at or job.since)) if job.epoch == 0 else 0.0
        told = steps or Steps(job.progress.get("step", 0.0), job.progress.get("steps", 0.0))
        steps = Steps(told.step, told.steps, age=ran)
    return steps


def stopping_of(job: Job) -> Stopping:
    return Stopping(
        lost_s=lost_seconds(job.spec),
        tries=job.epoch,
        stop_s=job.spec.drain_seconds + job.spec.grace_seconds,
        at_once=is_benchmark(job.spec),
    )


def holds_of(
    job: Job, durations: Lasting, order: Order, *, now: float, heard: Mapping[str, Steps] | None = None
) -> Holds:
    """A stored job that holds resources, for the look ahead. Service replicas that give way one by one are not
    simulated."""
    bound = ends_at(job)
    gives_way = job.spec.preemptible and not job.spec.is_service and job.state is not JobState.STOPPING
    return Holds(
        job_id=job.id,
        allocations=job.held,
        gpus=job.gpus_held,
        left=left_of(job, durations, now=now, heard=heard),
        tenant=job.tenant,
        limit_left_s=None if bound is None else max(0.0, bound - now),
        reports=reports_steps(job, now=now, heard=heard),
        since_s=job.held_since - now,
        began_s=0.0 if job.started_at is None else job.started_at - now,
        attained_s=age_of(job, now),
        standing=standing_of(job, now, order) if gives_way else None,
        stopping=stopping_of(job),
        leaves=job.state is JobState.STOPPING,
        resizes=resizes_of(job, now),
        spare_use=spare_use(job),
    )


def resizes_of(job: Job, now: float) -> Resizes:
    sizes = live_sizes(job)
    if not sizes:
        return RIGID
    return Resizes(
        sizes=sizes,
        lends=not why_never_lends(job),
        roles=resource_request_of_job(job),
        asked=asked_by(job),
        model=job.spec.only_model,
        sized_s=None if job.sized_at is None or not job.state.holding else job.sized_at - now,
    )
