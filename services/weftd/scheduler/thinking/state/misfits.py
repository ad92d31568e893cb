"""The running jobs that have another size than they should have, and can take it."""

from weft.domain.job import Job, JobState
from weft.domain.sizes import how_resized, is_elastic
from weft.domain.spec import ResizeHow


class Misfits:
    """`shrinking`: jobs of which replicas should leave, and none join before; `growing`: all others that should have
    another size; `serving`: services of which replicas should join, leave, or be replaced. `news` counts the jobs that
    came into any of them."""

    def __init__(self) -> None:
        self.shrinking: set[str] = set()
        self.growing: set[str] = set()
        self.serving: set[str] = set()
        self.news = 0

    def note(self, job: Job) -> None:
        """The job is as given now. One that restarts to take another size does so only if that was asked for."""
        self.shrinking.discard(job.id)
        self.growing.discard(job.id)
        self.serving.discard(job.id)
        if job.spec.is_service:
            if job.state is JobState.RUNNING and not _as_it_should_be(job):
                self.serving.add(job.id)
                self.news += sum(job.granted.values()) < sum(job.wanted.values())
            return
        if job.state is not JobState.RUNNING or not (job.size or is_elastic(job.spec)):
            return
        how = how_resized(job.spec)
        if how is ResizeHow.NEVER or (how is ResizeHow.RESTART and not job.size):
            return
        granted, wanted = job.granted, job.wanted
        more = any(wanted[role] > count for role, count in granted.items())
        fewer = any(wanted[role] < count for role, count in granted.items())
        if fewer and (how is ResizeHow.LIVE or not more):
            self.shrinking.add(job.id)
        elif more:
            self.growing.add(job.id)
        self.news += more or fewer


def _as_it_should_be(job: Job) -> bool:
    """Has the service as many replicas as it should have, all of the newest revision?"""
    assert job.placement is not None
    return job.granted == job.wanted and all(each.revision == job.revision for each in job.placement.staying)
