"""What accounting reads, in memory."""

from collections.abc import Iterable, Iterator, Sequence

from libs.domain.job import Job, JobEvent
from libs.messages.accounts import JobFacts
from libs.messages.events import Event
from libs.store.memory.usage import TELLS_ALL, wanted_of
from libs.store.rows import as_micros

_BEGINS = frozenset({JobEvent.SUBMITTED, JobEvent.REQUEUED, JobEvent.RESTARTED})
_BEFORE = _BEGINS | {JobEvent.PLACED}
_TELLS = TELLS_ALL | {JobEvent.STOPPING, JobEvent.WAITING}


def facts(job: Job) -> JobFacts:
    return JobFacts(
        id=job.id,
        tenant=job.tenant,
        pool=job.pool,
        name=job.name,
        kind=job.spec.kind,
        labels=job.spec.labels,
        checkpoints=job.spec.checkpoints,
        wanted=wanted_of(job),
    )


def account(story: Sequence[Event], *, begins: int, ends: int) -> Iterator[Event]:
    """The events of a story that tell what its job held in a time, and how its epoch began."""
    last = max((event.version for event in story if as_micros(event.at) < begins), default=0)
    base = _newest(story, last, TELLS_ALL)
    epoch = _newest(story, base, _BEGINS)
    for event in story:
        known = event.version >= base or event.event in _BEFORE
        if event.version >= epoch and known and event.event in _TELLS and as_micros(event.at) < ends:
            yield event


def node_stories(told: Iterable[Event], *, begins: int) -> list[Event]:
    ordered = sorted(told, key=lambda event: (event.subject_id, event.version))
    last: dict[str, int] = {}
    for event in ordered:
        if as_micros(event.at) < begins:
            last[event.subject_id] = event.version
    return [event for event in ordered if event.version >= last.get(event.subject_id, 0)]


def _newest(story: Sequence[Event], until: int, kinds: frozenset[JobEvent]) -> int:
    return max((event.version for event in story if event.version <= until and event.event in kinds), default=0)
