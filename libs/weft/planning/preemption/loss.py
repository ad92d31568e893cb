"""Loss of a running job that gives way, which orders victims that are equally far behind.

Ranks beyond the core come before whole jobs; then those that lose least work go first. Work is lost since the last
checkpoint: as the job's progress reports it (`step`, `checkpoint`), else half of the time between two checkpoints,
else all since the job has its GPUs.
"""

from collections.abc import Mapping
from math import isfinite

from weft.domain.checkpoints import lost_seconds
from weft.domain.job import Job
from weft.planning.order import Key

COOL_DOWN_SECONDS = 120.0  # a job that started anew, or gave ranks away, so recently gives way after the others


def loss(job: Job, now: float, progress: Mapping[str, float], *, extra: bool) -> Key:
    """A sort key: the least loss comes first. `progress`: the newest that the job reported; `extra`: a rank beyond the
    core."""
    rested = job.sized_at if job.epoch == 0 else job.held_since if job.sized_at is None else job.sized_at
    seconds = 0.0 if extra else work_lost_seconds(job, now, progress) * (job.gpus_held or 1)
    return loss_of(now, rested=rested, extra=extra, gpu_seconds=seconds, held_since=job.held_since, seq=job.seq)


def loss_of(now: float, *, rested: float | None, extra: bool, gpu_seconds: float, held_since: float, seq: int) -> Key:
    """The same of any job. `rested`: when it started again or gave ranks away; `gpu_seconds`: the work lost;
    `seq`: of jobs that are equal otherwise the newest goes first."""
    gave_way = rested is not None and now - rested < COOL_DOWN_SECONDS
    return (float(gave_way), float(not extra), gpu_seconds, -held_since, -float(seq))


def work_lost_seconds(job: Job, now: float, progress: Mapping[str, float]) -> float:
    """How many seconds of its work the job would do again if it were stopped now."""
    held = max(0.0, now - job.held_since)
    steps, saved = progress.get("step"), progress.get("checkpoint")
    if steps is not None and saved is not None and isfinite(steps) and isfinite(saved) and steps > 0:
        since = min(max(steps - saved, 0.0), steps)
        return min(held, (held + job.attained_seconds) * since / steps)
    mean = lost_seconds(job.spec)
    return held if mean is None else min(held, mean)
