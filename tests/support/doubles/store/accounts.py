"""What accounting and views of the past read, in memory."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from tests.support.doubles.store.jobs import MemoryJobs
from tests.support.doubles.store.times import micro
from weft.domain.job import Job, JobEvent
from weft.domain.shares import WHOLE
from weft.messages.accounts import JobFacts
from weft.messages.events import Event
from weft.store.accounts import Moment
from weft.store.rows import as_micros

_ENDS = frozenset({JobEvent.SUCCEEDED, JobEvent.FAILED, JobEvent.CANCELLED})
_BEGINS = frozenset({JobEvent.SUBMITTED, JobEvent.REQUEUED, JobEvent.RESTARTED})
_BEFORE = _BEGINS | {JobEvent.PLACED}
_TELLS_ALL = _BEGINS | _ENDS | {JobEvent.PLACED, JobEvent.TUNED, JobEvent.RESIZED}
"""The events that say by themselves what the job holds and waits for from then on."""
_TELLS = _TELLS_ALL | {JobEvent.STOPPING, JobEvent.WAITING}


class MemoryAccounts(MemoryJobs):
    """Implements `AccountStore` in memory."""

    async def jobs_between(self, begins: float, *, limit: int) -> list[str]:
        jobs = (self._jobs.get(job_id, job) for job_id, job in self._submitted.items())
        found = (job.id for job in jobs if job.ended_at is None or job.ended_at > micro(begins) - 3600)
        return list(islice(found, limit))

    async def job_facts(self, job_ids: Sequence[str]) -> list[JobFacts]:
        known = [self._jobs.get(job_id) or self._submitted[job_id] for job_id in job_ids if job_id in self._submitted]
        return [_facts(job) for job in sorted(known, key=lambda job: job.id)]

    async def accounts(self, job_ids: Sequence[str], *, begins: float, ends: float) -> list[Event]:
        return [
            event
            for job_id in sorted(job_ids)
            for event in _account(self._stories.get(job_id, ()), begins=as_micros(begins), ends=as_micros(ends))
        ]

    async def node_stories(self, *, begins: float, ends: float) -> list[Event]:
        told = [event for event in self._events if event.topic == "nodes" and event.at < micro(ends)]
        return _node_stories(told, begins=as_micros(begins))

    async def told_until(self, moment: Moment) -> list[Event]:
        found: list[Event] = []
        for job_id, story in sorted(self._stories.items()):
            told = [event.version for event in story if moment.holds(event)]
            job = self._jobs.get(job_id)
            if told and (len(told) < len(story) or job is None or not job.state.final):
                found += [event for event in story if event.version <= told[-1]]
        nodes = {event.subject_id: event for event in self._events if event.topic == "nodes" and moment.holds(event)}
        return found + [event for _, event in sorted(nodes.items())]


def _facts(job: Job) -> JobFacts:
    return JobFacts(
        id=job.id,
        tenant=job.tenant,
        pool=job.pool,
        name=job.name,
        kind=job.spec.kind,
        labels=job.spec.labels,
        checkpoints=job.spec.checkpoints,
        wanted=_wanted(job),
    )


def _wanted(job: Job) -> int:
    """The thousandths of GPUs that it waits for while it waits."""
    each = {
        name: role.gpus * WHOLE if role.share is None else role.share.held.request
        for name, role in job.spec.roles.items()
    }
    return sum(count * each[name] for name, count in job.wanted.items())


def _account(story: Sequence[Event], *, begins: int, ends: int) -> Iterator[Event]:
    """The events of a story that tell what its job held in a time, and how its epoch began."""
    last = max((event.version for event in story if as_micros(event.at) < begins), default=0)
    base = _newest(story, last, _TELLS_ALL)
    epoch = _newest(story, base, _BEGINS)
    for event in story:
        known = event.version >= base or event.event in _BEFORE
        if event.version >= epoch and known and event.event in _TELLS and as_micros(event.at) < ends:
            yield event


def _node_stories(told: Iterable[Event], *, begins: int) -> list[Event]:
    ordered = sorted(told, key=lambda event: (event.subject_id, event.version))
    last: dict[str, int] = {}
    for event in ordered:
        if as_micros(event.at) < begins:
            last[event.subject_id] = event.version
    return [event for event in ordered if event.version >= last.get(event.subject_id, 0)]


def _newest(story: Sequence[Event], until: int, kinds: frozenset[JobEvent]) -> int:
    return max((event.version for event in story if event.version <= until and event.event in kinds), default=0)
