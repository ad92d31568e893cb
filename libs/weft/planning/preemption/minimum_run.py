"""How long a job runs after each start before it may be pre-empted, so that it gets on whatever comes before it.

A job that writes no checkpoint loses everything each time: its minimum doubles with each try, an hour at most. So of
its work, if it needs no more than that hour, something like `log2(work / seconds)` tries are lost, and then it ends. A
job with checkpoints gets a fifth, or the time until it wrote one.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from msgspec import Struct

from weft.domain.checkpoints import lost_seconds
from weft.domain.classes import is_benchmark
from weft.domain.job import Job, JobState
from weft.domain.quantity import duration_text

SECONDS = 300.0  # the default of a pool
LONGEST_SECONDS = 3600.0
WITH_CHECKPOINTS = 0.2


class MinimumRun(Struct, frozen=True):
    """`seconds`: of a job without checkpoints, in its first try; 0: jobs may be stopped at any time."""

    seconds: float = 0.0

    def of(self, job: Job, *, reclaimed: bool = False) -> float:
        """`reclaimed`: the time never doubles against a lender that takes back its guarantee. A benchmark of Weft gives
        way at any time."""
        if self.seconds <= 0.0 or is_benchmark(job.spec):
            return 0.0
        return self.after(lost_seconds(job.spec), 0 if reclaimed else job.epoch, reclaimed=reclaimed)

    def after(self, lost_s: float | None, tries: int, *, reclaimed: bool = False) -> float:
        """Seconds for a job that was stopped `tries` times before, and loses `lost_s` of work by a stop (None: all)."""
        if lost_s is None:
            return max(self.seconds, min(self.seconds * 2.0 ** min(tries, 16), LONGEST_SECONDS))
        least = self.seconds * WITH_CHECKPOINTS
        return least if reclaimed else max(least, min(2.0 * lost_s, LONGEST_SECONDS))

    def until(self, job: Job, now: float, *, reclaimed: bool = False) -> float:
        """When it may be stopped for another job. One that only starts has not run yet."""
        began = job.started_at if job.started_at is not None else now
        return began + self.of(job, reclaimed=reclaimed)

    def protects(self, job: Job, now: float, *, reclaimed: bool = False) -> bool:
        if self.seconds <= 0.0 or job.state is JobState.STOPPING:
            return False
        return now < self.until(job, now, reclaimed=reclaimed)


def why_not_yet(jobs: Sequence[Job], minimum: MinimumRun, now: float) -> tuple[str, float]:
    """A sentence about jobs that would give way if they had run for long enough, and when the last of them has."""
    last = max(jobs, key=lambda job: (minimum.until(job, now), job.id))
    at = minimum.until(last, now)
    ran = max(0.0, now - (now if last.started_at is None else last.started_at))
    clock = datetime.fromtimestamp(at, UTC).isoformat()[11:19]
    sentence = (
        f"{last.id} may not be stopped for it before {clock} UTC: "
        f"at {datetime.fromtimestamp(now, UTC).isoformat()[11:19]} it had run for {duration_text(ran)} of the "
        f"{duration_text(minimum.of(last))} of its minimum run time"
    )
    return sentence, round(at, 6)
