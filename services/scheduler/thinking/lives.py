"""The steps of a placed job: from the reports of its nodes, when it is stopped, and when its epoch ends."""

from msgspec import structs

from libs.domain.job import Cause, CauseCode, Job, JobEvent, JobState, Step
from libs.domain.quantity import duration_text
from services.scheduler.thinking.picture import Picture
from services.scheduler.thinking.runs import Ranks

_S, _E, _C = JobState, JobEvent, CauseCode

LOST_SECONDS_MAX = 30.0  # the longest wait before the next try of a run that vanished

_NOT_ITS_FAULT = frozenset(
    {
        _C.PREEMPTED,
        _C.MOVED,
        _C.NODE_LOST,
        _C.REQUEUE_ASKED,
        _C.NODE_STOPPED,
        _C.RUN_LOST,
        _C.PORT_TAKEN,
        _C.ORDERS_FULL,
    }
)
_FOR_GOOD = frozenset({_C.TIME_LIMIT, _C.TOO_BIG, _C.NOT_STORED})  # another try would end the same way


def follow(picture: Picture, job: Job, now: float) -> list[Step]:
    """Advance a job as far as the reports of its nodes allow."""
    assert job.placement is not None, f"{job.id} is {job.state} without a placement"
    ranks = picture.pool.runs.of(job)
    steps: list[Step] = []
    if job.state is _S.PLACED and ranks.any_seen:
        steps += picture.go(job, _E.STARTING, _reported(ranks.first_node), now)
    job = picture.jobs[job.id]
    if job.state is _S.STARTING and ranks.all_began:
        sentence = "runs" if len(ranks.seen) == 1 else f"all {len(ranks.seen)} ranks run"
        steps += picture.go(job, _E.STARTED, _reported(ranks.first_node, sentence), now)
    job = picture.jobs[job.id]
    if job.state is _S.STOPPING:
        return steps + (stopped(picture, job, now) if picture.pool.all_gone(job) else [])
    if job.state is _S.RUNNING and ranks.all_succeeded:
        cause = Cause(code=_C.EXITED, sentence="every rank ended with status 0")
        return steps + picture.go(job, _E.SUCCEEDED, cause, now, exit_code=0, progress=ranks.progress)
    ended = ranks.first_ended_badly or picture.pool.runs.first_lost(job)
    if ended is not None:
        steps += _ended_badly(picture, job, ended, now, exit_code=_status(ended, ranks), progress=ranks.progress)
    return steps


def _status(cause: Cause, ranks: Ranks) -> int | None:
    """The exit status of the rank that `cause` names, else the first that is not 0."""
    return int(cause.numbers["exit_code"]) if "exit_code" in cause.numbers else ranks.exit_code


def stop(
    picture: Picture,
    job: Job,
    cause: Cause,
    now: float,
    *,
    ask: int = 0,
    exit_code: int | None = None,
    progress: dict[str, float] | None = None,
) -> list[Step]:
    """Stop a job. If it is stopping already, nothing changes, unless this is a cancel and the first cause was not."""
    if not job.state.holding:
        return []
    if job.state is _S.STOPPING:
        assert job.stopping_for is not None
        if cause.code is not _C.CANCEL_ASKED or job.stopping_for.code is _C.CANCEL_ASKED:
            return []
    steps = picture.go(job, _E.STOPPING, cause, now, ask=ask, exit_code=exit_code, progress=progress)
    job = picture.jobs[job.id]
    return steps + (stopped(picture, job, now) if picture.pool.all_gone(job) else [])


