"""Arrays in memory: what is made of the jobs that are elements of one."""

from collections import Counter
from collections.abc import Iterable, Sequence

from libs.domain.dependencies import Ends
from libs.domain.job import Job, JobState
from libs.store.arrays import ArrayKept


def array_of(array: str, jobs: Sequence[Job]) -> ArrayKept:
    """The array with these elements, at least one."""
    first = min(jobs, key=lambda job: job.seq)
    assert first.spec.element is not None, "it is an element"
    waits = [job for job in jobs if job.state is JobState.QUEUED and job.waiting_for is not None]
    return ArrayKept(
        id=array,
        name=first.spec.element.name,
        tenant=first.tenant,
        pool=first.pool,
        seq=first.seq,
        submitted_at=first.submitted_at,
        spec=first.spec,
        states=dict(Counter(job.state for job in jobs)),
        started_at=min((job.started_at for job in jobs if job.started_at is not None), default=None),
        ended_at=max((job.ended_at for job in jobs if job.ended_at is not None), default=None),
        waiting_for=waits[0].waiting_for if waits else None,
    )


def elements_in(jobs: Iterable[Job], array: str) -> list[Job]:
    """The elements of an array among the jobs."""
    return [job for job in jobs if job.spec.element is not None and job.spec.element.array == array]


def ends_in(name: str, jobs: Sequence[Job]) -> Ends:
    """How far these jobs are together."""
    ended = [job for job in jobs if job.state.final]
    ok = sum(job.state is JobState.SUCCEEDED for job in ended)
    return Ends(
        id=name,
        total=len(jobs),
        ended=len(ended),
        ok=ok,
        bad=sum(job.state is not JobState.SUCCEEDED and job.started_at is not None for job in ended),
        began=sum(job.started_at is not None for job in jobs),
    )