def stopped(picture: Picture, job: Job, now: float) -> list[Step]:
    """Every rank of a stopping job is gone: the cause of the stop decides its next state.

    A stopped rank that ended with status 0 was interrupted. It succeeded only if the progress of the job reports its
    work as done.
    """
    assert job.stopping_for is not None
    ranks = picture.pool.runs.of(job)
    cause = job.stopping_for
    if cause.code is _C.CANCEL_ASKED:
        return picture.go(job, _E.CANCELLED, cause, now, exit_code=ranks.exit_code, progress=ranks.progress)
    if ranks.all_succeeded:
        done = Cause(code=_C.EXITED, sentence="its work was done when it was stopped: every rank ended with status 0")
        return picture.go(job, _E.SUCCEEDED, done, now, exit_code=0, progress=ranks.progress)
    return _over(picture, job, cause, now, exit_code=_status(cause, ranks), progress=ranks.progress)


def give_up(picture: Picture, job: Job, now: float) -> list[Step]:
    """The time for a job to stop is over: the job ends, and each rank that still runs keeps its GPUs as a stray.

    The job is not requeued by itself, because the old run and a new one must not run at once.
    """
    assert job.stopping_for is not None
    left = picture.pool.not_stopped(job)
    if not left:
        return []  # a node has yet to report, or to be lost
    ranks = picture.pool.runs.of(job)
    first = left[0]
    others = f" and {len(left) - 1} more" if len(left) > 1 else ""
    sentence = (
        f"rank {first.rank} on node {first.node_id}{others} still ran {duration_text(now - job.since)} after it was"
        " told to stop, and keeps its GPUs until it ends"
    )
    if job.stopping_for.code is _C.CANCEL_ASKED:
        cause = structs.replace(job.stopping_for, sentence=f"{job.stopping_for.sentence}; {sentence}")
        return picture.go(job, _E.CANCELLED, cause, now, exit_code=ranks.exit_code, progress=ranks.progress)
    cause = Cause(
        code=_C.STOP_TIMEOUT,
        sentence=f"{sentence}; it was stopped because: {job.stopping_for.sentence}",
        by=first.node_id,
        numbers={"ranks_left": float(len(left))},
    )
    return picture.go(job, _E.FAILED, cause, now, exit_code=ranks.exit_code, progress=ranks.progress)


def _ended_badly(
    picture: Picture, job: Job, cause: Cause, now: float, *, exit_code: int | None, progress: dict[str, float] | None
) -> list[Step]:
    if not picture.pool.all_gone(job):
        return stop(picture, job, cause, now, exit_code=exit_code, progress=progress)
    return _over(picture, job, cause, now, exit_code=exit_code, progress=progress)


def _over(
    picture: Picture, job: Job, cause: Cause, now: float, *, exit_code: int | None, progress: dict[str, float] | None
) -> list[Step]:
    """This epoch ended without success: requeue the job, or let it fail."""
    retries = job.spec.retries
    if cause.code in _NOT_ITS_FAULT:
        # A job that vanishes again and again must not spin, nor wait long for a fault that is not its own.
        spins = cause.code in (_C.RUN_LOST, _C.ORDERS_FULL)
        wait = min(retries.wait_seconds(job.epoch + 1), LOST_SECONDS_MAX) if spins else 0.0
        return picture.go(job, _E.REQUEUED, cause, now, exit_code=exit_code, progress=progress, not_before=now + wait)
    if cause.code in _FOR_GOOD or job.attempts >= retries.max:
        attempts = job.attempts + (cause.code not in _FOR_GOOD)
        return picture.go(job, _E.FAILED, cause, now, exit_code=exit_code, progress=progress, attempts=attempts)
    wait = retries.wait_seconds(job.attempts + 1)
    sentence = f"{cause.sentence}; retry {job.attempts + 1} of {retries.max} in {duration_text(wait)}"
    return picture.go(
        job,
        _E.REQUEUED,
        structs.replace(cause, sentence=sentence),
        now,
        exit_code=exit_code,
        progress=progress,
        attempts=job.attempts + 1,
        not_before=now + wait,
    )


def _reported(node_id: str, sentence: str = "") -> Cause:
    return Cause(code=_C.NODE_REPORTED, sentence=sentence or f"node {node_id} prepares it", by=node_id)
